//! Attaches probes to libraries that scans find, and detaches them from libraries that are no longer used.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use gpuprobe_capture::{Attached, Tier};
use gpuprobe_discover::{
    FileId, HostPaths, Library, Scan, SkipCause, Skipped, Target, UserId, Users, identity, plan,
};
use gpuprobe_event::Tgid;
use gpuprobe_output::units::duration;

use super::probe_set::{PROC, Probes};
use super::user_quota::{MOST_LIBRARIES, MOST_OF_USER};
use crate::terminal::notes::note;

/// Most libraries detached at once: each takes the Linux kernel up to a twentieth of a second, and gpuprobe blocks
/// meanwhile.
const MOST_LET_GO: usize = 32;
/// How long libraries of a file system are not probed after one of them did not respond: gpuprobe blocks while it
/// waits.
const STALLED_FOR: Duration = Duration::from_secs(60);

/// The result of probing what a scan found.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// Newly probed libraries that have requested functions.
    pub(super) libraries: usize,
    /// Processes that had mapped one of these before its probes were attached.
    pub(super) late: HashSet<Tgid>,
    /// A library no longer existed when it was to be probed.
    pub(super) library_removed: bool,
}

/// The library no longer exists: it was removed or replaced, or the process that led to it has exited.
#[derive(Debug)]
struct LibraryRemoved;

impl Probes {
    /// Scans the whole host again, probes new libraries and detaches unused ones. Returns the processes that had
    /// mapped a library before it was probed. If processes are given, only what they use is probed, and what is installed.
    pub(crate) fn rescan_host(&mut self, given: Option<&HashSet<Tgid>>) -> HashSet<Tgid> {
        let placed = self.inspector.of_installed(&HostPaths::default());
        let mapped = self.scan_processes(given);
        let host_scan = HostScan::at(&mapped, Some(&placed));
        if host_scan.is_complete {
            self.skips.keep_found([&placed, &mapped]);
        }
        if let Some(quota) = &mut self.quota {
            quota.update(&users_of(&mapped.users));
        }
        // the scan of processes knows who has mapped files of the library folders
        let placed = Scan { users: mapped.users.clone(), ..placed };
        let mut late = self.attach_scan(placed).late;
        late.extend(self.attach_scan(mapped).late);
        late.extend(self.detach_unused(given, |id| host_scan.may_have(id)));
        late.retain(|tgid| is_given(given, *tgid));
        late
    }

    /// Scans all processes. If some are given, the libraries are those that they use.
    fn scan_processes(&mut self, given: Option<&HashSet<Tgid>>) -> Scan {
        let mut scan = self.inspector.of_processes(Path::new(PROC));
        if given.is_some() {
            let Scan { libraries, users, .. } = &mut scan;
            let is_used = |users: &Users| users.keys().any(|pid| is_given(given, Tgid(*pid)));
            libraries.retain(|library| users.get(&library.id).is_some_and(is_used));
        }
        scan
    }

    /// Detaches libraries that were not found again if their probes would keep something busy: the mounts of a
    /// container, a file system, a deleted file. If there is no room for more libraries, all unused ones are detached.
    /// Inode and device numbers are reused, so a later file with the same numbers can be a different one. Returns the
    /// processes that started to use one of them meanwhile.
    fn detach_unused(
        &mut self,
        given: Option<&HashSet<Tgid>>,
        found: impl Fn(&FileId) -> bool,
    ) -> HashSet<Tgid> {
        let full = self.capture.attached().count() >= MOST_LIBRARIES;
        let is_needed = |a: &Attached| self.quota.as_ref().is_some_and(|quota| quota.needs_room(&a.id));
        let unused = |a: &&Attached| {
            !found(&a.id) && !self.named.contains(&a.id) && (full || is_needed(a) || !may_stay_probed(a))
        };
        let unused: HashSet<_> = self.capture.attached().filter(unused).map(|a| a.id).collect();
        let unused: HashSet<_> = unused.into_iter().take(MOST_LET_GO).collect();
        let late = if unused.is_empty() { HashSet::new() } else { self.detach(unused, given) };
        let attached: HashSet<_> = self.capture.attached().map(|a| a.id).collect();
        self.considered.retain(|(id, _)| attached.contains(id) || found(id));
        self.auxiliary.retain(|id| attached.contains(id));
        if let Some(quota) = &mut self.quota {
            quota.retain(&attached);
        }
        late
    }

    /// Detaches files that no process has mapped, or none of the given ones. A process may have mapped one since the scan, so allocations are
    /// ignored first and processes are scanned once more: memory that is counted and then freed without a probe would
    /// stay live forever. Some calls of such a process may have been ignored, so it is returned.
    fn detach(&mut self, mut files: HashSet<FileId>, given: Option<&HashSet<Tgid>>) -> HashSet<Tgid> {
        if let Err(error) = self.capture.prepare_detach(&files, true) {
            note!("gpuprobe: unused libraries stay probed: {error:#}");
            return HashSet::new();
        }
        let scan = self.scan_processes(given);
        let now = HostScan::at(&scan, None);
        let used_again: HashSet<_> = files.extract_if(|id| now.may_have(id)).collect();
        if let Err(error) = self.capture.prepare_detach(&used_again, false) {
            note!("gpuprobe: a library is no longer observed: {error:#}");
        }
        for attached in self.capture.attached().filter(|a| files.contains(&a.id)) {
            self.verbose_note(|| format!("{}: detached, no longer used", attached.path.display()));
        }
        self.capture.detach_files(&files);
        let users = used_again.iter().filter_map(|id| scan.users.get(id)).flat_map(|users| users.keys());
        users.map(|pid| Tgid(*pid)).collect()
    }

