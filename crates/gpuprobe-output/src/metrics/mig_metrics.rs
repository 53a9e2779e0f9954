//! Metrics of the instances of partitioned GPUs (MIG), from NVML. A value that NVML does not report has no series.

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::gpu_activity::Activity;
use gpuprobe_event::mig::MigInstance;

use super::metric::{Kind, Metric, metric, with_unit};
use super::nvml_metrics::{GPU, each, each_of, flag};
use super::samples::Samples;

const INSTANCE: &[&str] = &["gpu", "gpu_instance", "compute_instance", "profile", "mig_uuid"];

const fn memory(family: &'static str, help: &'static str, collect: fn(&Snapshot, &mut Samples)) -> Metric {
    with_unit(metric(family, Kind::Gauge, INSTANCE, help, collect), "bytes")
}

pub(super) const METRICS: &[Metric] = &[
    metric(
        "gpuprobe_gpu_mig_enabled",
        Kind::Gauge,
        GPU,
        "Whether the GPU is in MIG mode. Read every 30 s.",
        |snapshot, samples| each(snapshot, samples, |gpu| flag(Some(gpu.mig.as_ref()?.is_enabled))),
    ),
    metric(
        "gpuprobe_gpu_mig_enabled_after_reset",
        Kind::Gauge,
        GPU,
        "Whether the GPU will be in MIG mode after its next reset. Read every 30 s.",
        |snapshot, samples| each(snapshot, samples, |gpu| flag(Some(gpu.mig.as_ref()?.will_be_enabled))),
    ),
    metric(
        "gpuprobe_mig_multiprocessors",
        Kind::Gauge,
        INSTANCE,
        "Multiprocessors of a MIG instance. The list of instances is read every 30 s.",
        |snapshot, samples| instances(snapshot, samples, |instance| instance.multiprocessors.map(u64::from)),
    ),
    memory(
        "gpuprobe_mig_memory_used_bytes",
        "Memory of a MIG instance in use. Compute instances of a GPU instance share its memory.",
        |snapshot, samples| instances(snapshot, samples, |instance| Some(instance.memory?.used_bytes)),
    ),
    memory("gpuprobe_mig_memory_free_bytes", "Memory of a MIG instance not in use.", |snapshot, samples| {
        instances(snapshot, samples, |instance| Some(instance.memory?.free_bytes))
    }),
    memory("gpuprobe_mig_memory_total_bytes", "Total memory of a MIG instance.", |snapshot, samples| {
        instances(snapshot, samples, |instance| Some(instance.memory?.total_bytes))
    }),
    with_unit(
        metric(
            "gpuprobe_mig_activity_ratio",
            Kind::Gauge,
            &["gpu", "gpu_instance", "part"],
            "How much a part of a GPU instance (MIG) was used since the reading before, of what is possible, by GPM (Hopper and later).",
            activity,
        ),
        "ratio",
    ),
];

fn instances(snapshot: &Snapshot, samples: &mut Samples, value: fn(&MigInstance) -> Option<u64>) {
    each_of(snapshot, |[gpu, ..], state| {
        for instance in state.mig.iter().flat_map(|mig| &mig.instances) {
            if let Some(n) = value(instance) {
                let MigInstance { gpu_instance, compute_instance, profile, uuid, .. } = instance;
                let labels =
                    [gpu, &gpu_instance.to_string(), &compute_instance.to_string(), profile.as_str(), uuid];
                samples.number(&labels, n);
            }
        }
    });
}

fn activity(snapshot: &Snapshot, samples: &mut Samples) {
    each_of(snapshot, |[gpu, ..], state| {
        for (number, activity) in state.mig.iter().flat_map(|mig| &mig.activities) {
            for (part, share) in Activity::shares(activity) {
                samples.decimal(&[gpu, &number.to_string(), part.as_str()], share.millionths().into(), 6);
            }
        }
    });
}
