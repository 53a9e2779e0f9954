//! The list of all metrics, and the metrics of memory, exited processes, probes and losses.

use super::metric::{Kind, Metric, PROCESS, metric, process_labels, with_unit};
use super::{budget_metrics, collect, nvml_metrics, process_counters, self_metrics};

/// `gpu` is a number of the host. Where it is not certain which one is meant, it is the process's own and `numbering`
/// says so.
const KIND: &[&str] = process_labels!["gpu", "numbering", "kind"];
/// A place is told by its function and line, and by its caller where that is not enough; there are few of them for each
/// process, and `other`.
const SITE: &[&str] = process_labels!["site"];

/// Every metric there is, in the order in which they are written.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    let of_processes =
        |which: usize| process_counters::METRICS.iter().filter_map(move |both| both.get(which));
    of_processes(0)
        .chain(nvml_metrics::METRICS)
        .chain(self_metrics::METRICS)
        .chain(budget_metrics::METRICS)
        .chain(of_processes(1))
        .chain(METRICS)
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
            process_labels!["after", "meanwhile"],
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
