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

use super::collect::begin_process;
use super::metric::{Kind, Metric, process_labels};
use super::samples::{Distribution, Samples};

/// Bytes of a name that are shown: some of those that templates make are far longer than a scrape can bear.
const MOST_NAME: usize = 200;

/// What one process did, or all of one name that ended.
struct ProcessTotals<'a> {
    functions: &'a [FunctionCounts],
    failures: &'a [Failure],
    /// `None` where they did nothing to it.
    memory: Option<&'a MemoryCounts>,
    work: &'a Work,
}

fn of_processes(snapshot: &Snapshot, samples: &mut Samples, collect: fn(&ProcessTotals<'_>, &mut Samples)) {
    for process in &snapshot.processes {
        begin_process(samples, process);
        let memory = (!process.memory.held.is_empty()).then_some(&process.memory);
        let (functions, failures) = (&process.functions, &process.failures);
        collect(&ProcessTotals { functions, failures, memory, work: &process.work }, samples);
    }
}

fn of_past(snapshot: &Snapshot, samples: &mut Samples, collect: fn(&ProcessTotals<'_>, &mut Samples)) {
    for past in &snapshot.past {
        samples.of(&[&past.name]);
        let memory = (past.memory != MemoryCounts::default()).then_some(&past.memory);
        let (functions, failures) = (&past.functions, &past.failures);
        collect(&ProcessTotals { functions, failures, memory, work: &past.work }, samples);
    }
}

/// A metric of processes and that of those which ended: name, kind, unit, further labels, meaning, and how it is taken.
/// Sums over processes that ended bear no pid and no container: both grow without bound.
macro_rules! process_metric {
    ($name:literal, $kind:ident, $unit:expr, [$($label:literal),*], $help:literal, $collect:path) => {
        [
            Metric {
                family: concat!("gpuprobe_", $name),
                kind: Kind::$kind,
                unit: $unit,
                help: $help,
                labels: process_labels![$($label),*],
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
    process_metric!(
        "calls",
        Counter,
        None,
        ["api", "function"],
        "Calls of a GPU API function that returned.",
        calls
    ),
    process_metric!(
        "call_duration_seconds",
        Histogram,
        SECONDS,
        ["api", "function"],
        "Time inside a call, as its caller saw it; not the time of the work on the GPU.",
        durations
    ),
    process_metric!(
        "errors",
        Counter,
        None,
        ["function", "error"],
        "Calls that returned a failure, by its name; those of the runtime that never reached the driver, where its function is not called all the time.",
        errors
    ),
    process_metric!("memory_allocated_bytes", Counter, BYTES, [], "Bytes ever allocated.", allocated),
    process_metric!(
        "memory_freed_bytes",
        Counter,
        BYTES,
        [],
        "Bytes ever freed by a call; what a process holds at its end is not among them.",
        freed
    ),
    process_metric!(
        "memory_ended_allocations",
        Counter,
        None,
        [],
        "Allocations that ended with the context they were made in.",
        ended_allocations
    ),
    process_metric!(
        "memory_ended_bytes",
        Counter,
        BYTES,
        [],
        "Bytes that ended with the context they were allocated in.",
        ended_bytes
    ),
    process_metric!(
        "memory_replaced",
        Counter,
        None,
        [],
        "Addresses allocated again while they were still live: their frees were missed.",
        replaced
    ),
    process_metric!(
        "memory_unknown_frees",
        Counter,
        None,
        [],
        "Frees of memory whose allocation was not seen, as of what was allocated before the probes came.",
        unknown_frees
    ),
    process_metric!(
        "kernel_launches",
        Counter,
        None,
        ["kernel"],
        "Launches of the kernels that a process launched most, and of all others together; kernels of graphs apart.",
        kernel_launches
    ),
    process_metric!("graph_launches", Counter, None, [], "Launches of graphs.", graph_launches),
    process_metric!(
        "graph_kernels_derived",
        Counter,
        None,
        [],
        "Kernels run by launches of graphs: not seen, but derived from how the graphs were made.",
        graph_kernels
    ),
    process_metric!(
        "graph_launches_unknown",
        Counter,
        None,
        [],
        "Launches of graphs whose making was not seen: their kernels are not among the derived.",
        unknown_graphs
    ),
    process_metric!(
        "copy_bytes",
        Counter,
        BYTES,
        ["kind", "mode"],
        "Bytes copied, by direction and by whether the call waits for it.",
        copy_bytes
    ),
    process_metric!("copies", Counter, None, ["kind", "mode"], "Copies and memsets.", copies),
    process_metric!(
        "copy_seconds",
        Counter,
        SECONDS,
        ["kind", "mode"],
        "Time inside calls that wait for their copy, with all that they wait for.",
        copy_seconds
    ),
    process_metric!(
        "copy_host_bytes",
        Counter,
        BYTES,
        ["kind", "memory"],
        "Bytes copied from or to host memory, by what it is: pageable memory is copied twice.",
        copy_host_bytes
    ),
    process_metric!(
        "stream_gap_seconds",
        Histogram,
        SECONDS,
        ["after"],
        "Time in which a stream was given nothing: from the return of a synchronisation or of a launch to the next launch.",
        gaps
    ),
    process_metric!(
        "driver_ioctls",
        Counter,
        None,
        ["device", "command"],
        "Ioctls on the driver's devices, by the commands that took most time and all others together; with --kernel.",
        ioctls
    ),
    process_metric!(
        "driver_ioctl_errors",
        Counter,
        None,
        ["device", "command"],
        "Ioctls that failed, by the system's word or by the driver's own status; with --kernel.",
        ioctl_errors
    ),
    process_metric!(
        "driver_seconds",
        Counter,
        SECONDS,
        ["device", "command"],
        "Time inside these ioctls; with --kernel.",
        ioctl_seconds
    ),
    process_metric!(
        "unified_faults",
        Counter,
        None,
        ["processor"],
        "Faults of unified memory, by who touched it; with --kernel, where the driver's functions can be probed.",
        unified_faults
    ),
    process_metric!(
        "unified_migrations",
        Counter,
        None,
        ["kind"],
        "Migrations of unified memory, by direction; with --kernel, where the driver's functions can be probed.",
        unified_migrations
    ),
    process_metric!(
        "unified_migrated_bytes",
        Counter,
        BYTES,
        ["kind"],
        "Unified memory that was moved; with --kernel, where the driver's functions can be probed.",
        unified_bytes
    ),
    process_metric!(
        "calls_in_driver",
        Counter,
        None,
        ["api", "function"],
        "Calls of a GPU API function that entered the driver: made an ioctl, mmap, open or poll on its devices; with --kernel.",
        calls_in_driver
    ),
    process_metric!(
        "call_driver_seconds",
        Counter,
        SECONDS,
        ["api", "function"],
        "Of the time inside calls, what was spent in the driver; with --kernel.",
        call_driver_seconds
    ),
];

fn each_command(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], CommandTotals)) {
    let asked = &totals.work.asked;
    asked.named().for_each(|(device, name, command)| then(&[device.as_str(), name], command));
    if asked.other() != CommandTotals::default() {
        then(&["", OTHER], asked.other());
    }
}

fn ioctls(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_command(totals, |labels, command| samples.number(labels, command.calls));
}

fn ioctl_errors(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_command(totals, |labels, command| {
        if command.failures > 0 {
            samples.number(labels, command.failures);
        }
    });
}

fn ioctl_seconds(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_command(totals, |labels, command| samples.nanoseconds(labels, command.total_ns));
}

fn unified_faults(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    for (processor, faults) in totals.work.asked.unified().faults().into_iter().filter(|(_, n)| *n > 0) {
        samples.number(&[processor], faults);
    }
}

fn each_moved(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], Moved)) {
    let moved = totals.work.asked.unified().moved();
    moved
        .into_iter()
        .filter(|(_, moved)| moved.migrations > 0)
        .for_each(|(kind, moved)| then(&[kind], moved));
}

fn unified_migrations(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_moved(totals, |labels, moved| samples.number(labels, moved.migrations));
}

fn unified_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_moved(totals, |labels, moved| samples.number(labels, moved.bytes));
}

