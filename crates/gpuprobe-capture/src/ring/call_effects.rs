//! Sets the effect of a call from its record: memory that it allocated or freed, and the outcome of its GPU
//! operation. Pure functions.

use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{
    Allocation, Call, Class, CopyPart, DeviceTime, Effect, Free, MemoryAmount, Replaced, Space, Transfer,
};

use crate::wire::{gp_call, gp_copied, gp_part, number};

/// Sets bytes and address as the BPF programs counted them. An inner call of the same kind has none.
pub(crate) fn apply_effect(call: &mut Call, raw: &gp_call) {
    // a captured operation has moved nothing
    let moved_nothing = number::CALL_NESTED_ACTION | number::CALL_CAPTURED;
    if call.failed() {
        return apply_failed_effect(call, raw);
    }
    if raw.flags & moved_nothing != 0 {
        if let Effect::Transfer(transfer) = &mut call.effect
            && raw.flags & number::CALL_CAPTURED == 0
        {
            transfer.copied = call.api.does_work().then_some(raw.bytes);
        }
        return;
    }
    match (call.class, &mut call.effect) {
        (Class::Vmm, effect) => *effect = physical(raw),
        (Class::Context, effect) if raw.effect == number::EFFECT_CONTEXT_END => {
            *effect = Effect::ContextEnd(freed_with_context_memory(raw));
        }
        (Class::Alloc | Class::HostRegister, effect) if raw.pointer != 0 => {
            *effect = Effect::Alloc(Allocation {
                replaced: (raw.effect == number::EFFECT_REPLACE).then(|| Replaced {
                    bytes: raw.detail.allocated().replaced_bytes,
                    kind: space(raw.replaced_space),
                }),
                ..allocation(raw, space(raw.space))
            });
        }
        // it gave up one of several references
        (Class::Free, _) if raw.effect == number::EFFECT_KEPT => {}
        (Class::Free | Class::HostUnregister, effect) => {
            *effect = Effect::Free(free(raw, raw.effect == number::EFFECT_FREE));
        }
        (_, Effect::Transfer(transfer)) if raw.bytes != 0 => transfer.bytes = Some(raw.bytes),
        _ => {}
    }
}

/// Sets the effect of a free that failed or was not seen to return: its memory may be freed in spite of that.
pub(crate) fn apply_failed_effect(call: &mut Call, raw: &gp_call) {
    match raw.effect {
        number::EFFECT_REUSED => call.effect = Effect::Free(free(raw, true)),
        number::EFFECT_FREED_WITH_CONTEXT => call.effect = Effect::ContextEnd(vec![amount(raw)]),
        _ => {}
    }
}

fn free(raw: &gp_call, is_known: bool) -> Free {
    Free { address: Some(raw.pointer), freed: is_known.then(|| amount(raw)), gpu: gpu(raw), site: None }
}

fn amount(raw: &gp_call) -> MemoryAmount {
    MemoryAmount { kind: space(raw.space), allocations: 1, bytes: raw.bytes }
}

fn space(number: u8) -> Space {
    Space::ALL.get(usize::from(number)).copied().unwrap_or(Space::Unknown)
}

fn gpu(raw: &gp_call) -> Option<u8> {
    Some(raw.device).filter(|device| *device != number::NO_DEVICE)
}

fn allocation(raw: &gp_call, kind: Space) -> Allocation {
    let address = (raw.pointer != 0).then_some(raw.pointer);
    let is_live = [number::EFFECT_ALLOC, number::EFFECT_REPLACE].contains(&raw.effect);
    let live_bytes = is_live.then_some(raw.detail.allocated().live_bytes);
    Allocation { bytes: raw.bytes, address, kind, gpu: gpu(raw), live_bytes, ..Allocation::default() }
}

