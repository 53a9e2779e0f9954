//! What a call did to memory, as the kernel side counted it, put into its event. Pure.

use std::borrow::Cow;

use gpuprobe_event::{Call, Class, EndedMemory, Space};

use crate::wire::{gp_call, number};

/// Bytes and address as the kernel side counted them. An inner call of the same kind carries none.
pub(crate) fn account(call: &mut Call, raw: &gp_call) {
    if raw.flags & number::CALL_NESTED_ACTION != 0 || call.failed() {
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

/// Physical memory is held from its creation, or from its first mapping where it was imported.
fn physical(call: &mut Call, raw: &gp_call) {
    let vmm = Some(Cow::Borrowed(Space::Vmm.as_str()));
    let freed = raw.flags & number::CALL_KNOWN_FREE != 0;
    if freed {
        call.effect.freed = Some(raw.bytes);
        call.effect.kind = vmm;
    } else if raw.bytes != 0 {
        call.effect.size = Some(raw.bytes);
        call.effect.ptr = (raw.pointer != 0).then_some(raw.pointer);
        call.effect.kind = vmm;
    }
}

/// What ended with a context, by kind: the words of arguments on the stack, of which such calls have none.
fn ended(raw: &gp_call) -> Vec<EndedMemory> {
    Space::ALL
        .into_iter()
        .zip(raw.stack.chunks_exact(2))
        .filter(|(_, words)| words[0] != 0)
        .map(|(space, words)| EndedMemory {
            kind: Cow::Borrowed(space.as_str()),
            allocations: words[0],
            bytes: words[1],
        })
        .collect()
}