fn each_entered(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], DriverTime)) {
    for f in totals.functions.iter().filter(|f| f.driver.calls > 0) {
        then(&[f.api.as_str(), f.function], f.driver);
    }
}

fn calls_in_driver(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_entered(totals, |labels, driver| samples.number(labels, driver.calls));
}

fn call_driver_seconds(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_entered(totals, |labels, driver| samples.nanoseconds(labels, driver.ns));
}

fn calls(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    totals.functions.iter().for_each(|f| samples.number(&[f.api.as_str(), f.function], f.calls));
}

fn durations(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    // of what is only counted as it begins, nobody knows the time
    let is_timed = |f: &&FunctionCounts| f.calls == 0 || f.latency.iter().any(|n| *n > 0);
    for f in totals.functions.iter().filter(|f| !f.is_moment).filter(is_timed) {
        samples.histogram(&[f.api.as_str(), f.function], &distribution(&f.latency, f.total_ns));
    }
}

/// The count is that of the buckets: rows are read while they change, and a histogram must add up.
fn distribution(buckets: &[u64; LATENCY_BUCKETS], sum_ns: u64) -> Distribution {
    Distribution { latency: *buckets, sum_ns, count: buckets.iter().sum() }
}

/// Failures by name, and under [`OTHER`] those that the kernel side had no room for.
fn errors(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    let mut named: HashMap<_, u64> = HashMap::new();
    for failure in totals.failures {
        let sum = named.entry((failure.api, failure.function)).or_default();
        *sum = sum.saturating_add(failure.count);
        samples.number(&[failure.function, failure.error], failure.count);
    }
    // those of calls on the driver's devices are told by command
    for f in totals.functions.iter().filter(|f| !f.is_system_call()) {
        let rest = f.errors.saturating_sub(named.get(&(f.api, f.function)).copied().unwrap_or_default());
        if rest > 0 {
            samples.number(&[f.function, OTHER], rest);
        }
    }
}

