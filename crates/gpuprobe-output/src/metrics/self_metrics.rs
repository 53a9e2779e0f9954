//! Metrics of gpuprobe itself: its resources, under the names that every exporter uses, and the requests to its
//! endpoint. They are read with the snapshot, so a scrape is counted in the next snapshot.

use gpuprobe_analysis::{SelfMetrics, Snapshot};

use super::metric::{Kind, Metric, metric, with_unit};
use super::samples::Samples;

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_snapshot_timestamp_seconds",
            Kind::Gauge,
            &[],
            "When these numbers were read, in seconds since 1970.",
            snapshot_time,
        ),
        "seconds",
    ),
    metric(
        "gpuprobe_http_requests",
        Kind::Counter,
        &["code"],
        "Answered requests, by HTTP status.",
        requests,
    ),
    metric(
        "gpuprobe_http_connections_refused",
        Kind::Counter,
        &["reason"],
        "Connections that ended before a complete answer, closed by gpuprobe or by the client.",
        refused,
    ),
    with_unit(
        metric(
            "process_cpu_seconds",
            Kind::Counter,
            &[],
            "CPU time of gpuprobe, in user space and in the Linux kernel.",
            |snapshot, samples| resources(snapshot, |own| samples.nanoseconds(&[], own.cpu_ns)),
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "process_resident_memory_bytes",
            Kind::Gauge,
            &[],
            "Resident memory of gpuprobe.",
            |snapshot, samples| resources(snapshot, |own| samples.number(&[], own.resident_bytes)),
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "process_virtual_memory_bytes",
            Kind::Gauge,
            &[],
            "Virtual memory of gpuprobe.",
            |snapshot, samples| resources(snapshot, |own| samples.number(&[], own.virtual_bytes)),
        ),
        "bytes",
    ),
    metric(
        "process_open_fds",
        Kind::Gauge,
        &[],
        "Open file descriptors of gpuprobe.",
        |snapshot, samples| resources(snapshot, |own| samples.number(&[], own.open_files)),
    ),
    metric(
        "process_max_fds",
        Kind::Gauge,
        &[],
        "Limit of open file descriptors of gpuprobe.",
        |snapshot, samples| {
            resources(snapshot, |own| own.most_files.into_iter().for_each(|most| samples.number(&[], most)))
        },
    ),
    with_unit(
        metric(
            "process_start_time_seconds",
            Kind::Gauge,
            &[],
            "When gpuprobe started, in seconds since 1970.",
            |snapshot, samples| resources(snapshot, |own| samples.nanoseconds(&[], own.started_unix_ns)),
        ),
        "seconds",
    ),
];

fn resources(snapshot: &Snapshot, then: impl FnOnce(&SelfMetrics)) {
    if let Some(own) = &snapshot.self_metrics {
        then(own);
    }
}

fn snapshot_time(snapshot: &Snapshot, samples: &mut Samples) {
    if snapshot.unix_seconds > 0.0 {
        // converting a float to an integer saturates
        samples.nanoseconds(&[], (snapshot.unix_seconds * 1e9) as u64);
    }
}

fn requests(snapshot: &Snapshot, samples: &mut Samples) {
    for answered in &snapshot.served.requests {
        samples.number(&[&answered.code.to_string()], answered.requests);
    }
}

fn refused(snapshot: &Snapshot, samples: &mut Samples) {
    for refused in &snapshot.served.refused {
        samples.number(&[refused.reason], refused.connections);
    }
}