    /// Probes the new libraries of a scan. Observation of all of them starts at the same moment.
    pub(super) fn attach_scan(&mut self, scan: Scan) -> ScanResult {
        let Scan { libraries, mut skipped, users, stack_copiers, .. } = scan;
        stack_copiers.into_iter().for_each(|pid| self.mark_stack_copier(Tgid(pid)));
        // a library that was probed before its file system stalled is not skipped
        let is_probed =
            |file: Option<FileId>| file.is_some_and(|id| self.capture.attached().any(|a| a.id == id));
        skipped.retain(|s| s.cause != Some(SkipCause::Stalled) || !is_probed(s.file));
        self.skip_all(&skipped);
        let new: Vec<Library> =
            libraries.into_iter().filter(|library| self.admits(library, &users)).collect();
        if new.is_empty() {
            return ScanResult::default();
        }
        let (plan, skipped) = plan(&new, &|library, name| self.function(library, name), &|library, name| {
            self.selection.failure_point(library, name)
        });
        self.skip_all(&skipped);
        // try again at the next scan
        let stalled = skipped.iter().filter(|s| s.cause == Some(SkipCause::Stalled)).filter_map(|s| s.file);
        for file in stalled {
            self.considered.retain(|(id, _)| *id != file);
        }
        let mut attached: Vec<(FileId, usize)> = Vec::new();
        let mut library_removed = false;
        for target in &plan.targets {
            match self.attach(target) {
                Ok(Some(requested)) => attached.push((target.library.id, requested)),
                Ok(None) => {}
                Err(LibraryRemoved) => library_removed = true,
            }
        }
        if let Err(error) = self.capture.start_observing() {
            note!("gpuprobe: new libraries are not observed: {error:#}");
        }
        self.attaches += 1;
        let wanted = attached.iter().filter(|(_, requested)| *requested > 0).map(|(id, _)| id);
        let late = wanted.clone().filter_map(|id| users.get(id)).flat_map(|users| users.keys());
        ScanResult { late: late.map(|pid| Tgid(*pid)).collect(), libraries: wanted.count(), library_removed }
    }

    /// Whether to probe a library: it was not considered before, and there is room for it.
    fn admits(&mut self, library: &Library, users: &HashMap<FileId, Users>) -> bool {
        if self.considered.contains(&(library.id, library.kind)) {
            return false;
        }
        // only this tier can decline the return probe of the call that a loader makes
        let may_repeat = library.is_behind_loader && self.capture.tier() != Tier::Session;
        if may_repeat && !self.named.contains(&library.id) {
            self.considered.insert((library.id, library.kind));
            return false;
        }
        self.stalled.retain(|_, since| since.elapsed() < STALLED_FOR);
        if self.stalled.contains_key(&library.id.dev) {
            return false;
        }
        let none = Users::new();
        let mut users: BTreeSet<UserId> = users.get(&library.id).unwrap_or(&none).values().copied().collect();
        if users.is_empty() {
            // the process that had it mapped has exited, or it was found by its path
            users.extend(library.opened.map(|opened| UserId(opened.owner)));
        }
        let skipped = |cause, reason| Skipped::file(&library.path, Some(library.id), cause, reason);
        if self.capture.attached().count() >= MOST_LIBRARIES {
            let reason = format!("{MOST_LIBRARIES} libraries are probed already");
            self.skip(&skipped(SkipCause::TooMany, reason));
            return false;
        }
        if let Some(user) = self.quota.as_mut().and_then(|quota| quota.refuses(library.id, &users)) {
            self.refuse(
                user,
                &skipped(SkipCause::UserQuota, format!("user {} has reached their share", user.0)),
            );
            return false;
        }
        self.considered.insert((library.id, library.kind))
    }

    /// Skips a library because of its user's quota. The first refusal of each user is reported, with or without
    /// `--verbose`.
    fn refuse(&mut self, user: UserId, skipped: &Skipped) {
        if self.quota.as_mut().is_some_and(|quota| quota.is_first_refusal(user)) {
            note!(
                "gpuprobe: user {} has reached the limit of {MOST_OF_USER} probed libraries, or all users together \
                 have: more are not probed, see skipped libraries",
                user.0
            );
        }
        self.skip(skipped);
    }

