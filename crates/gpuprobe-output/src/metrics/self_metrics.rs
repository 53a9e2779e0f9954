//! Metrics of gpuprobe itself: its resources, under the names that every exporter uses, and the requests to its
//! endpoint and to a receiver of OTLP, and recordings on demand. They are read with the snapshot, so a scrape is counted in the next snapshot.

use gpuprobe_analysis::{Pushed, PushedItems, SelfMetrics, Snapshot};

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
    metric(
        "gpuprobe_otlp_requests",
        Kind::Counter,
        &["signal", "result"],
        "Requests that were sent to the receiver of OTLP (`--otlp`), by their result. A request that is sent again counts again.",
        pushed_requests,
    ),
    metric(
        "gpuprobe_otlp_delivered",
        Kind::Counter,
        &["signal"],
        "Data points of metrics, or log records, that the receiver of OTLP took.",
        |snapshot, samples| pushed_items(snapshot, samples, |pushed| &pushed.delivered),
    ),
    metric(
        "gpuprobe_otlp_dropped",
        Kind::Counter,
        &["signal", "cause"],
        "Data points of metrics, or log records, that were not delivered to the receiver of OTLP.",
        dropped,
    ),
    metric(
        "gpuprobe_otlp_waiting",
        Kind::Gauge,
        &["signal"],
        "Data points of metrics, or log records, that wait until the receiver of OTLP takes them.",
        |snapshot, samples| pushed_items(snapshot, samples, |pushed| &pushed.waiting),
    ),
    metric(
        "gpuprobe_recordings",
        Kind::Counter,
        &["result"],
        "Recordings that were asked for by `POST /api/record` or SIGUSR1 (`--record-dir`) and have ended, by their result: `made` or `failed`.",
        recordings,
    ),
    metric(
        "gpuprobe_recordings_deleted",
        Kind::Counter,
        &[],
        "Recordings that were deleted because the directory had reached its size limit (`--record-dir-size`).",
        |snapshot, samples| {
            snapshot.recordings.iter().for_each(|recordings| samples.number(&[], recordings.deleted));
        },
    ),
    with_unit(
        metric(
            "gpuprobe_recordings_stored_bytes",
            Kind::Gauge,
            &[],
            "Size of all recordings in the directory.",
            |snapshot, samples| {
                snapshot
                    .recordings
                    .iter()
                    .for_each(|recordings| samples.number(&[], recordings.stored_bytes));
            },
        ),
        "bytes",
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

fn pushed_requests(snapshot: &Snapshot, samples: &mut Samples) {
    for sent in snapshot.pushed.iter().flat_map(|pushed| &pushed.requests) {
        samples.number(&[sent.signal, sent.result], sent.requests);
    }
}

fn recordings(snapshot: &Snapshot, samples: &mut Samples) {
    if let Some(recordings) = &snapshot.recordings {
        samples.number(&["made"], recordings.made);
        samples.number(&["failed"], recordings.failed);
    }
}

fn pushed_items(snapshot: &Snapshot, samples: &mut Samples, of: fn(&Pushed) -> &Vec<PushedItems>) {
    for items in snapshot.pushed.iter().flat_map(of) {
        samples.number(&[items.signal], items.items);
    }
}

fn dropped(snapshot: &Snapshot, samples: &mut Samples) {
    for items in snapshot.pushed.iter().flat_map(|pushed| &pushed.dropped) {
        samples.number(&[items.signal, items.cause], items.items);
    }
}
