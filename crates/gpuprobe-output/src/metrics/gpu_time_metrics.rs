//! Metrics of GPU time, if executions are collected. They are sampled: a daemon collects for a few seconds of every
//! minute.

use gpuprobe_analysis::Snapshot;
use gpuprobe_analysis::launches::OTHER_KERNELS;

use super::collect::gpu_labels;
use super::metric::{Kind, Metric, metric, with_unit};
use super::process_series::shown;
use super::samples::Samples;

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_gpu_kernel_seconds",
            Kind::Counter,
            &["gpu", "numbering", "kernel"],
            "GPU time of CUDA kernels while executions were collected, over all processes with the agent. Divided by \
             `gpuprobe_gpu_kernel_sampled_seconds_total` it is the share of the time, which exceeds 1 if kernels overlap.",
            kernel_seconds,
        ),
        "seconds",
    ),
    with_unit(
        metric(
            "gpuprobe_gpu_kernel_sampled_seconds",
            Kind::Counter,
            &["gpu", "numbering"],
            "Time in which executions on a GPU were collected.",
            sampled_seconds,
        ),
        "seconds",
    ),
    metric(
        "gpuprobe_gpu_kernel_executions",
        Kind::Counter,
        &["gpu", "numbering"],
        "CUDA kernels, and CUDA graphs recorded as a whole, that a GPU executed while executions were collected.",
        executions,
    ),
];

fn kernel_seconds(snapshot: &Snapshot, samples: &mut Samples) {
    for (gpu, time) in &snapshot.gpu_kernel_time {
        let (number, numbering) = gpu_labels(Some(*gpu));
        for (kernel, ns) in time.kernels.named() {
            samples.nanoseconds(&[&number, numbering, &shown(kernel)], ns);
        }
        if time.kernels.other() > 0 {
            samples.nanoseconds(&[&number, numbering, OTHER_KERNELS], time.kernels.other());
        }
    }
}

fn sampled_seconds(snapshot: &Snapshot, samples: &mut Samples) {
    for (gpu, time) in &snapshot.gpu_kernel_time {
        let (number, numbering) = gpu_labels(Some(*gpu));
        samples.nanoseconds(&[&number, numbering], time.sampled_ns);
    }
}

fn executions(snapshot: &Snapshot, samples: &mut Samples) {
    for (gpu, time) in &snapshot.gpu_kernel_time {
        let (number, numbering) = gpu_labels(Some(*gpu));
        samples.number(&[&number, numbering], time.executions);
    }
}
