//! Which of the libraries that were found are probed, and from which probes are taken out again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use gpuprobe_capture::Attached;
use gpuprobe_discover::{
    FileId, HostPaths, Library, Scan, SkipCause, Skipped, Target, UserId, Users, identity, plan,
};
use gpuprobe_event::Tgid;
use gpuprobe_output::units::duration;

use super::{PROC, Probes};
use crate::notes::note;
use crate::quota::{MOST_LIBRARIES, MOST_OF_USER};

/// Libraries let go at one look: each takes the kernel up to a twentieth of a second, in which nobody is served.
const MOST_LET_GO: usize = 32;
/// How long no library of a file system is probed after one was waited for in vain: nobody is served meanwhile.
const STALLED_FOR: Duration = Duration::from_secs(60);

/// What came of a scan.
#[derive(Debug, Default)]
pub(super) struct New {
    /// How many libraries with something that was asked for are probed now and were not before.
    pub(super) libraries: usize,
    /// Processes that had mapped one of these before its calls were observed.
    pub(super) late: HashSet<Tgid>,
    /// A library was not there any more when it was to be probed.
    pub(super) is_gone: bool,
}

/// A library that is not there any more: it was removed or replaced, or the process that led to it has ended.
#[derive(Debug)]
struct Gone;

impl Probes {
    /// Looks at the whole host once more. Probes what is new, and tells which processes had mapped some of that already;
    /// takes probes out of what is gone.
    pub(crate) fn look_again(&mut self) -> HashSet<Tgid> {
        let placed = self.inspector.of_places(&HostPaths::default());
        let mapped = self.inspector.of_processes(Path::new(PROC));
        let look = Look::at(&mapped, Some(&placed));
        if look.is_complete {
            self.skips.keep_found([&placed, &mapped]);
        }
        if let Some(quota) = &mut self.quota {
            quota.update(&users_of(&mapped.users));
        }
        // who has mapped what lies in such a place is in the other scan
        let placed = Scan { users: mapped.users.clone(), ..placed };
        let mut late = self.attach_scan(placed).late;
        late.extend(self.attach_scan(mapped).late);
        late.extend(self.let_go(|id| look.may_have(id)));
        late
    }

    /// Takes the probes out of libraries that are nowhere to be found any more and that would keep something from going
    /// away: the mounts of a container, a file system, a deleted file. What is looked at again need not be the same
    /// file, for numbers of inodes and devices are given again. Where there is no room for more, none may stay. Tells which
    /// processes began to use one of them just then.
    fn let_go(&mut self, found: impl Fn(&FileId) -> bool) -> HashSet<Tgid> {
        let full = self.capture.attached().count() >= MOST_LIBRARIES;
        let is_needed = |a: &Attached| self.quota.as_ref().is_some_and(|quota| quota.needs_room(&a.id));
        let unused = |a: &&Attached| {
            !found(&a.id) && !self.named.contains(&a.id) && (full || is_needed(a) || !stays(a))
        };
        let unused: HashSet<_> = self.capture.attached().filter(unused).map(|a| a.id).collect();
        let unused: HashSet<_> = unused.into_iter().take(MOST_LET_GO).collect();
        let late = if unused.is_empty() { HashSet::new() } else { self.detach(unused) };
        let attached: HashSet<_> = self.capture.attached().map(|a| a.id).collect();
        self.considered.retain(|(id, _)| attached.contains(id) || found(id));
        self.beside.retain(|id| attached.contains(id));
        if let Some(quota) = &mut self.quota {
            quota.retain(&attached);
        }
        late
    }

    /// Takes the probes out of files that nobody has mapped. A process may have begun to use one since it was looked
    /// for, so allocations are ignored first, and it is looked for once more: of memory that is counted and freed
    /// without a probe nobody would know that it is gone. Some calls of such a process may have been ignored, so it is
    /// told of.
    fn detach(&mut self, mut files: HashSet<FileId>) -> HashSet<Tgid> {
        if let Err(error) = self.capture.prepare_detach(&files, true) {
            note!("gpuprobe: libraries that nobody uses stay probed: {error:#}");
            return HashSet::new();
        }
        let scan = self.inspector.of_processes(Path::new(PROC));
        let now = Look::at(&scan, None);
        let used_again: HashSet<_> = files.extract_if(|id| now.may_have(id)).collect();
        if let Err(error) = self.capture.prepare_detach(&used_again, false) {
            note!("gpuprobe: a library is not observed any more: {error:#}");
        }
        for attached in self.capture.attached().filter(|a| files.contains(&a.id)) {
            self.tell(|| format!("{}: detached, nobody uses it any more", attached.path.display()));
        }
        self.capture.detach_files(&files);
        let users = used_again.iter().filter_map(|id| scan.users.get(id)).flat_map(|users| users.keys());
        users.map(|pid| Tgid(*pid)).collect()
    }

