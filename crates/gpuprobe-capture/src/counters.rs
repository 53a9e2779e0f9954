//! Reads what the kernel side counts.

use std::collections::{HashMap, HashSet};

use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, Held, LATENCY_BUCKETS, ProcessKey, ProcessMemory, WorkRows,
};
use gpuprobe_event::{FunctionId, LossCause, Losses, SiteId, Space, Tgid};
use libbpf_rs::{Map, MapCore, MapFlags};

use crate::batch::{self, READ};
use crate::error::CaptureError;
use crate::wire::{
    Wire, as_bytes, from_bytes, gp_context, gp_context_key, gp_count, gp_count_key, gp_live, gp_live_key,
    gp_memory, gp_physical, gp_process_key, number,
};

/// The last rows of processes that ended.
#[derive(Debug, Default)]
pub struct Rows {
    /// Calls, a row per process and function.
    pub calls: Vec<CallCounts>,
    /// Memory, a row per process.
    pub memory: Vec<ProcessMemory>,
    /// Launches, graphs, copies and gaps.
    pub work: WorkRows,
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

pub(crate) fn process_of(tgid: u32, instance: u64) -> ProcessKey {
    ProcessKey { tgid: Tgid(tgid), instance }
}

fn key_of(process: ProcessKey) -> gp_process_key {
    gp_process_key { instance: process.instance, tgid: process.tgid.0, reserved: 0 }
}

pub(crate) fn memory(map: &Map<'_>) -> Result<Vec<ProcessMemory>, CaptureError> {
    Ok(batch::entries(map)?.into_iter().map(process_memory).collect())
}

fn process_memory((key, value): (gp_process_key, gp_memory)) -> ProcessMemory {
    ProcessMemory {
        process: process_of(key.tgid, key.instance),
        held: held(&value.live_bytes, &value.live_allocations),
        allocated_bytes: value.allocated_bytes,
        freed_bytes: value.freed_bytes,
        allocations: value.allocations,
        failed_allocations: value.failed_allocations,
        frees: value.frees,
        failed_frees: value.failed_frees,
        unknown_frees: value.unknown_frees,
        replaced: value.replaced,
        ended_allocations: value.ended_allocations,
        ended_bytes: value.ended_bytes,
        peak_bytes: value.peak_bytes,
    }
}

fn held(bytes: &[u64], allocations: &[u64]) -> [Held; Space::ALL.len()] {
    let mut held = [Held::default(); Space::ALL.len()];
    for (held, (bytes, allocations)) in held.iter_mut().zip(bytes.iter().zip(allocations)) {
        *held = Held { live_bytes: *bytes, live_allocations: *allocations };
    }
    held
}

/// The number of a GPU, where it is known.
pub(crate) fn gpu(device: u32) -> Option<u8> {
    u8::try_from(device).ok().filter(|device| *device != number::NO_DEVICE)
}

pub(crate) fn contexts(map: &Map<'_>) -> Result<Vec<ContextMemory>, CaptureError> {
    let context = |(key, value): (gp_context_key, gp_context)| ContextMemory {
        process: process_of(key.tgid, key.instance),
        gpu: value.device.checked_sub(1).and_then(gpu),
        held: held(&value.live_bytes, &value.live_allocations),
    };
    Ok(batch::entries(map)?.into_iter().map(context).collect())
}

/// Every live allocation, without those whose context has ended.
pub(crate) fn allocations(
    live: &Map<'_>,
    contexts: &Map<'_>,
    physical: &Map<'_>,
) -> Result<Vec<Allocation>, CaptureError> {
    // before the contexts, so that none of these is of one that came after they were read
    let entries = batch::entries::<gp_live_key, gp_live>(live)?;
    let numbers: HashMap<u64, u32> = batch::entries::<gp_context_key, gp_context>(contexts)?
        .into_iter()
        .map(|(key, row)| (key.id, row.device.wrapping_sub(1)))
        .collect();
    let mut all = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        // taken out when its address is given out again, or with its process: to do it here might hit another one
        let Some(device) = numbers.get(&value.context) else { continue };
        all.push(Allocation {
            process: process_of(key.tgid, key.instance),
            ptr: key.pointer,
            bytes: value.bytes,
            space: Space::ALL.get(value.space as usize).copied().unwrap_or(Space::Device),
            gpu: gpu(*device),
            since_ns: value.since_ns,
            site: SiteId::UNKNOWN,
        });
    }
    for (_, value) in batch::entries::<u64, gp_physical>(physical)? {
        all.push(Allocation {
            process: process_of(value.tgid, value.instance),
            ptr: value.handle,
            bytes: value.bytes,
            space: Space::Vmm,
            gpu: gpu(value.device),
            since_ns: value.since_ns,
            site: SiteId::UNKNOWN,
        });
    }
    Ok(all)
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

/// Removes the rows of processes that ended from a table whose keys name the process, in one pass. Returns how many
/// they were.
pub(crate) fn remove_of<K: OfProcess>(
    map: &Map<'_>,
    ended: &HashSet<ProcessKey>,
) -> Result<usize, CaptureError> {
    remove(map, |key, _| ended.contains(&from_bytes::<K>(key).process()))
}

/// Removes the physical memory of processes that ended: its rows name the process, their keys do not.
pub(crate) fn remove_physical(map: &Map<'_>, ended: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
    remove(map, |_, value| {
        let row: gp_physical = from_bytes(value);
        ended.contains(&process_of(row.tgid, row.instance))
    })
}

fn remove(map: &Map<'_>, is_over: impl Fn(&[u8], &[u8]) -> bool) -> Result<usize, CaptureError> {
    let (mut keys, mut count) = (Vec::new(), 0);
    batch::each_entry(map, |key, value| {
        if is_over(key, value) {
            keys.extend_from_slice(key);
            count += 1;
        }
    })?;
    batch::delete_all(map, &keys)?;
    Ok(count)
}

/// A key that names a process.
pub(crate) trait OfProcess: Wire {
    fn process(&self) -> ProcessKey;
}

impl OfProcess for gp_live_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_context_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}
