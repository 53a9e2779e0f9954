//! Metrics: one table of them, and two ways to write it down.
//!
//! A metric is one row of `METRICS`, with the function that takes its samples from a snapshot.

mod budget;
mod collect;
mod done;
mod gpu;
mod own;
mod reference;
mod samples;
mod write;

use gpuprobe_analysis::Snapshot;

pub use reference::reference;
use samples::{Distribution, Samples};
pub use write::Format;

/// What a metric's numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
    /// Always 1; its labels say it all.
    Info,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name without `_total`, `_info`, `_bucket`, `_sum` and `_count`.
    pub family: &'static str,
    /// What its numbers mean.
    pub kind: Kind,
    /// The unit, with which the family's name ends.
    pub unit: Option<&'static str>,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// The names of its labels, in order.
    pub labels: &'static [&'static str],
    collect: fn(&Snapshot, &mut Samples),
}

/// The labels that name a process, and further ones behind them.
macro_rules! of_process {
    ($($more:literal),* $(,)?) => {
        &["pid", "process", "container_id", "container", "pod", "namespace", $($more),*]
    };
}
use of_process;

const PROCESS: &[&str] = of_process![];
/// `gpu` is a number of the host. Where it is not certain which one is meant, it is the process's own and `numbering`
/// says so.
const KIND: &[&str] = of_process!["gpu", "numbering", "kind"];
/// A place is told by its function and line, and by its caller where that is not enough; there are few of them for each
/// process, and `other`.
const SITE: &[&str] = of_process!["site"];

const fn metric(
    family: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    collect: fn(&Snapshot, &mut Samples),
) -> Metric {
    Metric { family, kind, unit: None, help, labels, collect }
}

const fn with_unit(metric: Metric, unit: &'static str) -> Metric {
    Metric { unit: Some(unit), ..metric }
}

/// Every metric there is, in the order in which they are written.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    let done = |which: usize| done::METRICS.iter().filter_map(move |both| both.get(which));
    done(0).chain(gpu::METRICS).chain(own::METRICS).chain(budget::METRICS).chain(done(1)).chain(METRICS)
}

/// How it stands with processes, their memory and the probes.
const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_memory_live_bytes",
            Kind::Gauge,
            KIND,
            "Bytes allocated and not yet freed.",
            collect::live_bytes,
        ),
        "bytes",
    ),
    metric(
        "gpuprobe_memory_live_allocations",
        Kind::Gauge,
        KIND,
        "Allocations not yet freed.",
        collect::live_allocations,
    ),
    with_unit(
        metric(
            "gpuprobe_memory_site_live_bytes",
            Kind::Gauge,
            SITE,
            "Bytes allocated and not yet freed, by the place that allocated them.",
            collect::site_live_bytes,
        ),
        "bytes",
    ),
    metric(
        "gpuprobe_memory_site_live_allocations",
        Kind::Gauge,
        SITE,
        "Allocations not yet freed, by the place that made them.",
        collect::site_live_allocations,
    ),
    metric(
        "gpuprobe_memory_leak_suspects",
        Kind::Gauge,
        SITE,
        "Places whose live bytes keep rising after warm-up, even at their lowest moments.",
        collect::leak_suspects,
    ),
    metric(
        "gpuprobe_memory_sites_not_followed",
        Kind::Gauge,
        PROCESS,
        "Ways to allocations that hold memory and are not judged, because too many others do.",
        collect::sites_not_followed,
    ),
    with_unit(
        metric(
            "gpuprobe_memory_peak_bytes",
            Kind::Gauge,
            PROCESS,
            "The most bytes that were live at once.",
            collect::peak,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_stream_gap_longest_seconds",
            Kind::Gauge,
            of_process!["after", "meanwhile"],
            "The longest gaps of streams, by the call that took the launching thread longest meanwhile.",
            collect::longest_gaps,
        ),
        "seconds",
    ),
    metric(
        "gpuprobe_ended_processes",
        Kind::Counter,
        &["process"],
        "Processes that ended and have no series of their own any more: what they did is in the sums by name.",
        collect::ended_processes,
    ),
    metric(
        "gpuprobe_gpu",
        Kind::Info,
        &["gpu", "uuid", "pci"],
        "A GPU of the host: its number, what it is called and its place on the bus.",
        collect::gpus,
    ),
    metric(
        "gpuprobe_events_lost",
        Kind::Counter,
        &["cause"],
        "Things that should have been seen and were not.",
        collect::lost,
    ),
    metric(
        "gpuprobe_probes",
        Kind::Gauge,
        &["library", "state"],
        "Functions of a library by the state of their probe.",
        collect::probes,
    ),
    metric(
        "gpuprobe_libraries_skipped",
        Kind::Counter,
        &["reason"],
        "Files found in place of a CUDA library, and functions and tracepoints of the kernel that were asked for, that are \
         not probed; what they do is not seen.",
        collect::skipped,
    ),
    metric(
        "gpuprobe_build",
        Kind::Info,
        &["version"],
        "The version of gpuprobe that serves these metrics.",
        collect::build,
    ),
];

/// All metrics of a snapshot as text.
pub fn encode(snapshot: &Snapshot, format: Format) -> String {
    let mut out = String::new();
    let mut samples = Samples::default();
    for metric in metrics() {
        samples.begin(metric.labels);
        (metric.collect)(snapshot, &mut samples);
        write::metric(&mut out, metric, &samples, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

#[cfg(test)]
mod tests;
