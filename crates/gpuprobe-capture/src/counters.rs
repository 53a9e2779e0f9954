//! Reads what the kernel side counts.

use std::collections::{HashMap, HashSet};

use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, FailureCounts, Held, LATENCY_BUCKETS, ProcessKey, ProcessMemory,
    SiteMemory, ToldGpu, WorkRows,
};
use gpuprobe_event::{
    DriverTime, FunctionId, Identity, LossCause, Losses, PciAddress, SiteId, Space, Tgid, Uuid, catalogue,
};
use libbpf_rs::{Map, MapCore, MapFlags};

use crate::batch::{self, READ};
use crate::error::CaptureError;
use crate::numbered::Numbered;
use crate::sites::Row;
use crate::wire::{
    Wire, as_bytes, derived, from_bytes, gp_context, gp_context_key, gp_count, gp_count_key, gp_failure_key,
    gp_live, gp_live_key, gp_memory, gp_physical, gp_process_key, gp_site, gp_site_key, number,
};

/// The last rows of processes that ended.
#[derive(Debug, Default)]
pub struct Rows {
    /// Calls, a row per process and function.
    pub calls: Vec<CallCounts>,
    /// Failures, a row per process, function and error.
    pub failures: Vec<FailureCounts>,
    /// Memory, a row per process.
    pub memory: Vec<ProcessMemory>,
    /// Launches, graphs, copies and gaps.
    pub work: WorkRows,
    /// Memory, a row per process, site and GPU.
    pub sites: Vec<SiteMemory>,
    /// Those that left something in the tables of allocations.
    pub holding: HashSet<ProcessKey>,
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

pub(crate) fn counts(counts: &Numbered<'_>) -> Result<Vec<CallCounts>, CaptureError> {
    let mut all = Vec::new();
    let cpu = batch::cpu_value_bytes(&counts.rows);
    counts.each(|key, values| all.push(sum(key, values.chunks_exact(cpu))))?;
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
        driver: DriverTime::default(),
        latency: [0; LATENCY_BUCKETS],
    };
    for value in cpus {
        let value: gp_count = from_bytes(value);
        sum.calls += value.latency.iter().sum::<u64>() + value.tallied;
        sum.errors += value.errors;
        sum.bytes += value.bytes;
        sum.total_ns += value.total_ns;
        sum.driver.calls += value.entered;
        sum.driver.ns += value.driver_ns;
        for (bucket, count) in sum.latency.iter_mut().zip(value.latency) {
            *bucket += count;
        }
    }
    sum
}

/// Failures by function and error, and what each process has beyond these.
pub(crate) fn failures(map: &Map<'_>, processes: &Numbered<'_>) -> Result<Vec<FailureCounts>, CaptureError> {
    let mut rows: Vec<_> = batch::entries(map)?.into_iter().map(failure).collect();
    let unnamed = |(key, row): (gp_process_key, gp_memory)| FailureCounts {
        process: key.process(),
        way: None,
        count: row.unnamed_failures,
    };
    rows.extend(processes.entries()?.into_iter().map(unnamed).filter(|row| row.count > 0));
    Ok(rows)
}

fn failure((key, count): (gp_failure_key, u64)) -> FailureCounts {
    FailureCounts {
        process: key.process(),
        way: Some((FunctionId(key.function), i64::from(key.error as i32))),
        count,
    }
}

pub(crate) fn process_of(tgid: u32, instance: u64) -> ProcessKey {
    ProcessKey { tgid: Tgid(tgid), instance }
}

/// What every process did, with what it holds in all of its contexts together; and these contexts.
pub(crate) fn memory(
    processes: &Numbered<'_>,
    contexts: &Numbered<'_>,
) -> Result<(Vec<ProcessMemory>, Vec<ContextMemory>), CaptureError> {
    let rows = processes.entries()?;
    let contexts: Vec<_> = contexts.entries()?.into_iter().map(context_memory).collect();
    Ok((with_held(rows.into_iter().map(process_memory).collect(), &contexts), contexts))
}

