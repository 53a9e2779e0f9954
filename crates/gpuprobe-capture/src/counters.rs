//! Reads what the kernel side counts.

use gpuprobe_event::counters::{Allocation, CallCounts, Held, LATENCY_BUCKETS, ProcessKey, ProcessMemory};
use gpuprobe_event::{FunctionId, LossCause, Losses, Space, Tgid};
use libbpf_rs::{Map, MapCore, MapFlags};

use crate::error::CaptureError;
use crate::wire::{
    Wire, as_bytes, from_bytes, gp_count, gp_count_key, gp_live, gp_live_key, gp_memory, gp_process_key,
};

const READ: &str = "read a table of the kernel side";
const WRITE: &str = "write a table of the kernel side";

pub(crate) fn losses(map: &Map<'_>) -> Result<Losses, CaptureError> {
    let mut losses = Losses::default();
    for index in 0..map.max_entries() {
        let Some(cause) = LossCause::from_index(index as usize) else { break };
        let values = map
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf(READ))?
            .unwrap_or_default();
        for value in values {
            losses.add(cause, value.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)));
        }
    }
    Ok(losses)
}

pub(crate) fn counts(map: &Map<'_>) -> Result<Vec<CallCounts>, CaptureError> {
    let mut all = Vec::new();
    for key in map.keys() {
        // a key may go between the two calls; then there is nothing to read
        let Some(values) = map.lookup_percpu(&key, MapFlags::ANY).map_err(CaptureError::bpf(READ))? else {
            continue;
        };
        let key: gp_count_key = from_bytes(&key);
        let mut sum = CallCounts {
            process: ProcessKey { tgid: Tgid(key.tgid), instance: key.instance },
            function: FunctionId(key.function),
            calls: 0,
            errors: 0,
            bytes: 0,
            total_ns: 0,
            latency: [0; LATENCY_BUCKETS],
        };
        for value in &values {
            let value: gp_count = from_bytes(value);
            sum.calls += value.calls;
            sum.errors += value.errors;
            sum.bytes += value.bytes;
            sum.total_ns += value.total_ns;
            for (bucket, count) in sum.latency.iter_mut().zip(value.latency) {
                *bucket += count;
            }
        }
        all.push(sum);
    }
    Ok(all)
}

/// Every entry of a hash.
fn entries<K: Wire, V: Wire>(map: &Map<'_>) -> Result<Vec<(K, V)>, CaptureError> {
    let mut all = Vec::new();
    for key in map.keys() {
        if let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(CaptureError::bpf(READ))? {
            all.push((from_bytes(&key), from_bytes(&value)));
        }
    }
    Ok(all)
}

pub(crate) fn memory(map: &Map<'_>) -> Result<Vec<ProcessMemory>, CaptureError> {
    let process = |(key, value): (gp_process_key, gp_memory)| {
        let mut held = [Held::default(); Space::ALL.len()];
        for (i, held) in held.iter_mut().enumerate() {
            held.live_bytes = value.live_bytes[i];
            held.live_allocations = value.live_allocations[i];
        }
        ProcessMemory {
            process: ProcessKey { tgid: Tgid(key.tgid), instance: key.instance },
            held,
            allocated_bytes: value.allocated_bytes,
            freed_bytes: value.freed_bytes,
            allocations: value.allocations,
            failed_allocations: value.failed_allocations,
            frees: value.frees,
            failed_frees: value.failed_frees,
            unknown_frees: value.unknown_frees,
            replaced: value.replaced,
        }
    };
    Ok(entries(map)?.into_iter().map(process).collect())
}

pub(crate) fn allocations(map: &Map<'_>) -> Result<Vec<Allocation>, CaptureError> {
    let allocation = |(key, value): (gp_live_key, gp_live)| Allocation {
        process: ProcessKey { tgid: Tgid(key.tgid), instance: key.instance },
        ptr: key.pointer,
        bytes: value.bytes,
        space: Space::ALL.get(value.space as usize).copied().unwrap_or(Space::Device),
        since_ns: value.since_ns,
    };
    Ok(entries(map)?.into_iter().map(allocation).collect())
}

/// Removes the live allocations of one process and sets what it holds to nothing. Returns the bytes given back.
pub(crate) fn release_memory(
    live: &Map<'_>,
    processes: &Map<'_>,
    process: ProcessKey,
) -> Result<u64, CaptureError> {
    let mut bytes = 0;
    for (key, value) in entries::<gp_live_key, gp_live>(live)? {
        if key.tgid == process.tgid.0 && key.instance == process.instance {
            bytes += value.bytes;
            delete(live, as_bytes(&key))?;
        }
    }
    let key = gp_process_key { instance: process.instance, tgid: process.tgid.0, reserved: 0 };
    if let Some(value) = processes.lookup(as_bytes(&key), MapFlags::ANY).map_err(CaptureError::bpf(READ))? {
        let mut memory: gp_memory = from_bytes(&value);
        memory.live_bytes = Default::default();
        memory.live_allocations = Default::default();
        processes
            .update(as_bytes(&key), as_bytes(&memory), MapFlags::EXIST)
            .map_err(CaptureError::bpf(WRITE))?;
    }
    Ok(bytes)
}

pub(crate) fn forget(counts: &Map<'_>, processes: &Map<'_>, process: ProcessKey) -> Result<(), CaptureError> {
    let keys: Vec<_> = counts.keys().collect();
    for key in keys {
        let parsed: gp_count_key = from_bytes(&key);
        if parsed.tgid == process.tgid.0 && parsed.instance == process.instance {
            delete(counts, &key)?;
        }
    }
    let key = gp_process_key { instance: process.instance, tgid: process.tgid.0, reserved: 0 };
    delete(processes, as_bytes(&key))
}

/// Deletes a key; one that is gone already is as good as deleted.
fn delete(map: &Map<'_>, key: &[u8]) -> Result<(), CaptureError> {
    match map.delete(key) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(CaptureError::Bpf { what: WRITE, source: error })
        }
        _ => Ok(()),
    }
}
