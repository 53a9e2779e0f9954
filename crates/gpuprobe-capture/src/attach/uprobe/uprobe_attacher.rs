//! The probed libraries and dynamic loaders.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use gpuprobe_discover::{FileId, Library, Loader, OpenedFile, ProbeCost, Target};
use gpuprobe_event::{Api, FunctionId};
use libbpf_rs::{MapCore, MapFlags, Object};

use super::agent_probes::AgentLinks;
use super::detachable_probes::DetachableProbes;
use super::library::{self, AttachOptions, Attached};
use crate::attach::helper::helper_client::{HelperClient, LinkId};
use crate::attach::helper::request::ProbedFile;
use crate::error::CaptureError;
use crate::host::clock::{boottime_ns, monotonic_ns};
use crate::host::machine_checks::may_write_back;
use crate::host::support::Tier;
use crate::load::collect::{Collect, CountedOps};
use crate::load::config::CaptureConfig;
use crate::wire::object_handles::map_of;
use crate::wire::{LibraryNumber, MapName, as_bytes, gp_file, gp_library, number};

/// One library file, as one of the APIs that it implements.
pub(crate) type LibraryKey = (FileId, Api);

/// The probes on libraries and dynamic loaders.
#[derive(Debug)]
pub(crate) struct UprobeAttacher {
    // dropped first: no probe may outlive the object
    pub(super) helper: HelperClient,
    pub(super) object: Rc<Object>,
    pub(super) attached: HashMap<LibraryKey, Attached>,
    loaders: HashMap<FileId, LinkId>,
    pub(super) agents: AgentLinks,
    pub(super) detachable: DetachableProbes,
    tier: Tier,
    entry_only: bool,
    bare: bool,
    counted: CountedOps,
    lossless: bool,
    /// The number of the library that was attached last.
    last_number: LibraryNumber,
}

