//! What a call did to memory, and what became of its work, as the kernel side found it, put into its event. Pure.

use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{
    Allocation, Call, Class, CopyPart, DriverTime, Effect, Free, MemoryAmount, Space, Transfer,
};

use crate::wire::{from_bytes, gp_call, gp_part, number};

/// Bytes and address as the kernel side counted them. An inner call of the same kind carries none.
pub(crate) fn account(call: &mut Call, raw: &gp_call) {
    // what was captured has moved nothing
    let moved_nothing = number::CALL_NESTED_ACTION | number::CALL_CAPTURED;
    if raw.flags & moved_nothing != 0 || call.failed() {
        return;
    }
    match (call.class, &mut call.effect) {
        (Class::Vmm, effect) => *effect = physical(raw),
        (Class::Context, effect) if raw.bytes != 0 => *effect = Effect::ContextEnd(ended(raw)),
        (Class::Alloc | Class::HostRegister, effect) if raw.pointer != 0 => {
            *effect = Effect::Alloc(Allocation {
                // what stood at this address: its free was not seen, but it is gone
                replaced: (raw.flags & number::CALL_REPLACED != 0).then_some(raw.since_ns),
                ..allocation(raw, space(raw))
            });
        }
        (Class::Free | Class::HostUnregister, effect) => {
            let known = raw.flags & number::CALL_KNOWN_FREE != 0;
            let freed = MemoryAmount { kind: space(raw), allocations: 1, bytes: raw.bytes };
            *effect = Effect::Free(Free {
                address: Some(raw.pointer),
                freed: known.then_some(freed),
                gpu: gpu(raw),
                site: None,
            });
        }
        (_, Effect::Transfer(transfer)) if raw.bytes != 0 => transfer.bytes = Some(raw.bytes),
        _ => {}
    }
}

fn space(raw: &gp_call) -> Space {
    Space::ALL.get(usize::from(raw.space)).copied().unwrap_or(Space::Unknown)
}

fn gpu(raw: &gp_call) -> Option<u8> {
    Some(raw.device).filter(|device| *device != number::NO_DEVICE)
}

fn allocation(raw: &gp_call, kind: Space) -> Allocation {
    let address = (raw.pointer != 0).then_some(raw.pointer);
    Allocation { bytes: raw.bytes, address, kind, gpu: gpu(raw), ..Allocation::default() }
}

/// What became of a launch or a copy, and what the call did in the driver: what the kernel side found out goes before what the
/// arguments say.
pub(crate) fn tell_work(call: &mut Call, raw: &gp_call) {
    let entered = raw.entered > 0 && !call.is_kernel();
    call.driver = entered.then_some(DriverTime { calls: raw.entered.into(), ns: raw.driver_ns });
    let captured = raw.flags & number::CALL_CAPTURED != 0;
    match &mut call.effect {
        Effect::Launch(launch) => {
            launch.captured = captured;
            if raw.flags & number::CALL_NESTED_WORK != 0 {
                launch.kernels = 1;
            }
        }
        Effect::GraphLaunch(launch) => {
            launch.captured = captured;
            launch.kernels = (raw.flags & number::CALL_KNOWN_KERNELS != 0).then_some(raw.since_ns);
        }
        Effect::Transfer(transfer) => {
            transfer.captured = captured;
            if call.class == Class::Memcpy && raw.copy_kind != 0 {
                tell_kind(transfer, raw);
            }
        }
        _ => {}
    }
}

fn tell_kind(transfer: &mut Transfer, raw: &gp_call) {
    let found = direction(raw.copy_kind);
    if found != CopyDirection::Unknown {
        transfer.direction = found;
    }
    transfer.host = host(raw.host, transfer.direction);
}

/// The copies of a batch, by kind.
pub(crate) fn tell_parts(call: &mut Call, raw: &gp_call) {
    let Effect::Transfer(transfer) = &mut call.effect else { return };
    let parts = raw.pointee.chunks_exact(size_of::<gp_part>()).map(from_bytes::<gp_part>);
    let part = |part: gp_part| {
        let direction = direction(part.copy_kind);
        let host = host(part.host, direction);
        CopyPart { direction, host, copies: part.copies.into(), bytes: part.bytes }
    };
    transfer.parts = parts.filter(|part| part.copies > 0).map(part).collect();
    if let [all] = transfer.parts.as_slice() {
        (transfer.direction, transfer.host) = (all.direction, all.host);
    }
}

/// The direction that was found out.
fn direction(number: u8) -> CopyDirection {
    let found = number.checked_sub(1).and_then(|at| CopyDirection::ALL.get(usize::from(at)));
    found.copied().unwrap_or(CopyDirection::Unknown)
}

/// The host memory that was found out.
fn host(number: u8, direction: CopyDirection) -> HostMemory {
    let found = HostMemory::ALL.get(usize::from(number)).copied().filter(|host| host.is_told());
    found.unwrap_or_else(|| HostMemory::not_told(direction))
}

/// Physical memory is held from its creation, or from its first mapping where it was imported. One call may end several
/// allocations, and each counts as freed.
fn physical(raw: &gp_call) -> Effect {
    if raw.flags & number::CALL_KNOWN_FREE != 0 {
        let allocations = raw.ended.max(1);
        let freed = Some(MemoryAmount { kind: Space::Vmm, allocations, bytes: raw.bytes });
        Effect::Free(Free { freed, gpu: gpu(raw), ..Free::default() })
    } else if raw.bytes != 0 {
        Effect::Alloc(allocation(raw, Space::Vmm))
    } else {
        Effect::None
    }
}

/// What ended with a context, by kind: the words of arguments on the stack, of which such calls have none.
fn ended(raw: &gp_call) -> Vec<MemoryAmount> {
    Space::ALL
        .into_iter()
        .zip(raw.stack.chunks_exact(2))
        .filter(|(_, words)| words[0] != 0)
        .map(|(kind, words)| MemoryAmount { kind, allocations: words[0], bytes: words[1] })
        .collect()
}