fn memory(totals: &ProcessTotals<'_>, samples: &mut Samples, value: impl Fn(&MemoryCounts) -> u64) {
    totals.memory.iter().for_each(|memory| samples.number(&[], value(memory)));
}

fn allocated(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.allocated_bytes);
}

fn freed(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.freed_bytes);
}

fn ended_allocations(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.ended_allocations);
}

fn ended_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.ended_bytes);
}

fn replaced(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.replaced);
}

fn unknown_frees(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.unknown_frees);
}

/// A name as it is shown, cut where it is too long.
fn shown(kernel: &str) -> Cow<'_, str> {
    cut(kernel, MOST_NAME)
}

fn kernel_launches(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    let launched = &totals.work.launched;
    launched.named().for_each(|(kernel, launches)| samples.number(&[&shown(kernel)], launches));
    if launched.other() > 0 {
        samples.number(&[OTHER_KERNELS], launched.other());
    }
}

fn graphs(totals: &ProcessTotals<'_>, samples: &mut Samples, value: u64) {
    if totals.work.graphs.launches > 0 {
        samples.number(&[], value);
    }
}

fn graph_launches(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    graphs(totals, samples, totals.work.graphs.launches);
}

fn graph_kernels(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    graphs(totals, samples, totals.work.graphs.derived);
}

fn unknown_graphs(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    graphs(totals, samples, totals.work.graphs.unknown);
}

fn each_copy(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], &CopyTotals)) {
    for copy in &totals.work.copies {
        then(&[copy.direction.as_str(), copy.mode()], copy);
    }
}

fn copy_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_copy(totals, |labels, copy| samples.number(labels, copy.bytes));
}

fn copies(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_copy(totals, |labels, copy| samples.number(labels, copy.copies));
}

/// The time of a call that does not wait says nothing of the copy.
fn copy_seconds(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_copy(totals, |labels, copy| {
        if !copy.is_async {
            samples.nanoseconds(labels, copy.total_ns);
        }
    });
}

fn copy_host_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    for copy in totals.work.copies.iter().filter(|copy| copy.host != HostMemory::Nothing) {
        samples.number(&[copy.direction.as_str(), copy.host.as_str()], copy.bytes);
    }
}

fn gaps(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    let Gaps { after_sync, after_launch, .. } = &totals.work.gaps;
    for (kind, gaps) in [(GapKind::AfterSync, after_sync), (GapKind::AfterLaunch, after_launch)] {
        let distribution = distribution(&gaps.lengths, gaps.total_ns);
        if distribution.count > 0 {
            samples.histogram(&[kind.as_str()], &distribution);
        }
    }
}
