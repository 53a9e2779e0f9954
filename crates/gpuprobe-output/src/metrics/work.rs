//! Metrics of launches, graphs, copies and gaps.

use std::borrow::Cow;
use std::collections::HashSet;

use gpuprobe_analysis::launches::top;
use gpuprobe_analysis::{Gaps, Snapshot, Work};
use gpuprobe_event::counters::{CopyTotals, GapKind, HostMemory};
use gpuprobe_event::cut::cut;

use super::collect::of_process;
use super::{Distribution, Kind, Metric, NAME, PROCESS, Samples, metric, of_process, with_unit};

/// Kernels of a process that have series of their own; all others are summed up as `other`.
const MOST_KERNELS: usize = 20;
/// Bytes of a name that are shown: some of those that templates make are far longer than a scrape can bear.
const MOST_NAME: usize = 200;

const KERNEL: &[&str] = of_process!["kernel"];
const COPY: &[&str] = of_process!["kind", "mode"];
const GAP: &[&str] = of_process!["after"];
const NAME_KERNEL: &[&str] = &["process", "kernel"];
const NAME_COPY: &[&str] = &["process", "kind", "mode"];

pub(super) const METRICS: &[Metric] = &[
    metric(
        "gpuprobe_kernel_launches",
        Kind::Counter,
        KERNEL,
        "Launches of the kernels that a process launched most, and of all others together; kernels of graphs apart.",
        kernel_launches,
    ),
    metric("gpuprobe_graph_launches", Kind::Counter, PROCESS, "Launches of graphs.", |snapshot, samples| {
        each_graph(snapshot, samples, |work| work.graphs.launches)
    }),
    metric(
        "gpuprobe_graph_kernels_derived",
        Kind::Counter,
        PROCESS,
        "Kernels run by launches of graphs: not seen, but derived from how the graphs were made.",
        |snapshot, samples| each_graph(snapshot, samples, |work| work.graphs.derived),
    ),
    metric(
        "gpuprobe_graph_launches_unknown",
        Kind::Counter,
        PROCESS,
        "Launches of graphs whose making was not seen: their kernels are not among the derived.",
        |snapshot, samples| each_graph(snapshot, samples, |work| work.graphs.unknown),
    ),
    with_unit(
        metric(
            "gpuprobe_copy_bytes",
            Kind::Counter,
            COPY,
            "Bytes copied, by direction and by whether the call waits for it.",
            |snapshot, samples| {
                each_copy(snapshot, samples, |samples, labels, copy| samples.number(labels, copy.bytes))
            },
        ),
        "bytes",
    ),
    metric("gpuprobe_copies", Kind::Counter, COPY, "Copies and memsets.", |snapshot, samples| {
        each_copy(snapshot, samples, |samples, labels, copy| samples.number(labels, copy.copies))
    }),
    with_unit(
        metric(
            "gpuprobe_copy_seconds",
            Kind::Counter,
            COPY,
            "Time inside calls that wait for their copy, with all that they wait for.",
            copy_seconds,
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "gpuprobe_copy_host_bytes",
            Kind::Counter,
            of_process!["kind", "memory"],
            "Bytes copied from or to host memory, by what it is: pageable memory is copied twice.",
            copy_host_bytes,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_stream_gap_seconds",
            Kind::Histogram,
            GAP,
            "Time in which a stream was given nothing: from the return of a synchronisation or of a launch to the next launch.",
            gaps,
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "gpuprobe_stream_gap_longest_seconds",
            Kind::Gauge,
            of_process!["after", "meanwhile"],
            "The longest of these, by the call that took the launching thread longest meanwhile.",
            longest_gaps,
        ),
        "seconds",
    ),
    metric(
        "gpuprobe_ended_kernel_launches",
        Kind::Counter,
        NAME_KERNEL,
        "Launches of kernels by processes that ended and have no series of their own any more.",
        ended_kernel_launches,
    ),
    metric(
        "gpuprobe_ended_graph_kernels_derived",
        Kind::Counter,
        NAME,
        "Kernels run by launches of graphs of these processes.",
        ended_graph_kernels,
    ),
    with_unit(
        metric(
            "gpuprobe_ended_copy_bytes",
            Kind::Counter,
            NAME_COPY,
            "Bytes copied by these processes.",
            ended_copy_bytes,
        ),
        "bytes",
    ),
];

