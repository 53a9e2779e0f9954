//! Reads the tables of memory: processes, contexts, allocations and call sites.

use std::collections::HashMap;

use gpuprobe_event::counters::{Allocation, ContextMemory, GpuIdentity, LiveTotals, ProcessMemory};
use gpuprobe_event::{FunctionId, Identity, PciAddress, SiteId, Space, Uuid, catalogue};
use libbpf_rs::Map;

use super::map_io;
use crate::error::CaptureError;
use crate::stacks::call_sites::{SiteKind, SiteRow};
use crate::tables::indexed_table::IndexedTable;
use crate::tables::process_rows::process_of;
use crate::wire::{
    as_bytes, derived, gp_context, gp_context_key, gp_live, gp_live_key, gp_memory, gp_physical,
    gp_process_key, gp_site, gp_site_key, number,
};

/// The memory of every process, with what is live in all of its contexts together; and that of every context.
pub(crate) fn memory(
    processes: &IndexedTable<'_>,
    contexts: &IndexedTable<'_>,
) -> Result<(Vec<ProcessMemory>, Vec<ContextMemory>), CaptureError> {
    let rows = processes.entries()?;
    let contexts: Vec<_> = contexts.entries()?.into_iter().map(context_memory).collect();
    Ok((add_live(rows.into_iter().map(process_memory).collect(), &contexts), contexts))
}

pub(crate) fn add_live(mut rows: Vec<ProcessMemory>, contexts: &[ContextMemory]) -> Vec<ProcessMemory> {
    let positions: HashMap<_, _> = rows.iter().enumerate().map(|(at, row)| (row.process, at)).collect();
    for context in contexts {
        let Some(row) = positions.get(&context.process).and_then(|at| rows.get_mut(*at)) else { continue };
        for (sum, live) in row.live.iter_mut().zip(&context.live) {
            sum.live_bytes = sum.live_bytes.wrapping_add(live.live_bytes);
            sum.live_allocations = sum.live_allocations.wrapping_add(live.live_allocations);
        }
    }
    rows
}

pub(crate) fn process_memory((key, value): (gp_process_key, gp_memory)) -> ProcessMemory {
    ProcessMemory {
        process: process_of(key.tgid, key.instance),
        live: Default::default(),
        allocated_bytes: value.allocated_bytes,
        freed_bytes: value.freed_bytes,
        allocations: value.allocations,
        failed_allocations: value.failed_allocations,
        frees: value.frees,
        failed_frees: value.failed_frees,
        unknown_frees: value.unknown_frees,
        replaced: value.replaced,
        replaced_bytes: value.replaced_bytes,
        freed_with_context_allocations: value.freed_with_context_allocations,
        freed_with_context_bytes: value.freed_with_context_bytes,
        peak_bytes: value.peak_bytes,
        out_of_memory: value.out_of_memory,
    }
}

fn live(bytes: &[u64], allocations: &[u64]) -> [LiveTotals; Space::ALL.len()] {
    let mut live = [LiveTotals::default(); Space::ALL.len()];
    for (live, (bytes, allocations)) in live.iter_mut().zip(bytes.iter().zip(allocations)) {
        *live = LiveTotals { live_bytes: *bytes, live_allocations: *allocations };
    }
    live
}

/// The number of a GPU, if it is known.
pub(crate) fn gpu(device: u32) -> Option<u8> {
    u8::try_from(device).ok().filter(|device| *device != number::NO_DEVICE)
}

pub(crate) fn context_memory((key, value): (gp_context_key, gp_context)) -> ContextMemory {
    ContextMemory {
        process: process_of(key.tgid, key.instance),
        gpu: value.device.checked_sub(1).and_then(gpu),
        live: live(&value.live_bytes, &value.live_allocations),
    }
}

/// The GPU identities that the CUDA driver returned to processes. Answers that are neither a UUID nor a PCI address
/// are ignored.
pub(crate) fn identities(map: &Map<'_>) -> Result<Vec<GpuIdentity>, CaptureError> {
    Ok(map_io::entries(map)?.into_iter().filter_map(gpu_identity).collect())
}

fn gpu_identity((key, answer): (gp_context_key, [u8; 16])) -> Option<GpuIdentity> {
    // the function is in the high half, the GPU in the low one
    let function = catalogue().get(FunctionId(u32::try_from(key.id >> 32).ok()?))?;
    let identity = match function.roles.op {
        Some("uuid") => Identity::Uuid(Uuid(answer)),
        _ => {
            let text = answer.split(|b| *b == 0).next().and_then(|text| str::from_utf8(text).ok())?;
            Identity::Pci(PciAddress::parse(text)?)
        }
    };
    let gpu = gpu(key.id as u32)?;
    Some(GpuIdentity { process: process_of(key.tgid, key.instance), gpu, identity })
}