impl UprobeAttacher {
    /// Starts the attach helper.
    pub(crate) fn start(
        object: Rc<Object>,
        helper: Command,
        config: &CaptureConfig,
        tier: Tier,
        counted: CountedOps,
    ) -> Result<Self, CaptureError> {
        // requests to agents are perf events on every tier
        let perf = tier == Tier::Perf || config.gpu_time;
        Ok(Self {
            helper: HelperClient::start(helper, &object, perf)?,
            object,
            attached: HashMap::new(),
            loaders: HashMap::new(),
            agents: AgentLinks::default(),
            detachable: DetachableProbes::new(config.detachable),
            tier,
            entry_only: config.entry_only,
            bare: config.bare,
            counted,
            lossless: config.lossless,
            last_number: 0,
        })
    }

    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }

    /// Readable when the helper has exited.
    pub(crate) fn helper_fd(&self) -> BorrowedFd<'_> {
        self.helper.fd()
    }

    /// Fails if the helper has exited.
    pub(crate) fn check_helper(&mut self) -> Result<(), CaptureError> {
        self.helper.check()
    }

    pub(crate) fn dismiss_helper(&mut self) {
        self.helper.dismiss();
    }

    pub(crate) fn is_attached(&self, key: LibraryKey) -> bool {
        self.attached.contains_key(&key)
    }

    pub(crate) fn library(&self, key: LibraryKey) -> &Attached {
        &self.attached[&key]
    }

    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Attached> {
        self.attached.values()
    }

    /// Chooses the number of the next library, whose calls are not observed yet.
    pub(crate) fn next_library(&mut self, path: &Path) -> Result<LibraryNumber, CaptureError> {
        // a number must not be used again while probes with it may still be attached
        self.helper
            .catch_up()
            .map_err(|source| CaptureError::Attach { path: path.to_owned(), source: source.into() })?;
        self.last_number = next_number(self.last_number, &|row| {
            self.attached.values().any(|attached| state_row(attached.options.library) == row)
        });
        self.set_state(self.last_number, number::LIBRARY_ATTACHING, u64::MAX)?;
        Ok(self.last_number)
    }

    /// Attaches to a library under the number that [`Self::next_library`] chose.
    pub(crate) fn attach(
        &mut self,
        target: &Target,
        number: LibraryNumber,
        collect: &dyn Fn(FunctionId) -> Collect,
    ) -> Result<&Attached, CaptureError> {
        let options = AttachOptions {
            tier: self.tier,
            entry_only: self.entry_only,
            bare: self.bare,
            library: number,
            turn: 0,
            counted: self.counted,
            lossless: self.lossless,
            may_always_return: self.tier == Tier::Session || may_write_back(),
        };
        let of_calls =
            target.functions.iter().map(|f| f.function).filter(|id| collect(*id) == Collect::Failures);
        self.sample_failures(of_calls.chain(target.failure_points.iter().map(|point| point.function)))?;
        let (helper, detachable) = (&mut self.helper, &self.detachable);
        let attached = library::attach(&self.object, helper, target, options, detachable, collect)?;
        let key = (target.library.id, target.library.kind);
        Ok(self.attached.entry(key).insert_entry(attached).into_mut())
    }

    /// Starts to observe every library that was attached since the last time. The APIs that do the work come first: whatever
    /// another library allocates or frees goes through them.
    pub(crate) fn start_observing(&mut self) -> Result<(), CaptureError> {
        let waiting = self.attached.iter().filter(|(_, attached)| attached.observed_since_ns.is_none());
        let mut waiting: Vec<_> = waiting.map(|(key, attached)| (*key, attached.options.library)).collect();
        waiting.sort_by_key(|((_, api), _)| !api.does_work());
        self.activate(&waiting.iter().map(|(_, number)| *number).collect::<Vec<_>>())?;
        // read afterwards: a process that maps a library between its activation and this instant counts as late
        let now = monotonic_ns();
        for (key, _) in waiting {
            self.attached.entry(key).and_modify(|attached| attached.observed_since_ns = Some(now));
        }
        Ok(())
    }

    pub(crate) fn prepare_detach(
        &mut self,
        files: &HashSet<FileId>,
        is_prepared: bool,
    ) -> Result<(), CaptureError> {
        let theirs = self.attached.iter().filter(|((id, _), _)| files.contains(id));
        let theirs: Vec<_> = theirs.map(|(_, attached)| attached.options.library).collect();
        if !is_prepared {
            return self.activate(&theirs);
        }
        theirs.iter().try_for_each(|library| self.set_state(*library, number::LIBRARY_DETACHING, u64::MAX))
    }

    /// Observes the calls of these libraries from now on. The time is read when they are active, so a process that
    /// started after it has made no call that was not observed.
    fn activate(&self, libraries: &[LibraryNumber]) -> Result<(), CaptureError> {
        for library in libraries {
            self.set_state(*library, number::LIBRARY_ACTIVE, u64::MAX)?;
        }
        let now = boottime_ns();
        libraries.iter().try_for_each(|library| self.set_state(*library, number::LIBRARY_ACTIVE, now))
    }

    fn set_state(
        &self,
        library: LibraryNumber,
        state: u32,
        observed_since_ns: u64,
    ) -> Result<(), CaptureError> {
        let attached = self.attached.values().find(|attached| attached.options.library == library);
        let opened = attached.and_then(|attached| attached.file.expected);
        let file_bytes = opened.map_or(0, |opened| u32::try_from(opened.size).unwrap_or(u32::MAX));
        let row = gp_library { observed_since_ns, state, file_bytes };
        map_of(&self.object, MapName::Libraries)?
            .update(&u32::from(state_row(library)).to_ne_bytes(), as_bytes(&row), MapFlags::ANY)
            .map_err(CaptureError::bpf("write the table of libraries"))
    }

    /// Removes every probe of these files, without waiting for it.
    pub(crate) fn detach_files(&mut self, files: &HashSet<FileId>) {
        let removed = self.attached.extract_if(|(attached, _), _| files.contains(attached));
        let links = removed.flat_map(|(_, attached)| attached.into_links()).collect();
        self.helper.detach_later(links);
    }

    /// Removes every probe, and returns when they are removed.
    pub(crate) fn detach_all(&mut self) {
        let loaders = self.loaders.drain().map(|(_, link)| link);
        let libraries = self.attached.drain().flat_map(|(_, attached)| attached.into_links());
        self.helper.detach(self.agents.drain().into_iter().chain(loaders).chain(libraries).collect());
    }

    /// Whether this dynamic loader is probed.
    pub(crate) fn has_loader(&self, loader: &Loader) -> bool {
        self.loaders.contains_key(&loader.id)
    }

    pub(crate) fn attach_loader(&mut self, loader: &Loader) -> Result<(), CaptureError> {
        if !self.loaders.contains_key(&loader.id) {
            let link = library::attach_loader(&mut self.helper, self.tier, loader)?;
            self.loaders.insert(loader.id, link);
            // the Linux kernel's own numbering of devices
            let (major, minor, inode) = loader.mapped;
            let file = gp_file { inode, device: major << 20 | minor, reserved: 0 };
            map_of(&self.object, MapName::Loaders)?
                .update(as_bytes(&file), &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(CaptureError::bpf("register a dynamic loader"))?;
        }
        Ok(())
    }

    /// Takes in the paths by which the files of mapped libraries can be opened now. Counts the turns that were missed in
    /// these libraries, and returns whether there were any. A library that no process maps has missed nothing.
    pub(crate) fn set_open_paths(&mut self, mapped: &[Library]) -> bool {
        let size = |opened: Option<OpenedFile>| opened.map(|opened| (opened.size, opened.owner));
        let mut missed = 0;
        for ((file, _), attached) in &mut self.attached {
            let has_missed = std::mem::take(&mut attached.has_missed_turn);
            let Some(library) = mapped.iter().find(|library| library.id == *file) else { continue };
            missed += u64::from(has_missed);
            // device numbers are not compared: through another mount they may differ
            if size(attached.file.expected) == size(library.opened) {
                attached.file = ProbedFile { path: library.open_path.clone(), expected: library.opened };
            }
        }
        self.detachable.missed_turns += missed;
        missed > 0
    }

    pub(crate) fn point_of(&self, id: FunctionId) -> Option<ProbeCost> {
        self.attached.values().filter_map(|attached| attached.points.get(&id)).max().copied()
    }
}

/// How many libraries can be attached at once, plus one.
const ROWS: u16 = number::LIBRARIES as u16;

/// The row of the table of library states.
fn state_row(library: LibraryNumber) -> u16 {
    library % ROWS
}

/// The number of the next library. Numbers wrap around, so those whose row is in use are skipped; row 0 is for
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
    fn library_numbers_wrap_around_and_skip_rows_in_use() {
        let free = |_| false;
        assert_eq!(next_number(0, &free), 1);
        assert_eq!(next_number(ROWS - 1, &free), ROWS + 1, "row 0 is reserved");
        assert_eq!(next_number(LibraryNumber::MAX, &free), 1);
        let used = |row| row == 5 || row == 6;
        assert_eq!(next_number(ROWS + 4, &used), ROWS + 7);
        assert_eq!(next_number(7, &|_| true), 1);
    }
}
