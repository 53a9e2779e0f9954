//! Counters of processes: per process while it is shown, and summed by name after it has exited. Each row of the table
//! defines both metrics, so that together they always count everything.

use std::borrow::Cow;
use std::collections::HashMap;

use gpuprobe_analysis::function_counts::OTHER;
use gpuprobe_analysis::launches::OTHER_KERNELS;
use gpuprobe_analysis::snapshot::{Failure, FunctionCounts, MemoryCounts};
use gpuprobe_analysis::{CudaKernelSeries, Gaps, GpuOps, Snapshot};
use gpuprobe_event::counters::{CommandTotals, CopyTotals, GapKind, HostMemory, LATENCY_BUCKETS};
use gpuprobe_event::cut::cut;
use gpuprobe_event::{DeviceTime, Moved};

use super::collect::begin_process;
use super::memory_counters;
use super::metric::{Kind, Metric, process_labels};
use super::samples::{Distribution, Samples};

/// Longer names of CUDA kernels are cut: names made from templates are far too long for a scrape.
const MOST_NAME: usize = 200;

/// The totals of one process, or of all exited processes of one name.
pub(super) struct ProcessTotals<'a> {
    functions: &'a [FunctionCounts],
    failures: &'a [Failure],
    /// `None` if they allocated and freed nothing.
    pub(super) memory: Option<&'a MemoryCounts>,
    gpu_ops: &'a GpuOps,
    /// Whether tensors are accounted for.
    pub(super) has_tensors: bool,
}