    /// Probes a library. Returns the number of its requested functions, or `None` if it was skipped.
    fn attach(&mut self, target: &Target) -> Result<Option<usize>, LibraryRemoved> {
        let library = &target.library;
        if self.capture.attached().count() >= MOST_LIBRARIES {
            self.considered.remove(&(library.id, library.kind));
            let reason = format!("{MOST_LIBRARIES} libraries are probed already");
            self.skip(&Skipped::file(&library.path, Some(library.id), SkipCause::TooMany, reason));
            return Ok(None);
        }
        let begun = Instant::now();
        let (selection, collect) = (&self.selection, self.collect);
        let requested = target.functions.iter().filter(|f| selection.selects_id(f.function)).count();
        match self.capture.attach(target, &|id| selection.collect(id, collect)) {
            Ok(attached) => {
                let (count, skipped) = (attached.functions, attached.skipped.clone());
                let failing = attached.failure_points;
                let took = duration(begun.elapsed().as_nanos() as u64);
                let what = if requested > 0 { "" } else { ", none of them requested," };
                self.verbose_note(|| {
                    let failing =
                        if failing > 0 { format!(" and {failing} failure points") } else { String::new() };
                    format!("{}: {count} functions{what}{failing} in {took}", library.path.display())
                });
                self.skip_all(&skipped);
                self.requested += requested;
                if requested == 0 {
                    self.auxiliary.insert(library.id);
                }
                Ok(Some(requested))
            }
            Err(error) if error.is_removed() => {
                // another process may have a path to it
                self.considered.remove(&(library.id, library.kind));
                self.verbose_note(|| format!("{}: removed before it was probed", library.path.display()));
                Err(LibraryRemoved)
            }
            Err(error) => {
                if error.is_own_stall() {
                    self.stalled.insert(library.id.dev, Instant::now());
                }
                let cause = if error.is_stall() {
                    // try again at the next scan
                    self.considered.remove(&(library.id, library.kind));
                    SkipCause::Stalled
                } else {
                    SkipCause::Refused
                };
                let reason = error.to_string();
                self.skip(&Skipped::file(&library.path, Some(library.id), cause, reason));
                Ok(None)
            }
        }
    }
}

/// Whether a process is one of the given ones. If none are given, all are meant.
fn is_given(given: Option<&HashSet<Tgid>>, tgid: Tgid) -> bool {
    given.is_none_or(|given| given.contains(&tgid))
}

/// The files that a scan of the host found.
#[derive(Debug)]
struct HostScan {
    found: HashSet<FileId>,
    /// Mapped files that could not be read, by inode.
    stalled: HashSet<u64>,
    /// All processes were scanned.
    is_complete: bool,
}

impl HostScan {
    fn at(mapped: &Scan, placed: Option<&Scan>) -> Self {
        let libraries = mapped.libraries.iter().chain(placed.into_iter().flat_map(|scan| &scan.libraries));
        Self {
            found: libraries.map(|l| l.id).collect(),
            stalled: mapped.stalled.clone(),
            is_complete: !mapped.is_incomplete,
        }
    }

    /// Whether a file was found, or may still be in use by something that could not be scanned.
    fn may_have(&self, id: &FileId) -> bool {
        !self.is_complete || self.found.contains(id) || self.stalled.contains(&id.inode)
    }
}

fn users_of(users: &HashMap<FileId, Users>) -> HashMap<FileId, BTreeSet<UserId>> {
    users.iter().map(|(id, users)| (*id, users.values().copied().collect())).collect()
}

/// Whether an unused library may stay probed for the next process: its path still leads to it, and it lies on the root
/// file system, which is never unmounted.
fn may_stay_probed(attached: &Attached) -> bool {
    let on_root = fs::metadata("/").is_ok_and(|root| root.dev() == attached.id.dev);
    !attached.is_foreign && on_root && still_leads_to(attached.id, identity(&attached.path))
}

/// Whether a path still leads to a file. If it cannot be read, it is assumed to.
fn still_leads_to(file: FileId, found: io::Result<(u64, u64)>) -> bool {
    match found {
        Ok(id) => id == (file.dev, file.inode),
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { dev: 1, inode: 7 };

    #[test]
    fn no_file_is_unused_after_an_incomplete_scan() {
        let whole = Scan::default();
        assert!(!HostScan::at(&whole, Some(&whole)).may_have(&FILE));
        let stalled = Scan { stalled: HashSet::from([FILE.inode]), ..Scan::default() };
        assert!(HostScan::at(&stalled, None).may_have(&FILE));
        assert!(!HostScan::at(&stalled, None).may_have(&FileId { inode: 8, ..FILE }));
        let missed = Scan { is_incomplete: true, ..Scan::default() };
        assert!(HostScan::at(&missed, Some(&whole)).may_have(&FILE));
        assert!(HostScan::at(&missed, None).may_have(&FILE));
    }

    #[test]
    fn an_unreadable_path_is_assumed_to_be_unchanged() {
        assert!(still_leads_to(FILE, Ok((1, 7))));
        assert!(!still_leads_to(FILE, Ok((1, 8))));
        assert!(!still_leads_to(FILE, Err(io::ErrorKind::NotFound.into())));
        assert!(still_leads_to(FILE, Err(io::ErrorKind::TimedOut.into())));
        assert!(still_leads_to(FILE, Err(io::ErrorKind::PermissionDenied.into())));
    }
}
