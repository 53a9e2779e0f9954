//! Metrics of faulty memory and of NVLinks, from NVML. A value that NVML does not report has no series.

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::GpuState;
use gpuprobe_event::gpu_health::{NvLink, NvLinkError};

use super::metric::{Kind, Metric, metric, with_unit};
use super::nvml_metrics::{ECC, GPU, by_severity, each, each_of, flag};
use super::samples::Samples;

const NVLINK: &[&str] = &["gpu", "uuid", "name", "nvlink"];

pub(super) const METRICS: &[Metric] = &[
    metric(
        "gpuprobe_gpu_remapped_rows",
        Kind::Counter,
        ECC,
        "Rows of the memory that spare rows have replaced, by the kind of errors (Ampere and later). Read every 30 s.",
        |snapshot, samples| {
            by_severity(snapshot, samples, |gpu| (gpu.health.rows.corrected, gpu.health.rows.uncorrected));
        },
    ),
    metric(
        "gpuprobe_gpu_row_remap_pending",
        Kind::Gauge,
        GPU,
        "Whether a row of the memory will be remapped at the next reset of the GPU. Read every 30 s.",
        |snapshot, samples| each(snapshot, samples, |gpu| flag(gpu.health.rows.is_pending)),
    ),
    metric(
        "gpuprobe_gpu_row_remap_failed",
        Kind::Gauge,
        GPU,
        "Whether a row of the memory could not be remapped: the GPU needs to be replaced. Read every 30 s.",
        |snapshot, samples| each(snapshot, samples, |gpu| flag(gpu.health.rows.has_failed)),
    ),
    metric(
        "gpuprobe_gpu_retired_pages",
        Kind::Counter,
        ECC,
        "Pages of the memory that are no longer used, by the kind of errors (before Ampere). Read every 30 s.",
        |snapshot, samples| {
            by_severity(snapshot, samples, |gpu| (gpu.health.pages.corrected, gpu.health.pages.uncorrected));
        },
    ),
    metric(
        "gpuprobe_gpu_page_retirement_pending",
        Kind::Gauge,
        GPU,
        "Whether a page of the memory will be retired at the next reset of the GPU. Read every 30 s.",
        |snapshot, samples| each(snapshot, samples, |gpu| flag(gpu.health.pages.is_pending)),
    ),
    metric(
        "gpuprobe_gpu_nvlink_up",
        Kind::Gauge,
        NVLINK,
        "Whether an NVLink is up. One that is down has no other series. Read every 30 s.",
        |snapshot, samples| nvlinks(snapshot, samples, |link| Some(link.is_up.into())),
    ),
    metric(
        "gpuprobe_gpu_nvlink_speed_bytes_per_second",
        Kind::Gauge,
        NVLINK,
        "Speed of an NVLink in each direction. Read every 30 s.",
        |snapshot, samples| nvlinks(snapshot, samples, |link| link.bytes_per_second),
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_nvlink_bytes",
            Kind::Counter,
            &["gpu", "uuid", "name", "nvlink", "direction"],
            "Payload that an NVLink received (rx) and sent (tx). Read every 30 s.",
            nvlink_bytes,
        ),
        "bytes",
    ),
    metric(
        "gpuprobe_gpu_nvlink_errors",
        Kind::Counter,
        &["gpu", "uuid", "name", "nvlink", "error"],
        "Errors of an NVLink. Blackwell and later report other errors than GPUs before. Read every 30 s.",
        nvlink_errors,
    ),
];

fn each_nvlink(snapshot: &Snapshot, mut then: impl FnMut([&str; 4], &NvLink)) {
    each_of(snapshot, |[gpu, uuid, name], state: &GpuState| {
        for link in &state.health.nvlinks {
            then([gpu, uuid, name, &link.number.to_string()], link);
        }
    });
}

fn nvlinks(snapshot: &Snapshot, samples: &mut Samples, value: fn(&NvLink) -> Option<u64>) {
    each_nvlink(snapshot, |labels, link| {
        if let Some(n) = value(link) {
            samples.number(&labels, n);
        }
    });
}

fn nvlink_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_nvlink(snapshot, |[gpu, uuid, name, number], link| {
        for (direction, bytes) in [("rx", link.received_bytes), ("tx", link.sent_bytes)] {
            if let Some(bytes) = bytes {
                samples.number(&[gpu, uuid, name, number, direction], bytes);
            }
        }
    });
}

fn nvlink_errors(snapshot: &Snapshot, samples: &mut Samples) {
    each_nvlink(snapshot, |[gpu, uuid, name, number], link| {
        for (error, count) in NvLinkError::ALL.into_iter().zip(link.errors) {
            if let Some(count) = count {
                samples.number(&[gpu, uuid, name, number, error.as_str()], count);
            }
        }
    });
}