/// Every live allocation, without those whose context was destroyed.
pub(crate) fn allocations(
    live: &Map<'_>,
    contexts: &IndexedTable<'_>,
    physical: &Map<'_>,
    site: impl Fn(u32) -> SiteId,
) -> Result<Vec<Allocation>, CaptureError> {
    // read before the contexts, so that the context of each is known
    let entries = map_io::entries::<gp_live_key, gp_live>(live)?;
    let numbers = gpus_of(contexts)?;
    let mut all = Vec::with_capacity(entries.len());
    for (key, value) in entries.into_iter().filter(|(_, value)| value.since_ns & derived::SPARE == 0) {
        // not removed here, where it might hit a newer allocation at the same address: it is removed when its address
        // is allocated again, or with its process
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
    for (_, value) in map_io::entries::<u64, gp_physical>(physical)? {
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

/// The memory of each site, and the keys of these rows one after the other.
pub(crate) fn site_rows(
    sites: &Map<'_>,
    contexts: &IndexedTable<'_>,
) -> Result<(Vec<SiteRow>, Vec<u8>), CaptureError> {
    // read before the contexts, as above
    let entries = map_io::entries::<gp_site_key, gp_site>(sites)?;
    let numbers = gpus_of(contexts)?;
    let mut keys = Vec::with_capacity(entries.len() * size_of::<gp_site_key>());
    let mut rows = Vec::with_capacity(entries.len());
    for (key, counts) in entries {
        keys.extend_from_slice(as_bytes(&key));
        let is_of_tensors = key.context & derived::OF_TENSORS != 0;
        let is_of_device = is_of_tensors || key.context & derived::OF_DEVICE != 0;
        let device = if is_of_device { Some(key.context as u32) } else { numbers.get(&key.context).copied() };
        rows.push(SiteRow {
            process: process_of(key.tgid, key.instance),
            number: key.site,
            gpu: device.and_then(gpu),
            kind: site_kind(is_of_tensors, counts.space),
            has_exited: device.is_none(),
            counts,
        });
    }
    Ok((rows, keys))
}

fn site_kind(is_of_tensors: bool, space: u32) -> SiteKind {
    match Space::ALL.get(space as usize) {
        _ if is_of_tensors => SiteKind::Tensors,
        Some(Space::Pool) => SiteKind::PoolMemory,
        _ => SiteKind::OtherMemory,
    }
}

/// The GPUs of contexts, by context number.
fn gpus_of(contexts: &IndexedTable<'_>) -> Result<HashMap<u64, u32>, CaptureError> {
    let rows = contexts.entries::<gp_context_key, gp_context>()?;
    Ok(rows.into_iter().map(|(key, row)| (key.id, row.device.wrapping_sub(1))).collect())
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;

    fn identity_of(function: &str, gpu: u64, bytes: [u8; 16]) -> Option<(u8, Identity)> {
        let function = catalogue().lookup(Api::Driver, None, function).unwrap().id;
        let key = gp_context_key { id: u64::from(function.0) << 32 | gpu, ..gp_context_key::default() };
        gpu_identity((key, bytes)).map(|found| (found.gpu, found.identity))
    }

    #[test]
    fn an_answer_is_a_uuid_or_a_pci_address_depending_on_the_function() {
        let pci = PciAddress { domain: 0, bus: 0x1b, device: 0, function: 0 };
        for name in ["cuDeviceGetUuid", "cuDeviceGetUuid_v2"] {
            assert_eq!(identity_of(name, 3, [7; 16]), Some((3, Identity::Uuid(Uuid([7; 16])))));
        }
        let name = "cuDeviceGetPCIBusId";
        assert_eq!(identity_of(name, 0, *b"00000000:1B:00.0"), Some((0, Identity::Pci(pci))));
        assert_eq!(identity_of(name, 0, *b"0000:1b:00.0\0xyz"), Some((0, Identity::Pci(pci))));
        assert_eq!(identity_of(name, 0, *b"0000:1b:00\0\0\0\0\0\0"), None, "cut by the caller");
        assert_eq!(identity_of(name, 0, [0xff; 16]), None);
        assert_eq!(identity_of(name, 255, *b"00000000:1B:00.0"), None);
    }
}
