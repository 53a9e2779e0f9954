//! Counters of processes. [`process_series`](super::process_series) says which series they have.

use std::collections::HashMap;

use gpuprobe_analysis::function_counts::OTHER;
use gpuprobe_analysis::launches::OTHER_KERNELS;
use gpuprobe_analysis::snapshot::FunctionCounts;
use gpuprobe_analysis::{CudaKernelSeries, GapTotals, Gaps};
use gpuprobe_event::counters::{CommandTotals, CopyTotals, GapKind, HostMemory};
use gpuprobe_event::{DeviceTime, Moved};

use super::memory_counters;
use super::metric::{Collect, Kind, Metric, counter_labels};
use super::process_series::shown;
use super::process_totals::ProcessTotals;
use super::samples::Samples;

const BYTES: Option<&str> = Some("bytes");
const SECONDS: Option<&str> = Some("seconds");

/// A counter of processes: name, unit, further labels, help, and how it is collected from a process.
macro_rules! process_counter {
    ($name:literal, $unit:expr, [$($label:literal),*], $help:literal, $collect:path) => {
        Metric {
            family: concat!("gpuprobe_", $name),
            kind: Kind::Counter,
            unit: $unit,
            help: $help,
            labels: counter_labels![$($label),*],
            collect: Collect::Process($collect),
        }
    };
}

pub(super) const METRICS: &[Metric] = &[
    process_counter!("calls", None, ["api", "function"], "Calls of a GPU API function that returned.", calls),
    process_counter!(
        "call_seconds",
        SECONDS,
        ["api", "function"],
        "Time inside calls, as their caller saw it; not the time of the operations on the GPU.",
        call_seconds
    ),
    process_counter!(
        "errors",
        None,
        ["function", "error"],
        "Calls that returned an error, by its name. Calls of the CUDA runtime count if they did not fail in the CUDA driver; docs/reference/limits.md says which of them are seen.",
        errors
    ),
    process_counter!(
        "memory_allocated_bytes",
        BYTES,
        [],
        "Bytes ever allocated.",
        memory_counters::allocated
    ),
    process_counter!(
        "memory_freed_bytes",
        BYTES,
        [],
        "Bytes ever freed by a call, without the bytes that were live when the process exited.",
        memory_counters::freed
    ),
    process_counter!(
        "memory_freed_with_context_allocations",
        None,
        [],
        "Allocations that ended with the context they were made in.",
        memory_counters::freed_with_context_allocations
    ),
    process_counter!(
        "memory_freed_with_context_bytes",
        BYTES,
        [],
        "Bytes that ended with the context they were allocated in.",
        memory_counters::freed_with_context_bytes
    ),
    process_counter!(
        "memory_replaced",
        None,
        [],
        "Addresses that were allocated again while they were live: their frees were not seen.",
        memory_counters::replaced
    ),
    process_counter!(
        "memory_unknown_frees",
        None,
        [],
        "Frees of memory whose allocation was not seen, for example because it was before the probes were attached.",
        memory_counters::unknown_frees
    ),
    process_counter!(
        "out_of_memory",
        None,
        [],
        "Allocations of tensors for which a GPU had no room, as frameworks report them (`--tensors`).",
        memory_counters::out_of_memory
    ),
    process_counter!(
        "kernel_launches",
        None,
        ["kernel"],
        "Launches of the CUDA kernels that a process launched most, and of all others together, without kernels of graphs.",
        kernel_launches
    ),
    process_counter!(
        "kernel_launches_without_return",
        None,
        [],
        "Launches whose return was not probed: their time is that of a similar launch, and they are taken to have succeeded.",
        launches_without_return
    ),
    process_counter!("graph_launches", None, [], "Launches of graphs.", graph_launches),
    process_counter!(
        "graph_kernels_derived",
        None,
        ["kernel"],
        "CUDA kernels run by launches of graphs: not seen, but derived from how the graphs were made.",
        graph_kernels
    ),
    process_counter!(
        "graph_kernels_disabled",
        None,
        [],
        "CUDA kernels of disabled nodes of launched graphs: they did not run.",
        disabled_kernels
    ),
    process_counter!(
        "graph_conditional_nodes",
        None,
        [],
        "Conditional nodes of launched graphs: whether their CUDA kernels ran is not known.",
        conditional_nodes
    ),
    process_counter!(
        "graph_launches_unknown",
        None,
        [],
        "Launches of graphs that were not completely observed: not all their CUDA kernels are among the derived ones.",
        unknown_graphs
    ),
    process_counter!(
        "copy_bytes",
        BYTES,
        ["kind", "mode"],
        "Bytes copied, by direction and by whether the call waits for the copy.",
        copy_bytes
    ),
    process_counter!("copies", None, ["kind", "mode"], "Copies and memsets.", copies),
    process_counter!(
        "copy_seconds",
        SECONDS,
        ["kind", "mode"],
        "Time inside calls that wait for their copy, including everything else they wait for.",
        copy_seconds
    ),
    process_counter!(
        "copy_host_bytes",
        BYTES,
        ["kind", "memory"],
        "Bytes copied from or to host memory, by its kind: pageable memory is copied twice.",
        copy_host_bytes
    ),
    process_counter!(
        "stream_gaps",
        None,
        ["after"],
        "How often nothing was launched on a stream: from the return of a synchronization or a launch to the next launch.",
        gaps
    ),
    process_counter!(
        "stream_idle_seconds",
        SECONDS,
        ["after"],
        "Time in which nothing was launched on a stream: the sum of these gaps.",
        idle_seconds
    ),
    process_counter!(
        "driver_ioctls",
        None,
        ["device", "command"],
        "Ioctls on devices of the NVIDIA kernel module, by the commands that took most time and all others together; with --driver.",
        ioctls
    ),
    process_counter!(
        "driver_ioctl_errors",
        None,
        ["device", "command"],
        "Ioctls that failed, according to errno or to the status of the NVIDIA kernel module; with --driver.",
        ioctl_errors
    ),
    process_counter!(
        "driver_seconds",
        SECONDS,
        ["device", "command"],
        "Time inside ioctls on devices of the NVIDIA kernel module; with --driver.",
        ioctl_seconds
    ),
    process_counter!(
        "unified_faults",
        None,
        ["processor"],
        "Faults of unified memory, by the processor that accessed it; with --driver, if functions of the NVIDIA kernel module can be probed.",
        unified_faults
    ),
    process_counter!(
        "unified_migrations",
        None,
        ["kind"],
        "Migrations of unified memory, by direction; with --driver, if functions of the NVIDIA kernel module can be probed.",
        unified_migrations
    ),
    process_counter!(
        "unified_migrated_bytes",
        BYTES,
        ["kind"],
        "Bytes of unified memory that were migrated; with --driver, if functions of the NVIDIA kernel module can be probed.",
        unified_bytes
    ),
    process_counter!(
        "calls_in_driver",
        None,
        ["api", "function"],
        "Calls of a GPU API function that entered the NVIDIA kernel module by ioctl, mmap, open or poll; with --driver.",
        calls_in_driver
    ),
    process_counter!(
        "call_driver_seconds",
        SECONDS,
        ["api", "function"],
        "The part of the time inside calls that was spent in the NVIDIA kernel module; with --driver.",
        call_driver_seconds
    ),
];

