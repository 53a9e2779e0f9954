//! The same report for programs: one object in one line.

use gpuprobe_analysis::{GpuStates, GpuUser, MemoryReport, PlaceMemory, ProcessPlaces};
use serde_json::{Value, json};

use crate::memory_view::{NOT_FOLLOWED, reason};

/// The report as a line of JSON, with its line feed. Times are in seconds, `at` is since the process was first seen.
pub fn memory_json(report: &MemoryReport, states: &GpuStates, unix_seconds: f64) -> String {
    let mut missing: serde_json::Map<String, Value> =
        report.missing.iter().map(|loss| (loss.cause.as_str().to_owned(), json!(loss.count))).collect();
    if report.not_followed() > 0 {
        missing.insert(NOT_FOLLOWED.to_owned(), json!(report.not_followed()));
    }
    let object = json!({
        "unix": unix_seconds,
        "complete": report.is_complete(),
        "missing": missing,
        "processes": report.processes.iter().map(process).collect::<Vec<_>>(),
        "gpu_memory": states.users.iter().filter(|u| u.seen_bytes.is_some()).map(user).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

/// All memory of a process on a GPU, as the driver tells it, and what of it no call explains.
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

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn process(process: &ProcessPlaces) -> Value {
    let since = |ns: &u64| seconds(ns.saturating_sub(process.began_ns));
    json!({
        "pid": process.pid,
        "process": process.name,
        "container": process.container,
        "ended": process.has_ended,
        "watched_seconds": process.ends_ns.last().map(since).unwrap_or_default(),
        "live_bytes": process.live.bytes,
        "live_allocations": process.live.count,
        "places": process.places.iter().map(|p| place(p, process)).collect::<Vec<_>>(),
        "other": {
            "live_bytes": process.other.bytes,
            "live_allocations": process.other.count,
            "places": process.other_sites,
        },
    })
}

fn place(place: &PlaceMemory, of: &ProcessPlaces) -> Value {
    let growth = &place.judgement.growth;
    let first = place.place.frames.first();
    let at = |(end, bytes): (&u64, &u64)| json!([seconds(end.saturating_sub(of.began_ns)), bytes]);
    json!({
        "place": place.name,
        "function": first.and_then(|f| f.function.as_ref()),
        "file": first.and_then(|f| f.file.as_ref()),
        "line": first.and_then(|f| f.line),
        "module": first.and_then(|f| f.module.as_ref()),
        "live_bytes": place.live.bytes,
        "live_allocations": place.live.count,
        "allocations": place.allocations,
        "frees": place.frees,
        "ended_with_context": place.ended,
        "oldest_seconds": place.oldest_age_ns.map(seconds),
        "verdict": place.judgement.verdict,
        "reason": reason(&place.judgement),
        "growth": {
            "bytes": growth.bytes,
            "seconds": seconds(growth.over_ns),
            "bytes_per_second": growth.rate(),
            "fell_bytes": growth.fell_bytes,
            "allocations": growth.allocations,
            "frees": growth.frees,
            "ended_with_context": growth.ended,
        },
        "live_bytes_over_time": of.ends_ns.iter().zip(&place.curve).map(at).collect::<Vec<_>>(),
        "stack": place.place.way(),
    })
}
