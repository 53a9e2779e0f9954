//! Metrics of the video engines of GPUs, from NVML. A value that NVML does not report has no series.

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::gpu_state::{EncoderSessions, VideoEngine};

use super::metric::{Kind, Metric, metric, with_unit};
use super::nvml_metrics::{GPU, each, each_of, whole};
use super::samples::Samples;

/// Decimal places of seconds.
const MICROSECONDS: u8 = 6;

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_gpu_video_utilization_ratio",
            Kind::Gauge,
            &["gpu", "uuid", "name", "engine"],
            "Share of the last sampling period in which a video engine of the GPU was used.",
            utilization,
        ),
        "ratio",
    ),
    metric(
        "gpuprobe_gpu_encoder_sessions",
        Kind::Gauge,
        GPU,
        "Sessions of the encoder.",
        |snapshot, samples| {
            each(snapshot, samples, |gpu| whole(gpu.encoder_sessions?.count));
        },
    ),
    metric(
        "gpuprobe_gpu_encoder_frames_per_second",
        Kind::Gauge,
        GPU,
        "Frames per second of the encoder, on average over its sessions, if there are any.",
        |snapshot, samples| {
            each(snapshot, samples, |gpu| whole(active(gpu.encoder_sessions)?.frames_per_second));
        },
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_encoder_latency_seconds",
            Kind::Gauge,
            GPU,
            "Time that the encoder takes for a frame, on average over its sessions, if there are any.",
            |snapshot, samples| {
                each(snapshot, samples, |gpu| {
                    Some((active(gpu.encoder_sessions)?.latency_us.into(), MICROSECONDS))
                });
            },
        ),
        "seconds",
    ),
];

/// No session has no average.
fn active(sessions: Option<EncoderSessions>) -> Option<EncoderSessions> {
    sessions.filter(|sessions| sessions.count > 0)
}

fn utilization(snapshot: &Snapshot, samples: &mut Samples) {
    each_of(snapshot, |[gpu, uuid, name], state| {
        for (engine, percent) in VideoEngine::ALL.into_iter().zip(state.video_percent) {
            if let Some(percent) = percent {
                samples.decimal(&[gpu, uuid, name, engine.as_str()], percent.into(), 2);
            }
        }
    });
}
