//! Reads what the kernel side counts.

use std::collections::HashSet;

use gpuprobe_event::counters::{Allocation, CallCounts, Held, LATENCY_BUCKETS, ProcessKey, ProcessMemory};
use gpuprobe_event::{FunctionId, LossCause, Losses, Space, Tgid};
use libbpf_rs::{Map, MapCore, MapFlags};

use crate::batch::{self, READ};
use crate::error::CaptureError;
use crate::wire::{
    as_bytes, from_bytes, gp_count, gp_count_key, gp_live, gp_live_key, gp_memory, gp_process_key,
};

/// The last rows of processes that ended.
#[derive(Debug, Default)]
pub struct Rows {
    /// Calls, a row per process and function.
    pub calls: Vec<CallCounts>,
    /// Memory, a row per process.
    pub memory: Vec<ProcessMemory>,
}

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
    let cpu = batch::cpu_value_bytes(map);
    batch::each_entry(map, |key, values| all.push(sum(from_bytes(key), values.chunks_exact(cpu))))?;
    Ok(all)
}

fn sum<'a>(key: gp_count_key, cpus: impl Iterator<Item = &'a [u8]>) -> CallCounts {
    let mut sum = CallCounts {
        process: process_of(key.tgid, key.instance),
        function: FunctionId(key.function),
        calls: 0,
        errors: 0,
        bytes: 0,
        total_ns: 0,
        latency: [0; LATENCY_BUCKETS],
    };
    for value in cpus {
        let value: gp_count = from_bytes(value);
        sum.calls += value.calls;
        sum.errors += value.errors;
        sum.bytes += value.bytes;
        sum.total_ns += value.total_ns;
        for (bucket, count) in sum.latency.iter_mut().zip(value.latency) {
            *bucket += count;
        }
    }
    sum
}

fn process_of(tgid: u32, instance: u64) -> ProcessKey {
    ProcessKey { tgid: Tgid(tgid), instance }
}

fn key_of(process: ProcessKey) -> gp_process_key {
    gp_process_key { instance: process.instance, tgid: process.tgid.0, reserved: 0 }
}

pub(crate) fn memory(map: &Map<'_>) -> Result<Vec<ProcessMemory>, CaptureError> {
    Ok(batch::entries(map)?.into_iter().map(process_memory).collect())
}

fn process_memory((key, value): (gp_process_key, gp_memory)) -> ProcessMemory {
    let mut held = [Held::default(); Space::ALL.len()];
    for (i, held) in held.iter_mut().enumerate() {
        held.live_bytes = value.live_bytes[i];
        held.live_allocations = value.live_allocations[i];
    }
    ProcessMemory {
        process: process_of(key.tgid, key.instance),
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
}

pub(crate) fn allocations(map: &Map<'_>) -> Result<Vec<Allocation>, CaptureError> {
    let allocation = |(key, value): (gp_live_key, gp_live)| Allocation {
        process: process_of(key.tgid, key.instance),
        ptr: key.pointer,
        bytes: value.bytes,
        space: Space::ALL.get(value.space as usize).copied().unwrap_or(Space::Device),
        since_ns: value.since_ns,
    };
    Ok(batch::entries(map)?.into_iter().map(allocation).collect())
}

/// Takes the rows of processes that ended out of both tables, in one pass over the counts.
pub(crate) fn take_rows(
    counts: &Map<'_>,
    processes: &Map<'_>,
    ended: &HashSet<ProcessKey>,
) -> Result<Rows, CaptureError> {
    let mut rows = Rows::default();
    let mut keys = Vec::new();
    let cpu = batch::cpu_value_bytes(counts);
    batch::each_entry(counts, |bytes, values| {
        let key: gp_count_key = from_bytes(bytes);
        if ended.contains(&process_of(key.tgid, key.instance)) {
            rows.calls.push(sum(key, values.chunks_exact(cpu)));
            keys.extend_from_slice(bytes);
        }
    })?;
    batch::delete_all(counts, &keys)?;
    let mut keys = Vec::new();
    for key in ended.iter().map(|process| key_of(*process)) {
        if let Some(value) =
            processes.lookup(as_bytes(&key), MapFlags::ANY).map_err(CaptureError::bpf(READ))?
        {
            rows.memory.push(process_memory((key, from_bytes(&value))));
            keys.extend_from_slice(as_bytes(&key));
        }
    }
    batch::delete_all(processes, &keys)?;
    Ok(rows)
}

/// Removes the live allocations of processes that ended, in one pass. Returns how many they were.
pub(crate) fn release_memory(live: &Map<'_>, ended: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
    let mut keys = Vec::new();
    batch::each_entry(live, |bytes, _| {
        let key: gp_live_key = from_bytes(bytes);
        if ended.contains(&process_of(key.tgid, key.instance)) {
            keys.extend_from_slice(bytes);
        }
    })?;
    batch::delete_all(live, &keys)?;
    Ok(keys.len() / size_of::<gp_live_key>())
}