fn each_command(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], CommandTotals)) {
    let asked = &totals.gpu_ops.requests;
    for (device, name, command) in asked.named() {
        let has_series = totals.bounded.is_none_or(|bounded| bounded.has_command(device.as_str(), name));
        let labels = if has_series { [device.as_str(), name] } else { ["", OTHER] };
        then(&labels, command);
    }
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

fn call_seconds(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    for f in totals.functions.iter().filter(|f| is_timed(f)) {
        samples.nanoseconds(&[f.api.as_str(), f.function], f.total_ns);
    }
}

/// Whether the time of calls is known: not if they are only counted at entry.
pub(super) fn is_timed(function: &FunctionCounts) -> bool {
    !function.is_instant && (function.calls == 0 || function.latency.iter().any(|n| *n > 0))
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

fn kernel_launches(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    by_kernel(totals, &totals.gpu_ops.launched, samples);
}

fn launches_without_return(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    let kernels = &totals.gpu_ops.kernels;
    if kernels.iter().any(|kernel| kernel.totals.launches > 0) {
        samples.number(&[], kernels.iter().map(|kernel| kernel.totals.unprobed_returns).sum());
    }
}

fn by_kernel(totals: &ProcessTotals<'_>, series: &CudaKernelSeries, samples: &mut Samples) {
    for (kernel, launches) in series.named() {
        let has_series = totals.bounded.is_none_or(|bounded| bounded.has_kernel(kernel));
        let label = if has_series { shown(kernel) } else { OTHER_KERNELS.into() };
        samples.number(&[&label], launches);
    }
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
    by_kernel(totals, &totals.gpu_ops.graph_kernels, samples);
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

fn each_gaps(totals: &ProcessTotals<'_>, mut then: impl FnMut(&[&str], &GapTotals)) {
    let Gaps { after_sync, after_launch, .. } = &totals.gpu_ops.gaps;
    for (kind, gaps) in [(GapKind::AfterSync, after_sync), (GapKind::AfterLaunch, after_launch)] {
        if gaps.lengths.iter().any(|n| *n > 0) {
            then(&[kind.as_str()], gaps);
        }
    }
}

fn gaps(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_gaps(totals, |labels, gaps| samples.number(labels, gaps.lengths.iter().sum()));
}

fn idle_seconds(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    each_gaps(totals, |labels, gaps| samples.nanoseconds(labels, gaps.total_ns));
}
