//! What a call did to memory, and what became of its work, as the kernel side found it, put into its event. Pure.

use std::borrow::Cow;

use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::event::Name;
use gpuprobe_event::{Call, Class, CopyPart, DriverTime, HeldMemory, Space};

use crate::wire::{from_bytes, gp_call, gp_part, number};

/// Bytes and address as the kernel side counted them. An inner call of the same kind carries none.
pub(crate) fn account(call: &mut Call, raw: &gp_call) {
    // what was captured has moved nothing
    let moved_nothing = number::CALL_NESTED_ACTION | number::CALL_CAPTURED;
    if raw.flags & moved_nothing != 0 || call.failed() {
        return;
    }
    let space = Space::ALL.get(usize::from(raw.space)).map(|s| Cow::Borrowed(s.as_str()));
    call.effect.gpu = Some(raw.device).filter(|device| *device != number::NO_DEVICE);
    match call.class {
        Class::Vmm => physical(call, raw),
        Class::Context if raw.bytes != 0 => {
            call.effect.freed = Some(raw.bytes);
            call.effect.ended = ended(raw);
        }
        Class::Alloc | Class::HostRegister if raw.pointer != 0 => {
            call.effect.size = Some(raw.bytes);
            call.effect.ptr = Some(raw.pointer);
            // what stood at this address: its free was not seen, but it is gone
            call.effect.freed = (raw.flags & number::CALL_REPLACED != 0).then_some(raw.since_ns);
            call.effect.kind = space;
        }
        Class::Free | Class::HostUnregister => {
            call.effect.ptr = Some(raw.pointer);
            let known = raw.flags & number::CALL_KNOWN_FREE != 0;
            call.effect.freed = known.then_some(raw.bytes);
            call.effect.kind = space.filter(|_| known);
        }
        Class::Memcpy | Class::Memset if raw.bytes != 0 => call.effect.size = Some(raw.bytes),
        _ => {}
    }
}

/// What became of a launch or a copy, and what the call did in the driver: what the kernel side found out goes before what the
/// arguments say.
pub(crate) fn tell_work(call: &mut Call, raw: &gp_call) {
    let entered = raw.entered > 0 && !call.is_kernel();
    call.effect.driver = entered.then_some(DriverTime { calls: raw.entered.into(), ns: raw.driver_ns });
    call.effect.captured = raw.flags & number::CALL_CAPTURED != 0;
    if raw.flags & number::CALL_KNOWN_KERNELS != 0 {
        call.effect.kernels = Some(raw.since_ns);
    } else if raw.flags & number::CALL_NESTED_WORK != 0 {
        call.effect.kernels = None;
    }
    if call.class == Class::Memcpy && raw.copy_kind != 0 {
        call.effect.kind = direction(raw.copy_kind).or(call.effect.kind.take());
        call.effect.host = host(raw.host);
    }
}

/// The copies of a batch, by kind.
pub(crate) fn tell_parts(call: &mut Call, raw: &gp_call) {
    let parts = raw.pointee.chunks_exact(size_of::<gp_part>()).map(from_bytes::<gp_part>);
    let part = |part: gp_part| CopyPart {
        kind: direction(part.copy_kind),
        host: host(part.host),
        copies: part.copies.into(),
        bytes: part.bytes,
    };
    call.effect.parts = parts.filter(|part| part.copies > 0).map(part).collect();
    if let [all] = call.effect.parts.as_slice() {
        (call.effect.kind, call.effect.host) = (all.kind.clone(), all.host.clone());
    }
}

/// A direction that was found out.
fn direction(number: u8) -> Option<Name> {
    let found = *CopyDirection::ALL.get(usize::from(number.checked_sub(1)?))?;
    (found != CopyDirection::Unknown).then_some(Cow::Borrowed(found.as_str()))
}

/// Host memory that is known.
fn host(number: u8) -> Option<Name> {
    let found = *HostMemory::ALL.get(usize::from(number))?;
    let is_known = !matches!(found, HostMemory::Nothing | HostMemory::Unknown);
    is_known.then_some(Cow::Borrowed(found.as_str()))
}

/// Physical memory is held from its creation, or from its first mapping where it was imported.
fn physical(call: &mut Call, raw: &gp_call) {
    let vmm = Some(Cow::Borrowed(Space::Vmm.as_str()));
    let freed = raw.flags & number::CALL_KNOWN_FREE != 0;
    if freed {
        call.effect.freed = Some(raw.bytes);
        call.effect.freed_allocations = Some(raw.ended).filter(|allocations| *allocations > 1);
        call.effect.kind = vmm;
    } else if raw.bytes != 0 {
        call.effect.size = Some(raw.bytes);
        call.effect.ptr = (raw.pointer != 0).then_some(raw.pointer);
        call.effect.kind = vmm;
    }
}

/// What ended with a context, by kind: the words of arguments on the stack, of which such calls have none.
fn ended(raw: &gp_call) -> Vec<HeldMemory> {
    Space::ALL
        .into_iter()
        .zip(raw.stack.chunks_exact(2))
        .filter(|(_, words)| words[0] != 0)
        .map(|(space, words)| HeldMemory {
            kind: Cow::Borrowed(space.as_str()),
            allocations: words[0],
            bytes: words[1],
        })
        .collect()
}
