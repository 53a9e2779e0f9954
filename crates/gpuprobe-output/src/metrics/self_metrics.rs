//! Metrics of gpuprobe itself: what it takes up, under the names that every exporter has for it, and what its endpoint has
//! answered. They are read with the snapshot, as everything else: a scrape is counted in the next one.

use gpuprobe_analysis::{OwnProcess, Snapshot};

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
        "Requests that were answered, by the status of the answer.",
        requests,
    ),
    metric(
        "gpuprobe_http_connections_refused",
        Kind::Counter,
        &["reason"],
        "Connections that ended without a whole answer to a whole request, cut off or by themselves.",
        refused,
    ),
    with_unit(
        metric(
            "process_cpu_seconds",
            Kind::Counter,
            &[],
            "Time that gpuprobe was on a CPU, in user space and in the kernel.",
            |snapshot, samples| own(snapshot, |own| samples.nanoseconds(&[], own.cpu_ns)),
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "process_resident_memory_bytes",
            Kind::Gauge,
            &[],
            "Memory that gpuprobe has in use.",
            |snapshot, samples| own(snapshot, |own| samples.number(&[], own.resident_bytes)),
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "process_virtual_memory_bytes",
            Kind::Gauge,
            &[],
            "Addresses that gpuprobe has in use.",
            |snapshot, samples| own(snapshot, |own| samples.number(&[], own.virtual_bytes)),
        ),
        "bytes",
    ),
    metric(
        "process_open_fds",
        Kind::Gauge,
        &[],
        "Descriptors that gpuprobe has open.",
        |snapshot, samples| own(snapshot, |own| samples.number(&[], own.open_files)),
    ),
    metric(
        "process_max_fds",
        Kind::Gauge,
        &[],
        "Descriptors that gpuprobe may have open.",
        |snapshot, samples| {
            own(snapshot, |own| own.most_files.into_iter().for_each(|most| samples.number(&[], most)))
        },
    ),
    with_unit(
        metric(
            "process_start_time_seconds",
            Kind::Gauge,
            &[],
            "When gpuprobe began, in seconds since 1970.",
            |snapshot, samples| own(snapshot, |own| samples.nanoseconds(&[], own.started_unix_ns)),
        ),
        "seconds",
    ),
];

fn own(snapshot: &Snapshot, then: impl FnOnce(&OwnProcess)) {
    if let Some(own) = &snapshot.own {
        then(own);
    }
}

fn snapshot_time(snapshot: &Snapshot, samples: &mut Samples) {
    if snapshot.unix_seconds > 0.0 {
        // a conversion to an integer saturates
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
