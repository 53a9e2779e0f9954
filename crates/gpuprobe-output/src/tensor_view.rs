//! Tensors by process for people: what a framework has reserved and uses on each GPU, and live tensors by call site.

use gpuprobe_analysis::{GpuTensors, TensorReport};
use gpuprobe_event::Gpu;

use crate::memory_view::{MemoryOptions, call_sites, head, line};
use crate::units::bytes;

/// The report as text; empty if there are no tensors.
pub fn tensors(report: &TensorReport, options: &MemoryOptions) -> String {
    let mut out = String::new();
    for process in &report.processes {
        out.push('\n');
        head(&mut out, &process.call_sites, ("tensor", "tensors"));
        for gpu in &process.gpus {
            line(&mut out, format_args!("  {}: {}", gpu_name(gpu.gpu), usage(gpu)));
        }
        call_sites(&mut out, &process.call_sites, report.is_complete, options);
    }
    out
}

/// `GPU 0`
pub(crate) fn gpu_name(gpu: Option<Gpu>) -> String {
    match gpu {
        Some(Gpu::Host(number)) => format!("GPU {number}"),
        Some(Gpu::OfProcess(number)) => format!("GPU {number} by the process's number"),
        None => "unknown GPU".to_owned(),
    }
}

/// What is reserved, in use, cached and fragmented on a GPU, and the part that no observed call explains.
pub(crate) fn usage(gpu: &GpuTensors) -> String {
    let mut text = match gpu.reserved_bytes {
        Some(reserved) => format!("{} reserved, {} in use", bytes(reserved), bytes(gpu.in_use_bytes)),
        None => format!("{} in use, by {}", bytes(gpu.in_use_bytes), gpu.source.as_str()),
    };
    if let Some(cached) = gpu.cached_bytes {
        text += &format!(", {} cached", bytes(cached));
    }
    if let Some(fragmented) = gpu.fragmented_bytes() {
        let bound = if gpu.knows_all_segments() { "" } else { "at least " };
        text += &format!(", {bound}{} of it fragmented", bytes(fragmented));
    }
    let earlier = gpu.unattributed_bytes();
    if earlier > 0 {
        text += &format!("; {} allocated before they were watched", bytes(earlier));
    }
    text
}
