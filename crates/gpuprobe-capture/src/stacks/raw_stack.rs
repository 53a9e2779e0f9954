//! Copies of stacks, as the BPF programs send them.

use std::collections::VecDeque;
use std::ops::Range;

use gpuprobe_discover::{ReplacedReturn, Stack, return_address_in};

use crate::wire::{from_bytes, gp_patch, gp_stack_record, number};

/// The copied stack of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawStack {
    /// The call that it belongs to.
    pub(crate) id: u64,
    /// Where the call returns to.
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    pub(crate) lr: u64,
    /// A hash of its Python frames; a number of `gp_python_absence` if it has none.
    pub(crate) python: u64,
    /// Its Python frames were sent.
    pub(crate) has_python: bool,
    /// The memory from `sp` on.
    pub(crate) bytes: Vec<u8>,
    /// The return addresses that return probes have replaced and that are not restored in `bytes`.
    pub(crate) replaced: Vec<ReplacedReturn>,
}

impl RawStack {
    /// From a record of the ring. Return addresses that return probes had replaced are restored.
    pub(crate) fn from_record(record: &[u8]) -> Option<Self> {
        let raw: gp_stack_record = from_bytes(record);
        let bytes = record.get(size_of::<gp_stack_record>()..)?.get(..raw.length as usize)?;
        let mut stack = Self {
            id: raw.id,
            ip: raw.instruction_pointer,
            sp: raw.stack_pointer,
            fp: raw.frame_pointer,
            lr: raw.link_register,
            python: raw.python,
            has_python: raw.has_python != 0,
            bytes: bytes.to_vec(),
            replaced: Vec::new(),
        };
        stack.replaced = restore(&mut stack.bytes, raw.stack_pointer, &raw.patch[..], raw.patches.into());
        Some(stack)
    }

    /// Whether it is of a thread of PyTorch's backward pass, which runs no Python.
    pub(crate) fn is_autograd(&self) -> bool {
        self.python == u64::from(number::PYTHON_AUTOGRAD_THREAD)
    }

    /// Writes the return addresses that were found into the copy. The BPF programs compare these words as they are after
    /// that, without signatures and without what probes have replaced.
    pub(crate) fn restore(&mut self, found: &Stack) {
        for (slot, address) in
            found.slots.iter().zip(&found.addresses).filter_map(|(slot, a)| Some(((*slot)?, a)))
        {
            if let Some(word) = self.range(slot).and_then(|range| self.bytes.get_mut(range)) {
                word.copy_from_slice(&address.to_le_bytes());
            }
        }
    }

    /// The return address at an address of the process, if it was copied.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let bytes = self.bytes.get(self.range(address)?)?;
        bytes.first_chunk().map(|word| return_address_in(u64::from_le_bytes(*word)))
    }

    fn range(&self, address: u64) -> Option<Range<usize>> {
        let offset = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        Some(offset..offset.checked_add(8)?)
    }
}

/// Puts the return addresses back that return probes have replaced, into the memory from `sp` on. Returns those that
/// are not on the stack where the function was entered.
pub(crate) fn restore(bytes: &mut [u8], sp: u64, patches: &[gp_patch], count: usize) -> Vec<ReplacedReturn> {
    let patches = patches.iter().take(count);
    if cfg!(target_arch = "aarch64") {
        return patches
            .map(|patch| ReplacedReturn { entered_at: patch.slot, address: patch.address })
            .collect();
    }
    for patch in patches {
        let offset = patch.slot.checked_sub(sp).and_then(|at| usize::try_from(at).ok());
        let word = offset.and_then(|at| bytes.get_mut(at..at.checked_add(8)?));
        if let Some(word) = word {
            word.copy_from_slice(&patch.address.to_le_bytes());
        }
    }
    Vec::new()
}

/// Stacks whose calls have not come yet. A stack comes before its call, and records of other threads may be between
/// them.
#[derive(Debug, Default)]
pub(crate) struct WaitingStacks(VecDeque<RawStack>);

impl WaitingStacks {
    /// More than there are threads between a stack and its call; older stacks lost their call.
    const MAX: usize = 256;

    pub(crate) fn add(&mut self, stack: Option<RawStack>) {
        if self.0.len() >= Self::MAX {
            self.0.pop_front();
        }
        self.0.extend(stack);
    }

    /// Takes the stack of a call.
    pub(crate) fn take(&mut self, id: u64) -> Option<RawStack> {
        let at = self.0.iter().rposition(|stack| stack.id == id)?;
        self.0.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::as_bytes;

    #[test]
    fn replaced_return_addresses_are_restored() {
        let trampoline = [0x7fff_ffff_e000u64, 5, 0x7fff_ffff_e000];
        let mut raw = gp_stack_record {
            kind: number::RECORD_STACK,
            id: 7,
            stack_pointer: 0x1000,
            length: 24,
            patches: 3,
            ..gp_stack_record::default()
        };
        // the third is outside of the copy
        for (i, (slot, address)) in [(0x1010, 33), (0x1000, 11), (0x5000, 1)].into_iter().enumerate() {
            raw.patch[i].slot = slot;
            raw.patch[i].address = address;
        }
        let mut record = as_bytes(&raw).to_vec();
        trampoline.iter().for_each(|word| record.extend(word.to_le_bytes()));
        let stack = RawStack::from_record(&record).unwrap();
        let words: Vec<_> =
            stack.bytes.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!((stack.id, words), (7, vec![11, 5, 33]));
        record.truncate(record.len() - 1);
        assert_eq!(RawStack::from_record(&record), None, "shorter than its header says");
    }

    #[test]
    fn stacks_wait_for_their_calls() {
        let stack = |id| RawStack {
            id,
            ip: 0,
            sp: 0,
            fp: 0,
            lr: 0,
            python: 0,
            has_python: false,
            bytes: Vec::new(),
            replaced: Vec::new(),
        };
        let mut waiting = WaitingStacks::default();
        for id in [7, 8, 9] {
            waiting.add(Some(stack(id)));
        }
        waiting.add(None);
        assert_eq!([7, 9, 9, 8].map(|id| waiting.take(id).map(|s| s.id)), [Some(7), Some(9), None, Some(8)]);
        (0..1000).for_each(|id| waiting.add(Some(stack(id))));
        assert_eq!((waiting.0.len(), waiting.take(743), waiting.take(744)), (256, None, Some(stack(744))));
    }
}