fn of_processes(snapshot: &Snapshot, samples: &mut Samples, collect: fn(&ProcessTotals<'_>, &mut Samples)) {
    for process in &snapshot.processes {
        begin_process(samples, process);
        let memory = (!process.memory.live.is_empty()).then_some(&process.memory);
        let (functions, failures) = (&process.functions, &process.failures);
        let (gpu_ops, has_tensors) = (&process.gpu_ops, snapshot.has_tensors);
        collect(&ProcessTotals { functions, failures, memory, gpu_ops, has_tensors }, samples);
    }
}

fn of_past(snapshot: &Snapshot, samples: &mut Samples, collect: fn(&ProcessTotals<'_>, &mut Samples)) {
    for past in &snapshot.past {
        samples.set_first_labels(&[&past.name]);
        let memory = (past.memory != MemoryCounts::default()).then_some(&past.memory);
        let (functions, failures) = (&past.functions, &past.failures);
        let (gpu_ops, has_tensors) = (&past.gpu_ops, snapshot.has_tensors);
        collect(&ProcessTotals { functions, failures, memory, gpu_ops, has_tensors }, samples);
    }
}

/// A metric of processes and its sum over exited ones: name, kind, unit, further labels, help, and how it is collected.
/// Sums over exited processes have no labels for pid and container, because these grow without bound.
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
                family: concat!("gpuprobe_exited_", $name),
                kind: Kind::$kind,
                unit: $unit,
                help: concat!($help, " Sum over processes that exited and no longer have series of their own."),
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
        "Time inside a call, as its caller saw it; not the time of the operation on the GPU.",
        durations
    ),
    process_metric!(
        "errors",
        Counter,
        None,
        ["function", "error"],
        "Calls that returned an error, by its name. Calls of the CUDA runtime count if they did not reach the CUDA driver, and only for functions that are not called all the time.",
        errors
    ),
    process_metric!(
        "memory_allocated_bytes",
        Counter,
        BYTES,
        [],
        "Bytes ever allocated.",
        memory_counters::allocated
    ),
    process_metric!(
        "memory_freed_bytes",
        Counter,
        BYTES,
        [],
        "Bytes ever freed by a call, without the bytes that were live when the process exited.",
        memory_counters::freed
    ),
    process_metric!(
        "memory_freed_with_context_allocations",
        Counter,
        None,
        [],
        "Allocations that ended with the context they were made in.",
        memory_counters::freed_with_context_allocations
    ),
    process_metric!(
        "memory_freed_with_context_bytes",
        Counter,
        BYTES,
        [],
        "Bytes that ended with the context they were allocated in.",
        memory_counters::freed_with_context_bytes
    ),
    process_metric!(
        "memory_replaced",
        Counter,
        None,
        [],
        "Addresses that were allocated again while they were live: their frees were not seen.",
        memory_counters::replaced
    ),
    process_metric!(
        "memory_unknown_frees",
        Counter,
        None,
        [],
        "Frees of memory whose allocation was not seen, for example because it was before the probes were attached.",
        memory_counters::unknown_frees
    ),
    process_metric!(
        "out_of_memory",
        Counter,
        None,
        [],
        "Allocations of tensors for which a GPU had no room, as frameworks report them (`--tensors`).",
        memory_counters::out_of_memory
    ),
    process_metric!(
        "kernel_launches",
        Counter,
        None,
        ["kernel"],
        "Launches of the CUDA kernels that a process launched most, and of all others together, without kernels of graphs.",
        kernel_launches
    ),
    process_metric!("graph_launches", Counter, None, [], "Launches of graphs.", graph_launches),
    process_metric!(
        "graph_kernels_derived",
        Counter,
        None,
        ["kernel"],
        "CUDA kernels run by launches of graphs: not seen, but derived from how the graphs were made.",
        graph_kernels
    ),
    process_metric!(
        "graph_kernels_disabled",
        Counter,
        None,
        [],
        "CUDA kernels of disabled nodes of launched graphs: they did not run.",
        disabled_kernels
    ),
    process_metric!(
        "graph_conditional_nodes",
        Counter,
        None,
        [],
        "Conditional nodes of launched graphs: whether their CUDA kernels ran is not known.",
        conditional_nodes
    ),
    process_metric!(
        "graph_launches_unknown",
        Counter,
        None,
        [],
        "Launches of graphs that were not completely observed: not all their CUDA kernels are among the derived ones.",
        unknown_graphs
    ),
    process_metric!(
        "copy_bytes",
        Counter,
        BYTES,
        ["kind", "mode"],
        "Bytes copied, by direction and by whether the call waits for the copy.",
        copy_bytes
    ),
    process_metric!("copies", Counter, None, ["kind", "mode"], "Copies and memsets.", copies),
    process_metric!(
        "copy_seconds",
        Counter,
        SECONDS,
        ["kind", "mode"],
        "Time inside calls that wait for their copy, including everything else they wait for.",
        copy_seconds
    ),
    process_metric!(
        "copy_host_bytes",
        Counter,
        BYTES,
        ["kind", "memory"],
        "Bytes copied from or to host memory, by its kind: pageable memory is copied twice.",
        copy_host_bytes
    ),
    process_metric!(
        "stream_gap_seconds",
        Histogram,
        SECONDS,
        ["after"],
        "Time in which nothing was launched on a stream: from the return of a synchronization or a launch to the next launch.",
        gaps
    ),
    process_metric!(
        "driver_ioctls",
        Counter,
        None,
        ["device", "command"],
        "Ioctls on devices of the NVIDIA kernel module, by the commands that took most time and all others together; with --driver.",
        ioctls
    ),
    process_metric!(
        "driver_ioctl_errors",
        Counter,
        None,
        ["device", "command"],
        "Ioctls that failed, according to errno or to the status of the NVIDIA kernel module; with --driver.",
        ioctl_errors
    ),
    process_metric!(
        "driver_seconds",
        Counter,
        SECONDS,
        ["device", "command"],
        "Time inside ioctls on devices of the NVIDIA kernel module; with --driver.",
        ioctl_seconds
    ),
    process_metric!(
        "unified_faults",
        Counter,
        None,
        ["processor"],
        "Faults of unified memory, by the processor that accessed it; with --driver, if functions of the NVIDIA kernel module can be probed.",
        unified_faults
    ),
    process_metric!(
        "unified_migrations",
        Counter,
        None,
        ["kind"],
        "Migrations of unified memory, by direction; with --driver, if functions of the NVIDIA kernel module can be probed.",
        unified_migrations
    ),
    process_metric!(
        "unified_migrated_bytes",
        Counter,
        BYTES,
        ["kind"],
        "Bytes of unified memory that were migrated; with --driver, if functions of the NVIDIA kernel module can be probed.",
        unified_bytes
    ),
    process_metric!(
        "calls_in_driver",
        Counter,
        None,
        ["api", "function"],
        "Calls of a GPU API function that entered the NVIDIA kernel module by ioctl, mmap, open or poll; with --driver.",
        calls_in_driver
    ),
    process_metric!(
        "call_driver_seconds",
        Counter,
        SECONDS,
        ["api", "function"],
        "The part of the time inside calls that was spent in the NVIDIA kernel module; with --driver.",
        call_driver_seconds
    ),
];

