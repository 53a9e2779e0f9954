//! Addresses of a process to names, for what the kernel side cannot tell.

use std::fmt::Debug;
use std::path::Path;

use gpuprobe_discover::Symbolizer;
use gpuprobe_event::Tgid;

use crate::wire::{from_bytes, gp_stack_record};

const PROC: &str = "/proc";

/// The stack of a call, as it was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawStack {
    /// The call it belongs to.
    pub(crate) id: u64,
    /// Where the call returns to.
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    pub(crate) lr: u64,
    /// From `sp` on.
    pub(crate) bytes: Vec<u8>,
}

impl RawStack {
    /// From a record of the ring, with the return addresses that return probes had replaced.
    pub(crate) fn from_record(record: &[u8]) -> Option<Self> {
        let raw: gp_stack_record = from_bytes(record);
        let bytes = record.get(size_of::<gp_stack_record>()..)?.get(..raw.length as usize)?;
        let mut stack = Self {
            id: raw.id,
            ip: raw.instruction_pointer,
            sp: raw.stack_pointer,
            fp: raw.frame_pointer,
            lr: raw.link_register,
            bytes: bytes.to_vec(),
        };
        for patch in raw.patch.iter().take(usize::from(raw.patches)) {
            stack.patch(patch.slot, patch.address);
        }
        Some(stack)
    }

    fn patch(&mut self, slot: u64, address: u64) {
        let offset = slot.checked_sub(self.sp).and_then(|offset| usize::try_from(offset).ok());
        let word = offset.and_then(|offset| self.bytes.get_mut(offset..offset.checked_add(8)?));
        if let Some(word) = word {
            word.copy_from_slice(&address.to_le_bytes());
        }
    }
}

/// Gives names to addresses of processes that run.
pub(crate) trait Resolve: Debug {
    /// The name of the function at an address.
    fn symbol(&mut self, tgid: Tgid, address: u64) -> Option<String>;
    /// The frames of a stack, innermost first.
    fn stack(&mut self, tgid: Tgid, stack: &RawStack) -> Vec<String>;
    /// A process has ended.
    fn forget(&mut self, tgid: Tgid);
}

/// By the files that a process has mapped.
#[derive(Debug, Default)]
pub(crate) struct OfFiles {
    symbols: Symbolizer,
}

impl Resolve for OfFiles {
    fn symbol(&mut self, tgid: Tgid, address: u64) -> Option<String> {
        let place = self.symbols.name(Path::new(PROC), tgid.0, address).ok().flatten()?;
        // the middle of something is not what was meant
        (place.offset == 0).then_some(place.function)
    }

    fn stack(&mut self, tgid: Tgid, stack: &RawStack) -> Vec<String> {
        self.symbol(tgid, stack.ip).into_iter().collect()
    }

    fn forget(&mut self, _tgid: Tgid) {}
}
