//! What processes did: counters that a process has while it is shown, and those of its name after that. Each row of the
//! table makes both, so that the two together are always everything.

use std::borrow::Cow;
use std::collections::HashMap;

use gpuprobe_analysis::function_counts::OTHER;
use gpuprobe_analysis::launches::OTHER_KERNELS;
use gpuprobe_analysis::snapshot::{Failure, FunctionCounts, MemoryCounts};
use gpuprobe_analysis::{Gaps, Snapshot, Work};
use gpuprobe_event::counters::{CommandTotals, CopyTotals, GapKind, HostMemory, LATENCY_BUCKETS};
use gpuprobe_event::cut::cut;
use gpuprobe_event::{DriverTime, Moved};

use super::collect::of_process;
use super::{Distribution, Kind, Metric, Samples, of_process};

/// Bytes of a name that are shown: some of those that templates make are far longer than a scrape can bear.
const MOST_NAME: usize = 200;

/// What one process did, or all of one name that ended.
struct Did<'a> {
    functions: &'a [FunctionCounts],
    failures: &'a [Failure],
    /// `None` where they did nothing to it.
    memory: Option<&'a MemoryCounts>,
    work: &'a Work,
}

fn of_processes(snapshot: &Snapshot, samples: &mut Samples, collect: fn(&Did<'_>, &mut Samples)) {
    for process in &snapshot.processes {
        of_process(samples, process);
        let memory = (!process.memory.live.is_empty()).then_some(&process.memory);
        let (functions, failures) = (&process.functions, &process.failures);
        collect(&Did { functions, failures, memory, work: &process.work }, samples);
    }
}

fn of_past(snapshot: &Snapshot, samples: &mut Samples, collect: fn(&Did<'_>, &mut Samples)) {
    for past in &snapshot.past {
        samples.of(&[&past.name]);
        let memory = (past.memory != MemoryCounts::default()).then_some(&past.memory);
        let (functions, failures) = (&past.functions, &past.failures);
        collect(&Did { functions, failures, memory, work: &past.work }, samples);
    }
}

/// A metric of processes and that of those which ended: name, kind, unit, further labels, meaning, and how it is taken.
/// Sums over processes that ended bear no pid and no container: both grow without bound.
macro_rules! done {
    ($name:literal, $kind:ident, $unit:expr, [$($label:literal),*], $help:literal, $collect:path) => {
        [
            Metric {
                family: concat!("gpuprobe_", $name),
                kind: Kind::$kind,
                unit: $unit,
                help: $help,
                labels: of_process![$($label),*],
                collect: |snapshot, samples| of_processes(snapshot, samples, $collect),
            },
            Metric {
                family: concat!("gpuprobe_ended_", $name),
                kind: Kind::$kind,
                unit: $unit,
                help: concat!($help, " Of processes that ended and have no series of their own any more."),
                labels: &["process", $($label),*],
                collect: |snapshot, samples| of_past(snapshot, samples, $collect),
            },
        ]
    };
}

const BYTES: Option<&str> = Some("bytes");
const SECONDS: Option<&str> = Some("seconds");

pub(super) const METRICS: &[[Metric; 2]] = &[
    done!("calls", Counter, None, ["api", "function"], "Calls of a GPU API function that returned.", calls),
    done!(
        "call_duration_seconds",
        Histogram,
        SECONDS,
        ["api", "function"],
        "Time inside a call, as its caller saw it; not the time of the work on the GPU.",
        durations
    ),
    done!(
        "errors",
        Counter,
        None,
        ["function", "error"],
        "Calls that returned a failure, by its name; those of the runtime that never reached the driver, where its function is not called all the time.",
        errors
    ),
    done!("memory_allocated_bytes", Counter, BYTES, [], "Bytes ever allocated.", allocated),
    done!(
        "memory_freed_bytes",
        Counter,
        BYTES,
        [],
        "Bytes ever freed by a call; what a process holds at its end is not among them.",
        freed
    ),
    done!(
        "memory_ended_allocations",
        Counter,
        None,
        [],
        "Allocations that ended with the context they were made in.",
        ended_allocations
    ),
    done!(
        "memory_ended_bytes",
        Counter,
        BYTES,
        [],
        "Bytes that ended with the context they were allocated in.",
        ended_bytes
    ),
    done!(
        "memory_replaced",
        Counter,
        None,
        [],
        "Addresses allocated again while they were still live: their frees were missed.",
        replaced
    ),
    done!(
        "memory_unknown_frees",
        Counter,
        None,
        [],
        "Frees of memory whose allocation was not seen, as of what was allocated before the probes came.",
        unknown_frees
    ),
    done!(
        "kernel_launches",
        Counter,
        None,
        ["kernel"],
        "Launches of the kernels that a process launched most, and of all others together; kernels of graphs apart.",
        kernel_launches
    ),
    done!("graph_launches", Counter, None, [], "Launches of graphs.", graph_launches),
    done!(
        "graph_kernels_derived",
        Counter,
        None,
        [],
        "Kernels run by launches of graphs: not seen, but derived from how the graphs were made.",
        graph_kernels
    ),
    done!(
        "graph_launches_unknown",
        Counter,
        None,
        [],
        "Launches of graphs whose making was not seen: their kernels are not among the derived.",
        unknown_graphs
    ),
    done!(
        "copy_bytes",
        Counter,
        BYTES,
        ["kind", "mode"],
        "Bytes copied, by direction and by whether the call waits for it.",
        copy_bytes
    ),
    done!("copies", Counter, None, ["kind", "mode"], "Copies and memsets.", copies),
    done!(
        "copy_seconds",
        Counter,
        SECONDS,
        ["kind", "mode"],
        "Time inside calls that wait for their copy, with all that they wait for.",
        copy_seconds
    ),
    done!(
        "copy_host_bytes",
        Counter,
        BYTES,
        ["kind", "memory"],
        "Bytes copied from or to host memory, by what it is: pageable memory is copied twice.",
        copy_host_bytes
    ),
    done!(
        "stream_gap_seconds",
        Histogram,
        SECONDS,
        ["after"],
        "Time in which a stream was given nothing: from the return of a synchronisation or of a launch to the next launch.",
        gaps
    ),
    done!(
        "driver_ioctls",
        Counter,
        None,
        ["device", "command"],
        "Ioctls on the driver's devices, by the commands that took most time and all others together; with --kernel.",
        ioctls
    ),
    done!(
        "driver_ioctl_errors",
        Counter,
        None,
        ["device", "command"],
        "Ioctls that failed, by the system's word or by the driver's own status; with --kernel.",
        ioctl_errors
    ),
    done!(
        "driver_seconds",
        Counter,
        SECONDS,
        ["device", "command"],
        "Time inside these ioctls; with --kernel.",
        ioctl_seconds
    ),
    done!(
        "unified_faults",
        Counter,
        None,
        ["processor"],
        "Faults of unified memory, by who touched it; with --kernel, where the driver's functions can be probed.",
        unified_faults
    ),
    done!(
        "unified_migrations",
        Counter,
        None,
        ["kind"],
        "Migrations of unified memory, by direction; with --kernel, where the driver's functions can be probed.",
        unified_migrations
    ),
    done!(
        "unified_migrated_bytes",
        Counter,
        BYTES,
        ["kind"],
        "Unified memory that was moved; with --kernel, where the driver's functions can be probed.",
        unified_bytes
    ),
    done!(
        "calls_in_driver",
        Counter,
        None,
        ["api", "function"],
        "Calls of a GPU API function that entered the driver: made an ioctl, mmap, open or poll on its devices; with --kernel.",
        calls_in_driver
    ),
    done!(
        "call_driver_seconds",
        Counter,
        SECONDS,
        ["api", "function"],
        "Of the time inside calls, what was spent in the driver; with --kernel.",
        call_driver_seconds
    ),
];

fn each_command(did: &Did<'_>, mut then: impl FnMut(&[&str], CommandTotals)) {
    let asked = &did.work.asked;
    asked.named().for_each(|(device, command, totals)| then(&[device.as_str(), command], totals));
    if asked.other() != CommandTotals::default() {
        then(&["", OTHER], asked.other());
    }
}

fn ioctls(did: &Did<'_>, samples: &mut Samples) {
    each_command(did, |labels, totals| samples.number(labels, totals.calls));
}

fn ioctl_errors(did: &Did<'_>, samples: &mut Samples) {
    each_command(did, |labels, totals| {
        if totals.failures > 0 {
            samples.number(labels, totals.failures);
        }
    });
}

fn ioctl_seconds(did: &Did<'_>, samples: &mut Samples) {
    each_command(did, |labels, totals| samples.nanoseconds(labels, totals.total_ns));
}

fn unified_faults(did: &Did<'_>, samples: &mut Samples) {
    for (processor, faults) in did.work.asked.unified().faults().into_iter().filter(|(_, n)| *n > 0) {
        samples.number(&[processor], faults);
    }
}

fn each_moved(did: &Did<'_>, mut then: impl FnMut(&[&str], Moved)) {
    let moved = did.work.asked.unified().moved();
    moved
        .into_iter()
        .filter(|(_, moved)| moved.migrations > 0)
        .for_each(|(kind, moved)| then(&[kind], moved));
}

fn unified_migrations(did: &Did<'_>, samples: &mut Samples) {
    each_moved(did, |labels, moved| samples.number(labels, moved.migrations));
}

fn unified_bytes(did: &Did<'_>, samples: &mut Samples) {
    each_moved(did, |labels, moved| samples.number(labels, moved.bytes));
}

fn each_entered(did: &Did<'_>, mut then: impl FnMut(&[&str], DriverTime)) {
    for f in did.functions.iter().filter(|f| f.driver.calls > 0) {
        then(&[f.api.as_str(), f.function], f.driver);
    }
}

fn calls_in_driver(did: &Did<'_>, samples: &mut Samples) {
    each_entered(did, |labels, driver| samples.number(labels, driver.calls));
}

fn call_driver_seconds(did: &Did<'_>, samples: &mut Samples) {
    each_entered(did, |labels, driver| samples.nanoseconds(labels, driver.ns));
}

fn calls(did: &Did<'_>, samples: &mut Samples) {
    did.functions.iter().for_each(|f| samples.number(&[f.api.as_str(), f.function], f.calls));
}

fn durations(did: &Did<'_>, samples: &mut Samples) {
    // of what is only counted as it begins, nobody knows the time
    let is_timed = |f: &&FunctionCounts| f.calls == 0 || f.latency.iter().any(|n| *n > 0);
    for f in did.functions.iter().filter(|f| !f.is_moment).filter(is_timed) {
        samples.histogram(&[f.api.as_str(), f.function], &distribution(&f.latency, f.total_ns));
    }
}

/// The count is that of the buckets: rows are read while they change, and a histogram must add up.
fn distribution(buckets: &[u64; LATENCY_BUCKETS], sum_ns: u64) -> Distribution {
    Distribution { latency: *buckets, sum_ns, count: buckets.iter().sum() }
}

/// Failures by name, and under [`OTHER`] those that the kernel side had no room for.
fn errors(did: &Did<'_>, samples: &mut Samples) {
    let mut named: HashMap<_, u64> = HashMap::new();
    for failure in did.failures {
        let sum = named.entry((failure.api, failure.function)).or_default();
        *sum = sum.saturating_add(failure.count);
        samples.number(&[failure.function, failure.error], failure.count);
    }
    // those of calls on the driver's devices are told by command
    for f in did.functions.iter().filter(|f| !f.is_system_call()) {
        let rest = f.errors.saturating_sub(named.get(&(f.api, f.function)).copied().unwrap_or_default());
        if rest > 0 {
            samples.number(&[f.function, OTHER], rest);
        }
    }
}

fn memory(did: &Did<'_>, samples: &mut Samples, value: impl Fn(&MemoryCounts) -> u64) {
    did.memory.iter().for_each(|memory| samples.number(&[], value(memory)));
}

fn allocated(did: &Did<'_>, samples: &mut Samples) {
    memory(did, samples, |memory| memory.allocated_bytes);
}

fn freed(did: &Did<'_>, samples: &mut Samples) {
    memory(did, samples, |memory| memory.freed_bytes);
}

fn ended_allocations(did: &Did<'_>, samples: &mut Samples) {
    memory(did, samples, |memory| memory.ended_allocations);
}

fn ended_bytes(did: &Did<'_>, samples: &mut Samples) {
    memory(did, samples, |memory| memory.ended_bytes);
}

fn replaced(did: &Did<'_>, samples: &mut Samples) {
    memory(did, samples, |memory| memory.replaced);
}

fn unknown_frees(did: &Did<'_>, samples: &mut Samples) {
    memory(did, samples, |memory| memory.unknown_frees);
}

/// A name as it is shown, cut where it is too long.
fn shown(kernel: &str) -> Cow<'_, str> {
    cut(kernel, MOST_NAME)
}

fn kernel_launches(did: &Did<'_>, samples: &mut Samples) {
    let launched = &did.work.launched;
    launched.named().for_each(|(kernel, launches)| samples.number(&[&shown(kernel)], launches));
    if launched.other() > 0 {
        samples.number(&[OTHER_KERNELS], launched.other());
    }
}

fn graphs(did: &Did<'_>, samples: &mut Samples, value: u64) {
    if did.work.graphs.launches > 0 {
        samples.number(&[], value);
    }
}

fn graph_launches(did: &Did<'_>, samples: &mut Samples) {
    graphs(did, samples, did.work.graphs.launches);
}

fn graph_kernels(did: &Did<'_>, samples: &mut Samples) {
    graphs(did, samples, did.work.graphs.derived);
}

fn unknown_graphs(did: &Did<'_>, samples: &mut Samples) {
    graphs(did, samples, did.work.graphs.unknown);
}

fn each_copy(did: &Did<'_>, mut then: impl FnMut(&[&str], &CopyTotals)) {
    for copy in &did.work.copies {
        then(&[copy.direction.as_str(), copy.mode()], copy);
    }
}

fn copy_bytes(did: &Did<'_>, samples: &mut Samples) {
    each_copy(did, |labels, copy| samples.number(labels, copy.bytes));
}

fn copies(did: &Did<'_>, samples: &mut Samples) {
    each_copy(did, |labels, copy| samples.number(labels, copy.copies));
}

/// The time of a call that does not wait says nothing of the copy.
fn copy_seconds(did: &Did<'_>, samples: &mut Samples) {
    each_copy(did, |labels, copy| {
        if !copy.is_async {
            samples.nanoseconds(labels, copy.total_ns);
        }
    });
}

fn copy_host_bytes(did: &Did<'_>, samples: &mut Samples) {
    for copy in did.work.copies.iter().filter(|copy| copy.host != HostMemory::Nothing) {
        samples.number(&[copy.direction.as_str(), copy.host.as_str()], copy.bytes);
    }
}

fn gaps(did: &Did<'_>, samples: &mut Samples) {
    let Gaps { after_sync, after_launch, .. } = &did.work.gaps;
    for (kind, gaps) in [(GapKind::AfterSync, after_sync), (GapKind::AfterLaunch, after_launch)] {
        let distribution = distribution(&gaps.lengths, gaps.total_ns);
        if distribution.count > 0 {
            samples.histogram(&[kind.as_str()], &distribution);
        }
    }
}
