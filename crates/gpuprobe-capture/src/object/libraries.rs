//! The libraries and loaders that are probed.

use std::collections::HashSet;

use gpuprobe_discover::{FileId, Loader, Target};
use gpuprobe_event::FunctionId;
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::attach::{self, Attach, Attached, Collect};
use crate::error::CaptureError;
use crate::kernel_names::proven_word;
use crate::machine::may_write_back;
use crate::support::Tier;
use crate::wire::{as_bytes, gp_file};

impl Capture {
    /// Probes a library. One that is probed already is left as it is.
    pub fn attach(
        &mut self,
        target: &Target,
        collect: &dyn Fn(FunctionId) -> Collect,
    ) -> Result<&Attached, CaptureError> {
        let key = (target.library.id, target.library.kind);
        if !self.attached.contains_key(&key) {
            // numbers may come round after 65,536 files; names of kernels would then be learned anew
            self.libraries = self.libraries.wrapping_add(1);
            let how = Attach {
                tier: self.tier,
                entry_only: self.entry_only,
                bare: self.bare,
                library: self.libraries,
                counted: self.counted,
                may_always_return: self.tier == Tier::Session || may_write_back(),
            };
            let library = &target.library;
            self.decoder.add_library(self.libraries, library.kind, proven_word(&library.path));
            let attached = attach::attach(&self.object, &mut self.keeper, target, how, &self.apart, collect)?;
            self.attached.insert(key, attached);
            self.tell_name_word()?;
        }
        Ok(&self.attached[&key])
    }

    /// Takes every probe out of these files, some time later.
    pub fn detach_files(&mut self, files: &HashSet<FileId>) {
        let gone = self.attached.extract_if(|(attached, _), _| files.contains(attached));
        let links = gone.flat_map(|(_, attached)| attached.into_links()).collect();
        self.keeper.detach_later(links);
    }

    /// Every library that is probed.
    pub fn attached(&self) -> impl Iterator<Item = &Attached> {
        self.attached.values()
    }

    /// Whether targets with this dynamic loader are held already.
    pub fn holds_by(&self, loader: &Loader) -> bool {
        self.loaders.contains_key(&loader.id)
    }

    /// Holds targets whose dynamic loader this is while it maps libraries.
    pub fn attach_loader(&mut self, loader: &Loader) -> Result<(), CaptureError> {
        if !self.loaders.contains_key(&loader.id) {
            let link = attach::attach_loader(&mut self.keeper, self.tier, loader)?;
            self.loaders.insert(loader.id, link);
            // the kernel's own numbering of devices
            let (major, minor, inode) = loader.mapped;
            let file = gp_file { inode, device: major << 20 | minor, reserved: 0 };
            self.map("loaders")?
                .update(as_bytes(&file), &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(CaptureError::bpf("note a loader"))?;
        }
        Ok(())
    }
}
