//! The memory report for programs: one JSON object on one line.

use gpuprobe_analysis::{
    CallSiteMemory, GpuStates, GpuTensors, GpuUser, MemoryReport, ProcessCallSites, ProcessTensors,
    TensorReport,
};
use gpuprobe_event::Gpu;
use serde_json::{Value, json};

use crate::memory_view::{NOT_FOLLOWED, reason};

/// The report as a line of JSON, with its line feed. Times are in seconds since the process was first seen. Without
/// `tensors`, it says nothing about them.
pub fn memory_json(
    report: &MemoryReport,
    tensors: Option<&TensorReport>,
    states: &GpuStates,
    unix_seconds: f64,
) -> String {
    let mut lost: serde_json::Map<String, Value> = report
        .losses_affecting_verdicts
        .iter()
        .map(|loss| (loss.cause.as_str().to_owned(), json!(loss.count)))
        .collect();
    if report.not_followed() > 0 {
        lost.insert(NOT_FOLLOWED.to_owned(), json!(report.not_followed()));
    }
    let mut object = json!({
        "unix": unix_seconds,
        "complete": report.is_complete(),
        "losses": lost,
        "processes": report.processes.iter().map(process).collect::<Vec<_>>(),
        "gpu_memory": states.users.iter().filter(|u| u.seen_bytes.is_some()).map(user).collect::<Vec<_>>(),
    });
    if let Some(tensors) = tensors {
        object["tensors"] = json!({
            "complete": tensors.is_complete,
            "processes": tensors.processes.iter().map(process_tensors).collect::<Vec<_>>(),
        });
    }
    format!("{object}\n")
}

/// A process as in the list of processes, with its tensors in place of memory, and with their GPUs.
fn process_tensors(of: &ProcessTensors) -> Value {
    let mut value = process(&of.call_sites);
    value["gpus"] = json!(of.gpus.iter().map(gpu_tensors).collect::<Vec<_>>());
    value
}

fn gpu_tensors(gpu: &GpuTensors) -> Value {
    json!({
        "gpu": gpu.gpu.map(Gpu::number),
        "numbering": if matches!(gpu.gpu, Some(Gpu::OfProcess(_))) { "process" } else { "host" },
        "live_bytes": gpu.live.bytes,
        "live_tensors": gpu.live.count,
        "in_use_bytes": gpu.in_use_bytes,
        "reserved_bytes": gpu.reserved_bytes,
        "cached_bytes": gpu.cached_bytes,
        "fragmented_bytes": gpu.fragmented_bytes(),
        "fragmented_is_exact": gpu.knows_all_segments(),
        "source": gpu.source.as_str(),
        "unattributed_bytes": gpu.unattributed_bytes(),
        "unknown_frees": gpu.unknown_frees,
    })
}

/// The memory of a process on a GPU as NVML reports it, and the part of it that no call explains.
fn user(user: &GpuUser) -> Value {
    json!({
        "pid": user.pid,
        "process": user.name,
        "gpu": user.gpu,
        "memory_bytes": user.memory_bytes,
        "seen_bytes": user.seen_bytes,
        "unexplained_bytes": user.unexplained_bytes(),
    })
}

pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn process(process: &ProcessCallSites) -> Value {
    let since = |ns: &u64| seconds(ns.saturating_sub(process.began_ns));
    json!({
        "pid": process.pid,
        "process": process.name,
        "container": process.container,
        "exited": process.has_exited,
        "watched_seconds": process.ends_ns.last().map(since).unwrap_or_default(),
        "live_bytes": process.live.bytes,
        "live_allocations": process.live.count,
        "call_sites": process.call_sites.iter().map(|p| site(p, process)).collect::<Vec<_>>(),
        "other": {
            "live_bytes": process.other.bytes,
            "live_allocations": process.other.count,
            "call_sites": process.other_sites,
        },
    })
}

fn site(site: &CallSiteMemory, of: &ProcessCallSites) -> Value {
    let growth = &site.judgement.growth;
    let first = site.call_site.frames.first();
    let at = |(end, bytes): (&u64, &u64)| json!([seconds(end.saturating_sub(of.began_ns)), bytes]);
    json!({
        "call_site": site.name,
        "function": first.and_then(|f| f.function.as_ref()),
        "file": first.and_then(|f| f.file.as_ref()),
        "line": first.and_then(|f| f.line),
        "module": first.and_then(|f| f.module.as_ref()),
        "live_bytes": site.live.bytes,
        "live_allocations": site.live.count,
        "allocations": site.allocations,
        "frees": site.frees,
        "freed_with_context": site.freed_with_context,
        "oldest_seconds": site.oldest_age_ns.map(seconds),
        "verdict": site.judgement.verdict,
        "reason": reason(&site.judgement),
        "growth": {
            "bytes": growth.bytes,
            "seconds": seconds(growth.over_ns),
            "bytes_per_second": growth.rate(),
            "fell_bytes": growth.fell_bytes,
            "allocations": growth.allocations,
            "frees": growth.frees,
            "freed_with_context": growth.freed_with_context,
        },
        "live_bytes_over_time": of.ends_ns.iter().zip(&site.curve).map(at).collect::<Vec<_>>(),
        "stack": site.call_site.stack(),
    })
}
