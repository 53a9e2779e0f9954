//! Names the CUDA kernels of launches: from the records about handles, and from the files and the memory of processes.

use std::sync::Arc;

use gpuprobe_event::Tgid;
use gpuprobe_event::counters::ProcessKey;

use super::Decoder;
use crate::ring::cuda_kernel_names::HandleInfo;
use crate::wire::{from_bytes, gp_name_record, number};

impl Decoder {
    /// Adds the name of a CUDA kernel.
    pub(super) fn name(&mut self, bytes: &[u8]) {
        let raw: gp_name_record = from_bytes(bytes);
        let key = ProcessKey { tgid: Tgid(raw.tgid), instance: raw.instance };
        let text = bytes.get(size_of::<gp_name_record>()..).unwrap_or_default();
        // the length includes the terminating zero
        let text = text.get(..(raw.length as usize).saturating_sub(1)).unwrap_or_default();
        let mut text = String::from_utf8_lossy(text);
        if text.is_empty() && raw.how != number::NAME_ALIAS {
            let word = raw.handle.wrapping_add(8 * u64::from(raw.word));
            let candidate = raw.how == number::NAME_CANDIDATE;
            let address = if raw.address == 0 && candidate {
                self.resolve.word(key.tgid, word)
            } else {
                Some(raw.address)
            };
            text = address.and_then(|at| self.resolve.text(key.tgid, at)).unwrap_or_default().into();
        }
        let info = match raw.how {
            number::NAME_KNOWN => HandleInfo::Name { text: &text, matches: raw.matches },
            number::NAME_ALIAS => HandleInfo::AliasOf(raw.other),
            number::NAME_CANDIDATE => HandleInfo::Candidate { text: &text, word: raw.word, outer: raw.other },
            _ => {
                self.undecodable += 1;
                return;
            }
        };
        let driver = Some(raw.library).filter(|number| self.drivers.get(number) == Some(&true));
        self.kernels.learn(key, driver, raw.handle, info);
        // records have the handle without the tag
        let untagged = raw.handle & !(u64::MAX << number::KERNEL_TAG_BIT);
        if untagged != raw.handle && raw.how != number::NAME_CANDIDATE {
            self.kernels.learn(key, driver, untagged, info);
        }
        // at once: the process may exit before its launches are read
        if raw.how == number::NAME_CANDIDATE {
            self.kernel(key, raw.handle);
        }
    }

    /// The name of the CUDA kernel that a launch launches. If it is not known, the files of the process may have it.
    pub(crate) fn kernel(&mut self, key: ProcessKey, handle: u64) -> Option<Arc<str>> {
        if let Some(name) = self.kernels.name(key, handle) {
            return Some(Arc::clone(name));
        }
        self.prove_name(key, handle);
        let unread = self.kernels.unread_word(key, handle);
        if self.without_name.insert((key, handle, unread.is_some())) {
            if let Some((driver, word)) = unread
                && let Some(at) = self.resolve.word(key.tgid, handle.wrapping_add(8 * u64::from(word)))
                && let Some(text) = self.resolve.text(key.tgid, at)
            {
                let info = HandleInfo::Candidate { text: &text, word, outer: 0 };
                self.kernels.learn(key, Some(driver), handle, info);
            }
            // the handle may be the host function of a kernel, which has the kernel's name
            if self.kernels.name(key, handle).is_none()
                && let Some(name) = self.resolve.symbol(key.tgid, handle)
            {
                self.kernels.found(key, handle, &name);
            }
        }
        self.kernels.name(key, handle).map(Arc::clone)
    }

    /// Searches the files of the process for the text that the handle points to, if that is not known to be its name.
    fn prove_name(&mut self, key: ProcessKey, handle: u64) {
        if let Some(text) = self.kernels.unproven(key, handle)
            && let Some(is_found) = self.resolve.has_kernel_name(key.tgid, &text)
        {
            self.kernels.searched(key, handle, is_found);
        }
    }
}
