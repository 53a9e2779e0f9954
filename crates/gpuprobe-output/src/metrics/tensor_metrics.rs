//! Metrics of tensors. They end when their process exits.

use gpuprobe_analysis::{GpuTensors, Snapshot};
use gpuprobe_event::TensorSource;

use super::collect::{begin_named, each_site, gpu_labels};
use super::metric::{Kind, Metric, metric, process_labels, with_unit};
use super::samples::Samples;

const GPU: &[&str] = process_labels!["gpu", "numbering", "source"];
const SITE: &[&str] = process_labels!["site"];

pub(super) const METRICS: &[Metric] = &[
    with_unit(
        metric(
            "gpuprobe_tensor_live_bytes",
            Kind::Gauge,
            GPU,
            "Bytes of live tensors, by the framework's own account. They are part of the live bytes of device memory.",
            live_bytes,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_tensor_reserved_bytes",
            Kind::Gauge,
            GPU,
            "Device memory that the framework has reserved for tensors.",
            reserved_bytes,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_tensor_cached_bytes",
            Kind::Gauge,
            GPU,
            "Device memory that the framework has reserved and no tensor uses.",
            cached_bytes,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_tensor_fragmented_bytes",
            Kind::Gauge,
            GPU,
            "Cached device memory in segments that have live tensors, so that the framework cannot give it back. A lower bound if tensors or segments are from before the process was observed.",
            fragmented_bytes,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_tensor_unattributed_bytes",
            Kind::Gauge,
            GPU,
            "Bytes of live tensors without a call site, because they were allocated before the process was observed.",
            unattributed_bytes,
        ),
        "bytes",
    ),
    with_unit(
        metric(
            "gpuprobe_tensor_site_live_bytes",
            Kind::Gauge,
            SITE,
            "Bytes of live tensors, by the call site that allocated them.",
            site_live_bytes,
        ),
        "bytes",
    ),
    metric(
        "gpuprobe_tensor_site_live_tensors",
        Kind::Gauge,
        SITE,
        "Live tensors, by the call site that allocated them.",
        site_live_tensors,
    ),
    metric(
        "gpuprobe_tensor_leak_suspects",
        Kind::Gauge,
        SITE,
        "Call sites whose live tensors keep rising after warm-up, even at their lowest points.",
        leak_suspects,
    ),
];

fn each_gpu(snapshot: &Snapshot, samples: &mut Samples, value: impl Fn(&GpuTensors) -> Option<u64>) {
    for process in snapshot.tensors.iter().filter(|process| !process.call_sites.has_exited) {
        let of = &process.call_sites;
        begin_named(samples, of.pid, &of.name, of.container.as_ref());
        for gpu in &process.gpus {
            let (number, numbering) = gpu_labels(gpu.gpu);
            if let Some(value) = value(gpu) {
                samples.number(&[&number, numbering, gpu.source.as_str()], value);
            }
        }
    }
}

fn live_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_gpu(snapshot, samples, |gpu| Some(gpu.in_use_bytes));
}

fn reserved_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_gpu(snapshot, samples, |gpu| gpu.reserved_bytes);
}

fn cached_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_gpu(snapshot, samples, |gpu| gpu.cached_bytes);
}

fn fragmented_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    each_gpu(snapshot, samples, GpuTensors::fragmented_bytes);
}

fn unattributed_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    // only a framework's own account has tensors from before
    let of = |gpu: &GpuTensors| (gpu.source == TensorSource::Reports).then(|| gpu.unattributed_bytes());
    each_gpu(snapshot, samples, of);
}

fn site_live_bytes(snapshot: &Snapshot, samples: &mut Samples) {
    let processes = snapshot.tensors.iter().map(|process| &process.call_sites);
    each_site(processes, samples, |site| site.live.bytes, |other| other.bytes);
}

fn site_live_tensors(snapshot: &Snapshot, samples: &mut Samples) {
    let processes = snapshot.tensors.iter().map(|process| &process.call_sites);
    each_site(processes, samples, |site| site.live.count, |other| other.count);
}

fn leak_suspects(snapshot: &Snapshot, samples: &mut Samples) {
    let processes = snapshot.tensors.iter().map(|process| &process.call_sites);
    each_site(processes, samples, |site| u64::from(site.is_suspect()), |_| 0);
}
