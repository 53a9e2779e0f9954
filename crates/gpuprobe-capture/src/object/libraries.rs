//! The libraries and loaders that are probed.

use std::collections::HashSet;

use gpuprobe_discover::{FileId, Loader, Target};
use gpuprobe_event::{Api, Class, Function, FunctionId, catalogue};
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::attach::{self, Attach, Attached, Collect};
use crate::clock::monotonic_ns;
use crate::error::CaptureError;
use crate::kernel_names::{LibraryNumber, proven_word};
use crate::machine::may_write_back;
use crate::support::Tier;
use crate::wire::{MapName, as_bytes, gp_file, number};

impl Capture {
    /// Probes a library. One that is probed already is left as it is. Nothing is observed of it before
    /// [`Capture::start_observing`]: probes come one after the other, and an allocation that is seen before its free can
    /// be seen would be shown as live for ever.
    pub fn attach(
        &mut self,
        target: &Target,
        collect: &dyn Fn(FunctionId) -> Collect,
    ) -> Result<&Attached, CaptureError> {
        let key = (target.library.id, target.library.kind);
        if !self.attached.contains_key(&key) {
            // no number is given, perhaps again, while probes with another one may still be there
            let path = &target.library.path;
            self.keeper
                .catch_up()
                .map_err(|source| CaptureError::Attach { path: path.clone(), source: source.into() })?;
            self.libraries = next_number(self.libraries, &|row| {
                self.attached.values().any(|attached| state_row(attached.how.library) == row)
            });
            self.set_state(self.libraries, number::LIBRARY_ATTACHING)?;
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
            let is_copy = |f: &Function| matches!(f.class, Class::Memcpy | Class::Memset);
            self.decoder.follows_copies |= library.kind == Api::Driver
                && attached.points.keys().any(|id| catalogue().get(*id).is_some_and(is_copy));
            self.attached.insert(key, attached);
            self.tell_name_word()?;
        }
        Ok(&self.attached[&key])
    }

    /// Observes every library that was probed since the last time, from now on. The driver comes first: whatever another
    /// library allocates or frees goes through it.
    pub fn start_observing(&mut self) -> Result<(), CaptureError> {
        let waiting = self.attached.iter().filter(|(_, attached)| attached.observed_since_ns.is_none());
        let mut waiting: Vec<_> = waiting.map(|(key, attached)| (*key, attached.how.library)).collect();
        waiting.sort_by_key(|((_, api), _)| *api != Api::Driver);
        for (_, number) in &waiting {
            self.set_state(*number, number::LIBRARY_ACTIVE)?;
        }
        // a process that maps one between its activation and this moment is taken for a late one
        let now = monotonic_ns();
        for (key, _) in waiting {
            self.attached.entry(key).and_modify(|attached| attached.observed_since_ns = Some(now));
        }
        Ok(())
    }

    /// Observes nothing of these files any more but what ends memory, in preparation for [`Capture::detach_files`]: of
    /// an allocation that is counted now nobody would see the free. `false` undoes it.
    pub fn prepare_detach(&mut self, files: &HashSet<FileId>, is_prepared: bool) -> Result<(), CaptureError> {
        let state = if is_prepared { number::LIBRARY_DETACHING } else { number::LIBRARY_ACTIVE };
        let theirs = self.attached.iter().filter(|((id, _), _)| files.contains(id));
        theirs
            .map(|(_, attached)| attached.how.library)
            .try_for_each(|library| self.set_state(library, state))
    }

    fn set_state(&self, library: LibraryNumber, state: u32) -> Result<(), CaptureError> {
        let row = u32::from(state_row(library));
        self.map(MapName::LibraryStates)?
            .update(&row.to_ne_bytes(), &state.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of libraries"))
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
            self.map(MapName::Loaders)?
                .update(as_bytes(&file), &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(CaptureError::bpf("note a loader"))?;
        }
        Ok(())
    }
}

/// Rows of states.
const ROWS: u16 = number::LIBRARIES as u16;

/// The row that has the state of a library.
fn state_row(library: LibraryNumber) -> u16 {
    library % ROWS
}

/// The number of the next library. Numbers come round, so those whose row is in use are passed over; row 0 belongs to
/// functions of no library.
fn next_number(last: LibraryNumber, is_in_use: &dyn Fn(u16) -> bool) -> LibraryNumber {
    let is_free = |number: &LibraryNumber| state_row(*number) != 0 && !is_in_use(state_row(*number));
    let mut following = (1..=LibraryNumber::MAX).map(|i| last.wrapping_add(i));
    // far fewer libraries are probed at once than there are rows
    following.find(is_free).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_libraries_come_round_and_pass_over_rows_in_use() {
        let free = |_| false;
        assert_eq!(next_number(0, &free), 1);
        assert_eq!(next_number(ROWS - 1, &free), ROWS + 1, "row 0 is not theirs");
        assert_eq!(next_number(LibraryNumber::MAX, &free), 1);
        let used = |row| row == 5 || row == 6;
        assert_eq!(next_number(ROWS + 4, &used), ROWS + 7);
        assert_eq!(next_number(7, &|_| true), 1);
    }
}