/// Annotates a launch or a copy, and any call with its time in the NVIDIA kernel module. What the BPF programs found
/// takes precedence over the arguments. That a copy did not call the CUDA driver is known only if the driver's copies
/// are probed.
pub(crate) fn annotate_op(call: &mut Call, raw: &gp_call, follows_copies: bool) {
    let entered = raw.entered > 0 && !call.is_in_linux();
    call.driver = entered.then_some(DeviceTime { calls: raw.entered.into(), ns: raw.device_ns });
    let captured = raw.flags & number::CALL_CAPTURED != 0;
    match &mut call.effect {
        Effect::Launch(launch) => {
            launch.captured = captured;
            if raw.flags & number::CALL_NESTED_OP != 0 {
                launch.kernels = 1;
            }
        }
        Effect::GraphLaunch(launch) => {
            launch.captured = captured;
            if raw.effect == number::EFFECT_GRAPH {
                let on = raw.detail.graph();
                launch.kernels = Some(on.kernels.into());
                launch.graph = Some(on.contents).filter(|contents| *contents != 0);
                (launch.disabled, launch.conditional) = (on.disabled.into(), on.conditional.into());
                launch.incomplete = on.incomplete != 0;
            }
        }
        Effect::Transfer(transfer) => {
            transfer.captured = captured;
            match raw.effect {
                number::EFFECT_COPY => set_copy_kind(transfer, raw.detail.copy()),
                number::EFFECT_BATCH => set_copy_parts(transfer, raw.pointee.parts()),
                number::EFFECT_NO_DRIVER_CALL => transfer.without_driver = follows_copies,
                _ => {}
            }
            // an empty batch
            if raw.effect == number::EFFECT_BATCH && transfer.parts.is_empty() {
                call.effect = Effect::None;
            }
        }
        _ => {}
    }
}

fn set_copy_kind(transfer: &mut Transfer, copy: &gp_copied) {
    let found = direction(copy.kind);
    if found != CopyDirection::Unknown {
        transfer.direction = found;
    }
    transfer.host = host(copy.host, transfer.direction);
}

/// The copies of a batch, by kind and size.
fn set_copy_parts(transfer: &mut Transfer, parts: &[gp_part]) {
    let part = |part: &gp_part| {
        let direction = direction(part.kind);
        let host = host(part.host, direction);
        CopyPart { direction, host, copies: part.copies.into(), bytes: part.bytes }
    };
    transfer.parts = parts.iter().filter(|part| part.copies > 0).map(part).collect();
    let kind = |part: &CopyPart| (part.direction, part.host);
    if let [first, others @ ..] = transfer.parts.as_slice()
        && others.iter().all(|part| kind(part) == kind(first))
    {
        (transfer.direction, transfer.host) = kind(first);
    }
}

/// A direction of a record; 0 is unknown.
fn direction(number: u8) -> CopyDirection {
    let found = number.checked_sub(1).and_then(|at| CopyDirection::ALL.get(usize::from(at)));
    found.copied().unwrap_or(CopyDirection::Unknown)
}

/// A kind of host memory of a record.
fn host(number: u8, direction: CopyDirection) -> HostMemory {
    let found = HostMemory::ALL.get(usize::from(number)).copied().filter(|host| host.is_known());
    found.unwrap_or_else(|| HostMemory::unknown_for(direction))
}

/// Physical memory is live from its creation, or from its first mapping if it was imported. One call may end several
/// allocations, and each counts as freed.
fn physical(raw: &gp_call) -> Effect {
    match raw.effect {
        number::EFFECT_PHYSICAL => {
            let allocations = raw.detail.released().allocations;
            let freed = Some(MemoryAmount { kind: Space::Vmm, allocations, bytes: raw.bytes });
            Effect::Free(Free { freed, gpu: gpu(raw), ..Free::default() })
        }
        number::EFFECT_ALLOC => Effect::Alloc(allocation(raw, Space::Vmm)),
        _ => Effect::None,
    }
}

/// The memory that ended with a context, by kind.
fn freed_with_context_memory(raw: &gp_call) -> Vec<MemoryAmount> {
    Space::ALL
        .into_iter()
        .zip(raw.stack.ended())
        .filter(|(_, amount)| amount.allocations != 0)
        .map(|(kind, amount)| MemoryAmount { kind, allocations: amount.allocations, bytes: amount.bytes })
        .collect()
}