    /// Probes what is new in a scan. All of it is observed from the same moment on.
    pub(super) fn attach_scan(&mut self, scan: Scan) -> New {
        let Scan { libraries, mut skipped, users, stack_copiers, .. } = scan;
        stack_copiers.into_iter().for_each(|pid| self.mark_stack_copier(Tgid(pid)));
        // a library that was probed before its file system stalled is none that is skipped
        let is_probed =
            |file: Option<FileId>| file.is_some_and(|id| self.capture.attached().any(|a| a.id == id));
        skipped.retain(|s| s.cause != Some(SkipCause::Stalled) || !is_probed(s.file));
        self.skip_all(&skipped);
        let new: Vec<Library> =
            libraries.into_iter().filter(|library| self.admits(library, &users)).collect();
        if new.is_empty() {
            return New::default();
        }
        let (plan, skipped) = plan(&new, &|library, name| self.function(library, name));
        self.skip_all(&skipped);
        // for the next look
        let stalled = skipped.iter().filter(|s| s.cause == Some(SkipCause::Stalled)).filter_map(|s| s.file);
        for file in stalled {
            self.considered.retain(|(id, _)| *id != file);
        }
        let mut attached: Vec<(FileId, usize)> = Vec::new();
        let mut is_gone = false;
        for target in &plan.targets {
            match self.attach(target) {
                Ok(Some(asked_for)) => attached.push((target.library.id, asked_for)),
                Ok(None) => {}
                Err(Gone) => is_gone = true,
            }
        }
        if let Err(error) = self.capture.start_observing() {
            note!("gpuprobe: new libraries are not observed: {error:#}");
        }
        self.attaches += 1;
        let wanted = attached.iter().filter(|(_, asked_for)| *asked_for > 0).map(|(id, _)| id);
        let late = wanted.clone().filter_map(|id| users.get(id)).flat_map(|users| users.keys());
        New { late: late.map(|pid| Tgid(*pid)).collect(), libraries: wanted.count(), is_gone }
    }

    /// Whether a library is to be probed: it was not considered yet, and there is room for it.
    fn admits(&mut self, library: &Library, users: &HashMap<FileId, Users>) -> bool {
        if self.considered.contains(&(library.id, library.kind)) {
            return false;
        }
        self.stalled.retain(|_, since| since.elapsed() < STALLED_FOR);
        if self.stalled.contains_key(&library.id.dev) {
            return false;
        }
        let none = Users::new();
        let mut users: BTreeSet<UserId> = users.get(&library.id).unwrap_or(&none).values().copied().collect();
        if users.is_empty() {
            // whoever had it mapped has ended, or it was found by its name
            users.extend(library.opened.map(|opened| UserId(opened.owner)));
        }
        let skipped = |cause, reason| Skipped::file(&library.path, Some(library.id), cause, reason);
        if self.capture.attached().count() >= MOST_LIBRARIES {
            let reason = format!("{MOST_LIBRARIES} libraries are probed already");
            self.skip(&skipped(SkipCause::TooMany, reason));
            return false;
        }
        if let Some(user) = self.quota.as_mut().and_then(|quota| quota.refuses(library.id, &users)) {
            self.refuse(user, &skipped(SkipCause::UserQuota, format!("user {} has its share", user.0)));
            return false;
        }
        self.considered.insert((library.id, library.kind))
    }

    /// A user has no room left. That is said once for each, with or without `--verbose`.
    fn refuse(&mut self, user: UserId, skipped: &Skipped) {
        if self.quota.as_mut().is_some_and(|quota| quota.is_first_refusal(user)) {
            note!(
                "gpuprobe: user {} has {MOST_OF_USER} libraries probed, or all users have theirs: more are not \
                 probed, see skipped libraries",
                user.0
            );
        }
        self.skip(skipped);
    }