fn each_command(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], CommandTotals)) {
    let asked = &totals.gpu_ops.requests;
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
    for (processor, faults) in totals.gpu_ops.requests.unified().faults().into_iter().filter(|(_, n)| *n > 0)
    {
        samples.number(&[processor], faults);
    }
}

fn each_moved(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], Moved)) {
    let moved = totals.gpu_ops.requests.unified().moved();
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

fn each_entered(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], DeviceTime)) {
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
    // the time of calls that are only counted at entry is unknown
    let is_timed = |f: &&FunctionCounts| f.calls == 0 || f.latency.iter().any(|n| *n > 0);
    for f in totals.functions.iter().filter(|f| !f.is_instant).filter(is_timed) {
        samples.histogram(&[f.api.as_str(), f.function], &distribution(&f.latency, f.total_ns));
    }
}

/// The count is the sum of the buckets, because a histogram must add up although rows change while they are read.
fn distribution(buckets: &[u64; LATENCY_BUCKETS], sum_ns: u64) -> Distribution {
    Distribution { latency: *buckets, sum_ns, count: buckets.iter().sum() }
}

/// Failures by name, and under [`OTHER`] those for which the BPF table had no room.
fn errors(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    let mut named: HashMap<_, u64> = HashMap::new();
    for failure in totals.failures {
        let sum = named.entry((failure.api, failure.function)).or_default();
        *sum = sum.saturating_add(failure.count);
        samples.number(&[failure.function, failure.error], failure.count);
    }
    // failed ioctls are counted by command
    for f in totals.functions.iter().filter(|f| !f.is_system_call()) {
        let rest = f.errors.saturating_sub(named.get(&(f.api, f.function)).copied().unwrap_or_default());
        if rest > 0 {
            samples.number(&[f.function, OTHER], rest);
        }
    }
}

/// A name, cut if it is too long.
pub(super) fn shown(kernel: &str) -> Cow<'_, str> {
    cut(kernel, MOST_NAME)
}

fn kernel_launches(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    by_kernel(&totals.gpu_ops.launched, samples);
}

fn by_kernel(series: &CudaKernelSeries, samples: &mut Samples) {
    series.named().for_each(|(kernel, launches)| samples.number(&[&shown(kernel)], launches));
    if series.other() > 0 {
        samples.number(&[OTHER_KERNELS], series.other());
    }
}

fn graphs(totals: &ProcessTotals<'_>, samples: &mut Samples, value: u64) {
    if totals.gpu_ops.graphs.launches > 0 {
        samples.number(&[], value);
    }
}

fn graph_launches(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    graphs(totals, samples, totals.gpu_ops.graphs.launches);
}

fn graph_kernels(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    by_kernel(&totals.gpu_ops.graph_kernels, samples);
}

/// A value that most processes do not have.
fn of_graphs(value: u64, samples: &mut Samples) {
    if value > 0 {
        samples.number(&[], value);
    }
}

fn disabled_kernels(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    of_graphs(totals.gpu_ops.graphs.disabled, samples);
}

fn conditional_nodes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    of_graphs(totals.gpu_ops.graphs.conditional, samples);
}

fn unknown_graphs(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    graphs(totals, samples, totals.gpu_ops.graphs.unknown);
}

fn each_copy(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], &CopyTotals)) {
    for copy in &totals.gpu_ops.copies {
        then(&[copy.direction.as_str(), copy.mode()], copy);
    }
}

fn copy_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_copy(totals, |labels, copy| samples.number(labels, copy.bytes));
}

fn copies(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_copy(totals, |labels, copy| samples.number(labels, copy.copies));
}

/// Only for synchronous copies: the time of an asynchronous call is not the time of the copy.
fn copy_seconds(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_copy(totals, |labels, copy| {
        if !copy.is_async {
            samples.nanoseconds(labels, copy.total_ns);
        }
    });
}

fn copy_host_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    for copy in totals.gpu_ops.copies.iter().filter(|copy| copy.host != HostMemory::Nothing) {
        samples.number(&[copy.direction.as_str(), copy.host.as_str()], copy.bytes);
    }
}

fn gaps(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    let Gaps { after_sync, after_launch, .. } = &totals.gpu_ops.gaps;
    for (kind, gaps) in [(GapKind::AfterSync, after_sync), (GapKind::AfterLaunch, after_launch)] {
        let distribution = distribution(&gaps.lengths, gaps.total_ns);
        if distribution.count > 0 {
            samples.histogram(&[kind.as_str()], &distribution);
        }
    }
}