fn with_held(mut rows: Vec<ProcessMemory>, contexts: &[ContextMemory]) -> Vec<ProcessMemory> {
    let places: HashMap<_, _> = rows.iter().enumerate().map(|(at, row)| (row.process, at)).collect();
    for context in contexts {
        let Some(row) = places.get(&context.process).and_then(|at| rows.get_mut(*at)) else { continue };
        for (sum, held) in row.held.iter_mut().zip(&context.held) {
            sum.live_bytes = sum.live_bytes.wrapping_add(held.live_bytes);
            sum.live_allocations = sum.live_allocations.wrapping_add(held.live_allocations);
        }
    }
    rows
}

fn process_memory((key, value): (gp_process_key, gp_memory)) -> ProcessMemory {
    ProcessMemory {
        process: process_of(key.tgid, key.instance),
        held: Default::default(),
        allocated_bytes: value.allocated_bytes,
        freed_bytes: value.freed_bytes,
        allocations: value.allocations,
        failed_allocations: value.failed_allocations,
        frees: value.frees,
        failed_frees: value.failed_frees,
        unknown_frees: value.unknown_frees,
        replaced: value.replaced,
        replaced_bytes: value.replaced_bytes,
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

fn context_memory((key, value): (gp_context_key, gp_context)) -> ContextMemory {
    ContextMemory {
        process: process_of(key.tgid, key.instance),
        gpu: value.device.checked_sub(1).and_then(gpu),
        held: held(&value.live_bytes, &value.live_allocations),
    }
}

/// What the driver told of GPUs; an answer that is neither a UUID nor a place on the bus tells nothing.
pub(crate) fn identities(map: &Map<'_>) -> Result<Vec<ToldGpu>, CaptureError> {
    Ok(batch::entries(map)?.into_iter().filter_map(told_gpu).collect())
}

fn told_gpu((key, answer): (gp_context_key, [u8; 16])) -> Option<ToldGpu> {
    // the function in the high half, the GPU in the low one
    let function = catalogue().get(FunctionId(u32::try_from(key.id >> 32).ok()?))?;
    let identity = match function.roles.op {
        Some("uuid") => Identity::Uuid(Uuid(answer)),
        _ => {
            let text = answer.split(|b| *b == 0).next().and_then(|text| str::from_utf8(text).ok())?;
            Identity::Pci(PciAddress::parse(text)?)
        }
    };
    let gpu = gpu(key.id as u32)?;
    Some(ToldGpu { process: process_of(key.tgid, key.instance), gpu, identity })
}

/// Every live allocation, without those whose context has ended.
pub(crate) fn allocations(
    live: &Map<'_>,
    contexts: &Numbered<'_>,
    physical: &Map<'_>,
    site: impl Fn(u32) -> SiteId,
) -> Result<Vec<Allocation>, CaptureError> {
    // before the contexts, so that none of these is of one that came after they were read
    let entries = batch::entries::<gp_live_key, gp_live>(live)?;
    let numbers = gpus_of(contexts)?;
    let mut all = Vec::with_capacity(entries.len());
    for (key, value) in entries.into_iter().filter(|(_, value)| value.since_ns & derived::SPARE == 0) {
        // taken out when its address is given out again, or with its process: to do it here might hit another one
        let Some(device) = numbers.get(&value.context) else { continue };
        all.push(Allocation {
            process: process_of(key.tgid, key.instance),
            ptr: key.pointer,
            bytes: value.bytes,
            space: Space::ALL.get(value.space as usize).copied().unwrap_or(Space::Device),
            gpu: gpu(*device),
            since_ns: value.since_ns,
            site: site(value.site),
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
            site: site(value.site),
        });
    }
    Ok(all)
}

/// What is held from each site, with the keys of these rows one after the other.
pub(crate) fn site_rows(
    sites: &Map<'_>,
    contexts: &Numbered<'_>,
) -> Result<(Vec<Row>, Vec<u8>), CaptureError> {
    // before the contexts, as above
    let entries = batch::entries::<gp_site_key, gp_site>(sites)?;
    let numbers = gpus_of(contexts)?;
    let mut keys = Vec::with_capacity(entries.len() * size_of::<gp_site_key>());
    let mut rows = Vec::with_capacity(entries.len());
    for (key, counts) in entries {
        keys.extend_from_slice(as_bytes(&key));
        let is_of_device = key.context & derived::OF_DEVICE != 0;
        let device = if is_of_device { Some(key.context as u32) } else { numbers.get(&key.context).copied() };
        rows.push(Row {
            process: process_of(key.tgid, key.instance),
            number: key.site,
            gpu: device.and_then(gpu),
            is_over: device.is_none(),
            counts,
        });
    }
    Ok((rows, keys))
}

/// The GPUs of contexts, by their numbers.
fn gpus_of(contexts: &Numbered<'_>) -> Result<HashMap<u64, u32>, CaptureError> {
    let rows = contexts.entries::<gp_context_key, gp_context>()?;
    Ok(rows.into_iter().map(|(key, row)| (key.id, row.device.wrapping_sub(1))).collect())
}

/// Takes the rows of processes that ended out of the tables, in one pass over each.
pub(crate) fn take_rows(
    counts: &Numbered<'_>,
    processes: &Numbered<'_>,
    contexts: &Numbered<'_>,
    ended: &HashSet<ProcessKey>,
) -> Result<Rows, CaptureError> {
    let mut rows = Rows::default();
    let cpu = batch::cpu_value_bytes(&counts.rows);
    counts.take(ended, |key, values| rows.calls.push(sum(key, values.chunks_exact(cpu))))?;
    let (mut held, mut memory) = (Vec::new(), Vec::new());
    contexts.take(ended, |key, row| held.push(context_memory((key, from_bytes(row)))))?;
    processes.take(ended, |key: gp_process_key, row| {
        let row: gp_memory = from_bytes(row);
        if row.entries > 0 {
            rows.holding.insert(key.process());
        }
        memory.push(process_memory((key, row)));
    })?;
    rows.memory = with_held(memory, &held);
    let holds = |row: &&ProcessMemory| row.held.iter().any(|held| held.live_allocations > 0);
    rows.holding.extend(rows.memory.iter().filter(holds).map(|row| row.process));
    Ok(rows)
}

/// Removes the rows of processes that ended from a table whose keys name the process, in one pass. Returns how many
/// they were.
pub(crate) fn remove_of<K: OfProcess>(
    map: &impl MapCore,
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

fn remove(map: &impl MapCore, is_over: impl Fn(&[u8], &[u8]) -> bool) -> Result<usize, CaptureError> {
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

impl OfProcess for gp_site_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_count_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_failure_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_process_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_context_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    fn told(function: &str, gpu: u64, bytes: [u8; 16]) -> Option<(u8, Identity)> {
        let function = catalogue().lookup(Api::Driver, None, function).unwrap().id;
        let key = gp_context_key { id: u64::from(function.0) << 32 | gpu, ..gp_context_key::default() };
        told_gpu((key, bytes)).map(|told| (told.gpu, told.identity))
    }

    #[test]
    fn an_answer_is_a_uuid_or_a_place_by_the_function_that_gave_it() {
        let place = PciAddress { domain: 0, bus: 0x1b, device: 0, function: 0 };
        for name in ["cuDeviceGetUuid", "cuDeviceGetUuid_v2"] {
            assert_eq!(told(name, 3, [7; 16]), Some((3, Identity::Uuid(Uuid([7; 16])))));
        }
        let name = "cuDeviceGetPCIBusId";
        assert_eq!(told(name, 0, *b"00000000:1B:00.0"), Some((0, Identity::Pci(place))));
        assert_eq!(told(name, 0, *b"0000:1b:00.0\0xyz"), Some((0, Identity::Pci(place))));
        assert_eq!(told(name, 0, *b"0000:1b:00\0\0\0\0\0\0"), None, "cut by its caller");
        assert_eq!(told(name, 0, [0xff; 16]), None);
        assert_eq!(told(name, 255, *b"00000000:1B:00.0"), None);
    }
}