    /// Probes a library; tells how many of its functions were asked for, or nothing where it could not be.
    fn attach(&mut self, target: &Target) -> Result<Option<usize>, Gone> {
        let library = &target.library;
        if self.capture.attached().count() >= MOST_LIBRARIES {
            self.considered.remove(&(library.id, library.kind));
            let reason = format!("{MOST_LIBRARIES} libraries are probed already");
            self.skip(&Skipped::file(&library.path, Some(library.id), SkipCause::TooMany, reason));
            return Ok(None);
        }
        let begun = Instant::now();
        let (selection, collect) = (&self.selection, self.collect);
        let asked_for = target.functions.iter().filter(|f| selection.takes_id(f.function)).count();
        match self.capture.attach(target, &|id| selection.collect(id, collect)) {
            Ok(attached) => {
                let (count, skipped) = (attached.functions, attached.skipped.clone());
                let took = duration(begun.elapsed().as_nanos() as u64);
                let what = if asked_for > 0 { "" } else { " beside" };
                self.tell(|| format!("{}: {count} functions{what} in {took}", library.path.display()));
                self.skip_all(&skipped);
                self.asked_for += asked_for;
                if asked_for == 0 {
                    self.beside.insert(library.id);
                }
                Ok(Some(asked_for))
            }
            Err(error) if error.is_gone() => {
                // another process may lead to it
                self.considered.remove(&(library.id, library.kind));
                self.tell(|| format!("{}: gone before it was probed", library.path.display()));
                Err(Gone)
            }
            Err(error) => {
                if error.is_own_stall() {
                    self.stalled.insert(library.id.dev, Instant::now());
                }
                let cause = if error.is_stall() {
                    // for the next look
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

/// What was found at a look at the host.
#[derive(Debug)]
struct Look {
    found: HashSet<FileId>,
    /// Mapped files that could not be looked at, by inode.
    stalled: HashSet<u64>,
    /// No process was missed.
    is_complete: bool,
}

impl Look {
    fn at(mapped: &Scan, placed: Option<&Scan>) -> Self {
        let libraries = mapped.libraries.iter().chain(placed.into_iter().flat_map(|scan| &scan.libraries));
        Self {
            found: libraries.map(|l| l.id).collect(),
            stalled: mapped.stalled.clone(),
            is_complete: !mapped.is_incomplete,
        }
    }

    /// Whether a file was found, or may be in use as before by something that could not be looked at.
    fn may_have(&self, id: &FileId) -> bool {
        !self.is_complete || self.found.contains(id) || self.stalled.contains(&id.inode)
    }
}

fn users_of(users: &HashMap<FileId, Users>) -> HashMap<FileId, BTreeSet<UserId>> {
    users.iter().map(|(id, users)| (*id, users.values().copied().collect())).collect()
}

/// Whether a library may be kept for the next process though nobody uses it: it is still what its name leads to, on the
/// file system that is there as long as the host is.
fn stays(attached: &Attached) -> bool {
    let on_root = fs::metadata("/").is_ok_and(|root| root.dev() == attached.id.dev);
    !attached.is_foreign && on_root && is_still(attached.id, identity(&attached.path))
}

/// Whether a name leads to a file as far as is known.
fn is_still(file: FileId, found: io::Result<(u64, u64)>) -> bool {
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
    fn nothing_is_known_to_be_unused_after_a_look_that_missed_processes() {
        let whole = Scan::default();
        assert!(!Look::at(&whole, Some(&whole)).may_have(&FILE));
        let stalled = Scan { stalled: HashSet::from([FILE.inode]), ..Scan::default() };
        assert!(Look::at(&stalled, None).may_have(&FILE));
        assert!(!Look::at(&stalled, None).may_have(&FileId { inode: 8, ..FILE }));
        let missed = Scan { is_incomplete: true, ..Scan::default() };
        assert!(Look::at(&missed, Some(&whole)).may_have(&FILE));
        assert!(Look::at(&missed, None).may_have(&FILE));
    }

    #[test]
    fn a_name_that_cannot_be_looked_at_is_taken_to_lead_where_it_did() {
        assert!(is_still(FILE, Ok((1, 7))));
        assert!(!is_still(FILE, Ok((1, 8))));
        assert!(!is_still(FILE, Err(io::ErrorKind::NotFound.into())));
        assert!(is_still(FILE, Err(io::ErrorKind::TimedOut.into())));
        assert!(is_still(FILE, Err(io::ErrorKind::PermissionDenied.into())));
    }
}
