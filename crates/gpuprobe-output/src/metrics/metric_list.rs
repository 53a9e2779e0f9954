//! The list of all metrics, and the metrics of memory, exited processes, probes and losses.

use super::metric::{Kind, Metric, PROCESS, metric, process_labels, with_unit};
use super::{
    budget_metrics, collect, gpu_health_metrics, gpu_time_metrics, histograms, mig_metrics, nvml_metrics,
    process_counters, self_metrics, tensor_metrics, video_metrics,
};

/// `gpu` is the host's number of a GPU. If that is unknown it is the process's own number, and `numbering` says so.
const KIND: &[&str] = process_labels!["gpu", "numbering", "kind"];
/// `site` is a call site: function and line, and the caller if that is ambiguous. There are few for each process; the
/// rest is `other`.
const SITE: &[&str] = process_labels!["site"];

/// All metrics, in the order in which they are written.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    let of_processes = process_counters::METRICS.iter();
    of_processes
        .chain(histograms::METRICS)
        .chain(nvml_metrics::METRICS)
        .chain(video_metrics::METRICS)
        .chain(gpu_health_metrics::METRICS)
        .chain(mig_metrics::METRICS)
        .chain(self_metrics::METRICS)
        .chain(budget_metrics::METRICS)
        .chain(tensor_metrics::METRICS)
        .chain(gpu_time_metrics::METRICS)
        .chain(METRICS)
}

/// Memory of processes, gaps of streams, exited processes, GPUs, losses and probes.
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
            "Bytes allocated and not yet freed, by the call site that allocated them.",
            collect::site_live_bytes,
        ),
        "bytes",
    ),
    metric(
        "gpuprobe_memory_site_live_allocations",
        Kind::Gauge,
        SITE,
        "Allocations not yet freed, by the call site that made them.",
        collect::site_live_allocations,
    ),
    metric(
        "gpuprobe_memory_leak_suspects",
        Kind::Gauge,
        SITE,
        "Call sites whose live bytes keep rising after warm-up, even at their lowest points.",
        collect::leak_suspects,
    ),
    metric(
        "gpuprobe_memory_sites_not_followed",
        Kind::Gauge,
        PROCESS,
        "Call sites with live memory that are not judged, because the process has too many of them.",
        collect::sites_not_followed,
    ),
    with_unit(
        metric(
            "gpuprobe_memory_peak_bytes",
            Kind::Gauge,
            PROCESS,
            "The most bytes that were live at the same time; of several processes, the most of one.",
            collect::peak,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_stream_gap_longest_seconds",
            Kind::Gauge,
            process_labels!["after", "meanwhile"],
            "The longest gaps of streams, by the longest call of the launching thread during the gap.",
            collect::longest_gaps,
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "gpuprobe_call_pending_seconds",
            Kind::Gauge,
            process_labels!["function"],
            "The age of the oldest call that a process has begun and that has not returned, by its outermost probed function. \
             There is no series while that call is younger than one second. Calls from before the probes were attached are \
             not seen.",
            collect::pending_calls,
        ),
        "seconds",
    ),
    metric(
        "gpuprobe_exited_processes",
        Kind::Counter,
        &["process"],
        "Processes that exited and no longer have series of their own: their counters are summed by name.",
        collect::exited_processes,
    ),
    metric(
        "gpuprobe_gpu",
        Kind::Info,
        &["gpu", "uuid", "pci"],
        "A GPU of the host: its number, its UUID and its PCI address.",
        collect::gpus,
    ),
    metric(
        "gpuprobe_events_lost",
        Kind::Counter,
        &["cause"],
        "Records, rows and names that were lost, by cause.",
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
        "CUDA libraries, and requested functions and tracepoints of the Linux kernel, that are not probed: calls of them are \
         not seen.",
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