/// A name as it is shown, cut where it is too long.
fn shown(kernel: &str) -> Cow<'_, str> {
    cut(kernel, MOST_NAME)
}

fn kernel_launches(snapshot: &Snapshot, samples: &mut Samples) {
    for process in &snapshot.processes {
        of_process(samples, process);
        for kernel in top(&process.work.kernels, MOST_KERNELS).iter().filter(|k| k.totals.launches > 0) {
            samples.number(&[&shown(&kernel.kernel)], kernel.totals.launches);
        }
    }
}

fn each_graph(snapshot: &Snapshot, samples: &mut Samples, value: impl Fn(&Work) -> u64) {
    for process in snapshot.processes.iter().filter(|p| p.work.graphs.launches > 0) {
        of_process(samples, process);
        samples.number(&[], value(&process.work));
    }
}

fn each_copy(snapshot: &Snapshot, samples: &mut Samples, then: impl Fn(&mut Samples, &[&str], &CopyTotals)) {
    for process in &snapshot.processes {
        of_process(samples, process);
        for copy in &process.work.copies {
            then(samples, &[copy.direction.as_str(), copy.mode()], copy);
        }
    }
}

/// The time of a call that does not wait says nothing of the copy.
fn copy_seconds(snapshot: &Snapshot, samples: &mut Samples) {
    each_copy(snapshot, samples, |samples, labels, copy| {
        if !copy.is_async {
            samples.nanoseconds(labels, copy.total_ns);
        }
    });
}

fn copy_host_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    for process in &snapshot.processes {
        of_process(samples, process);
        for copy in process.work.copies.iter().filter(|copy| copy.host != HostMemory::Nothing) {
            samples.number(&[copy.direction.as_str(), copy.host.as_str()], copy.bytes);
        }
    }
}

fn gaps(snapshot: &Snapshot, samples: &mut Samples) {
    for process in &snapshot.processes {
        of_process(samples, process);
        let Gaps { after_sync, after_launch, .. } = &process.work.gaps;
        for (kind, gaps) in [(GapKind::AfterSync, after_sync), (GapKind::AfterLaunch, after_launch)] {
            // as for calls, the count is that of the buckets
            let count = gaps.lengths.iter().sum();
            if count > 0 {
                let distribution = Distribution { latency: gaps.lengths, sum_ns: gaps.total_ns, count };
                samples.histogram(&[kind.as_str()], &distribution);
            }
        }
    }
}

/// What one of many did is a gauge of a process that runs.
fn longest_gaps(snapshot: &Snapshot, samples: &mut Samples) {
    for process in snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none()) {
        of_process(samples, process);
        let mut told = HashSet::new();
        // the longest come first
        for gap in &process.work.gaps.longest {
            let (after, meanwhile) = (gap.kind.as_str(), gap.meanwhile.unwrap_or("none"));
            if told.insert((after, meanwhile)) {
                samples.nanoseconds(&[after, meanwhile], gap.ns);
            }
        }
    }
}

fn ended_kernel_launches(snapshot: &Snapshot, samples: &mut Samples) {
    for past in &snapshot.past {
        for kernel in top(&past.work.kernels, MOST_KERNELS) {
            samples.number(&[&past.name, &shown(&kernel.kernel)], kernel.totals.launches);
        }
    }
}

fn ended_graph_kernels(snapshot: &Snapshot, samples: &mut Samples) {
    for past in snapshot.past.iter().filter(|p| p.work.graphs.launches > 0) {
        samples.number(&[&past.name], past.work.graphs.derived);
    }
}

fn ended_copy_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    for past in &snapshot.past {
        for copy in &past.work.copies {
            samples.number(&[&past.name, copy.direction.as_str(), copy.mode()], copy.bytes);
        }
    }
}
