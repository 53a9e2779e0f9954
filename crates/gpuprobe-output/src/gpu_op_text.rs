//! Texts about GPU operations (launches, copies, gaps of streams) that several displays share.

use std::borrow::Cow;

use gpuprobe_analysis::launches::{OTHER_KERNELS, UNKNOWN_KERNEL};
use gpuprobe_analysis::streams::STREAM_OF_THREAD;
use gpuprobe_analysis::{Advice, Bound, CudaKernelLaunches, Gap, GraphLaunches};
use gpuprobe_event::counters::GapKind;

use crate::units::{bytes, count, duration, fitted, printable};

/// The name of a CUDA kernel in at most `width` columns.
pub(crate) fn kernel(name: &str, width: usize) -> String {
    fitted(&printable(name), width).into_owned()
}

/// Whether a row is of one CUDA kernel, and not the sum of those without a name or without a row.
pub(crate) fn is_named(kernel: &CudaKernelLaunches) -> bool {
    !matches!(kernel.kernel.as_str(), UNKNOWN_KERNEL | OTHER_KERNELS)
}

/// The sum of CUDA kernels that are not shown; `None` if all are shown.
pub(crate) fn more_kernels(kernels: &[CudaKernelLaunches]) -> Option<String> {
    let sum = |of: fn(&CudaKernelLaunches) -> u64| kernels.iter().map(of).fold(0, u64::saturating_add);
    let launches = count(sum(|kernel| kernel.totals.launches), "launch", "launches");
    let more = count(kernels.len() as u64, "more kernel", "more kernels");
    let in_graphs = in_graphs(sum(|kernel| kernel.in_graphs));
    (!kernels.is_empty()).then(|| format!("and {more}: {launches}{in_graphs}"))
}

/// `, 12 in graphs`; empty if there are none.
pub(crate) fn in_graphs(runs: u64) -> String {
    if runs == 0 { String::new() } else { format!(", {runs} in graphs") }
}

/// Graph launches and captures, one line for each kind.
pub(crate) fn graphs(graphs: &GraphLaunches) -> Vec<String> {
    let mut lines = Vec::new();
    if graphs.launches > 0 || graphs.errors > 0 {
        let launches = count(graphs.launches, "graph launch", "graph launches");
        let derived = count(graphs.derived, "kernel", "kernels");
        let failed = failed(graphs.errors);
        lines.push(format!("{launches}{failed}: {derived}, derived from how the graphs were made"));
    }
    if graphs.unknown > 0 {
        let launches = count(graphs.unknown, "launch", "launches");
        lines.push(format!("{launches} of graphs that were not observed completely: kernels are missing"));
    }
    if graphs.disabled > 0 {
        let kernels = count(graphs.disabled, "kernel", "kernels");
        lines.push(format!("{kernels} in disabled nodes did not run"));
    }
    if graphs.conditional > 0 {
        let nodes = count(graphs.conditional, "conditional node", "conditional nodes");
        lines.push(format!("{nodes}: whether their kernels ran is not known"));
    }
    if graphs.captured > 0 {
        let kernels = count(graphs.captured, "kernel", "kernels");
        lines.push(format!("{kernels} captured into graphs, and not launched by that"));
    }
    lines
}

/// `, 3 failed`; empty if none did.
pub(crate) fn failed(errors: u64) -> String {
    if errors == 0 { String::new() } else { format!(", {errors} failed") }
}

/// A value of which only a bound is known; `-` if there is no value.
pub(crate) fn bound(bound: Option<Bound>, unit: fn(u64) -> String) -> String {
    match bound {
        None => "-".to_owned(),
        Some(Bound::Below(n)) => format!("< {}", unit(n)),
        Some(Bound::AtLeast(n)) => format!(">= {}", unit(n)),
    }
}

/// The kind of call that a gap began after.
pub(crate) fn began_with(kind: GapKind) -> &'static str {
    match kind {
        GapKind::AfterSync => "after a synchronization",
        GapKind::AfterLaunch => "after a launch",
    }
}

/// The longest CUDA call of the launching thread during a gap. The thread may have been outside CUDA most of the time.
pub(crate) fn meanwhile(gap: &Gap) -> &'static str {
    gap.meanwhile.unwrap_or("no CUDA call")
}

/// The name of a stream.
pub(crate) fn stream(stream: u64) -> Cow<'static, str> {
    match (stream, u32::try_from(stream ^ STREAM_OF_THREAD)) {
        (0, _) => "default stream".into(),
        (_, Ok(thread)) => format!("default of thread {thread}").into(),
        (stream, Err(_)) => format!("stream {stream:#x}").into(),
    }
}

/// The numbers that an advice is based on.
pub(crate) fn evidence(advice: &Advice) -> String {
    match *advice {
        Advice::PageableCopies { copies, bytes: moved, ns, observed_ns } => format!(
            "{} of {} in all with pageable memory took {} over all threads, in {}",
            count(copies, "copy", "copies"),
            bytes(moved),
            duration(ns),
            duration(observed_ns)
        ),
        Advice::TinyCopies { tiny, copies, median, observed_ns } => format!(
            "{tiny} of {} moved less than 4.0 KiB each in {}, the median {}",
            count(copies, "copy", "copies"),
            duration(observed_ns),
            bound(Some(median), bytes)
        ),
        Advice::LaunchBound { launches, calls_ns, gaps_ns, observed_ns } => format!(
            "{} took at least {} over all threads, in {}; time between them {}",
            count(launches, "launch", "launches"),
            duration(calls_ns),
            duration(observed_ns),
            duration(gaps_ns)
        ),
        Advice::SyncInLoop { waits, launches, after_waits_ns, observed_ns } => format!(
            "{waits} of {} came right after a wait: a stream got no launch for at least {} of {}",
            count(launches, "launch", "launches"),
            duration(after_waits_ns),
            duration(observed_ns)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_named_by_kind() {
        assert_eq!(stream(0), "default stream");
        assert_eq!(stream(1 << 63 | 4242), "default of thread 4242");
        assert_eq!(stream(0x5601_0000_0080), "stream 0x560100000080");
        assert_eq!(stream(u64::MAX), "stream 0xffffffffffffffff", "no thread has such an id");
    }

    #[test]
    fn the_last_bucket_is_only_bounded_below() {
        assert_eq!(bound(None, duration), "-");
        assert_eq!(bound(Some(Bound::Below(2_000)), duration), "< 2.0 us");
        assert_eq!(bound(Some(Bound::AtLeast(4096)), bytes), ">= 4.0 KiB");
    }
}
