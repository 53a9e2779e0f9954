//! Finds new libraries on the whole host from the mapping events of the Linux kernel, without scanning all processes.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use gpuprobe_capture::{Mapped, Mappings, NewMappings};
use gpuprobe_discover::{DiscoverError, identity};
use gpuprobe_event::{LossCause, Losses, Tgid};

use super::process_set::ProcessSet;
use crate::session::probes::probe_set::Probes;
use crate::terminal::notes::note;

/// How often all processes are scanned if the Linux kernel reports no mappings.
const SCAN_WITHOUT_REPORTS: Duration = Duration::from_secs(1);
/// Most files remembered as examined. With more of them, some are examined again, which costs time but does no harm.
const MOST_SEEN: usize = 1 << 16;

/// Identifies a file in a mapping event: device, inode and inode generation. Without the generation, a library with
/// the reused inode number of a deleted file would not be examined.
type Seen = ((u32, u32), u64, u64);

fn key(mapped: &Mapped) -> Seen {
    (mapped.device, mapped.inode, mapped.generation)
}

/// Watches for new mappings.
#[derive(Debug)]
pub(crate) struct Watch {
    mappings: Option<Mappings>,
    seen: HashSet<Seen>,
    losses: Losses,
    /// Mappings of processes that are not followed, or whose start has not been taken in yet.
    of_others: Vec<Mapped>,
    /// Processes counted as late since the last attach: a process may report several mappings.
    late: HashSet<Tgid>,
    scanned: Instant,
    rescan: Duration,
}

impl Watch {
    /// Starts to watch. Without mapping events, all processes are scanned every second. The whole host is scanned
    /// again at this interval, to detach what is no longer used, and to try again what could not be read.
    pub(crate) fn start(rescan: Duration) -> Self {
        let mappings = Mappings::open();
        if let Err(error) = &mappings {
            note!(
                "gpuprobe: new libraries are found by scanning, once a second: no mapping events ({error})"
            );
        }
        Self {
            mappings: mappings.ok(),
            seen: HashSet::new(),
            losses: Losses::default(),
            of_others: Vec::new(),
            late: HashSet::new(),
            scanned: Instant::now(),
            rescan,
        }
    }

    /// Does something that may take seconds, such as probing a library. What is mapped meanwhile is found later.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let Some(mut mappings) = self.mappings.take() else { return work(self) };
        let result = mappings.read_during(|| work(self));
        self.mappings = Some(mappings);
        result
    }

    /// Changes how often the whole host is scanned.
    pub(crate) fn set_rescan(&mut self, rescan: Duration) {
        self.rescan = rescan;
    }

    /// Descriptors to poll.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.mappings.iter().flat_map(Mappings::fds).collect()
    }

    /// Losses by cause.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Probes what was mapped since the last call: by the processes that the user gave, or on the whole host.
    pub(crate) fn probe_new(&mut self, followed: &ProcessSet, probes: &mut Probes) {
        match followed.is_given() {
            true => self.probe_new_mappings_of(followed.running(), probes),
            false => self.rescan_if_due(probes),
        }
    }

    /// Probes what these processes have mapped since the last call. The start of a forked process may be taken in later
    /// than its first mappings, so those of unknown processes are looked at once more.
    fn probe_new_mappings_of(&mut self, processes: &HashSet<Tgid>, probes: &mut Probes) {
        let (new, attaches) = (self.take(), probes.attaches);
        let is_followed = |mapped: &Mapped| processes.contains(&mapped.tgid);
        let (followed, others): (Vec<_>, Vec<_>) = new.mapped.into_iter().partition(is_followed);
        let earlier = std::mem::replace(&mut self.of_others, others);
        for mapped in earlier.into_iter().filter(is_followed).chain(followed) {
            self.consider(&mapped, probes);
        }
        self.losses.add(LossCause::LostMapping, new.lost);
        let blind = self.mappings.is_none() && self.scanned.elapsed() >= SCAN_WITHOUT_REPORTS;
        if self.rescan < Duration::MAX && (blind || self.scanned.elapsed() >= self.rescan) {
            self.during(|watch| watch.rescan(Some(processes), probes));
        } else if new.lost > 0 || blind {
            self.during(|watch| {
                for tgid in processes {
                    // exited processes are ignored
                    if let Ok(1..) = probes.attach_process(*tgid) {
                        watch.count_late_attach([*tgid]);
                    }
                }
            });
            if blind {
                self.scanned = Instant::now();
            }
        }
        self.forget_late(attaches, probes);
    }

    /// Probes new libraries of the whole host, and detaches unused ones when a scan is due.
    fn rescan_if_due(&mut self, probes: &mut Probes) {
        let (new, attaches) = (self.take(), probes.attaches);
        for mapped in &new.mapped {
            self.consider(mapped, probes);
        }
        let blind = self.mappings.is_none() && self.scanned.elapsed() >= SCAN_WITHOUT_REPORTS;
        self.losses.add(LossCause::LostMapping, new.lost);
        if new.lost > 0 || blind || self.scanned.elapsed() >= self.rescan {
            self.during(|watch| watch.rescan(None, probes));
        }
        self.forget_late(attaches, probes);
    }

    fn rescan(&mut self, given: Option<&HashSet<Tgid>>, probes: &mut Probes) {
        let late = probes.rescan_host(given);
        self.count_late_attach(late);
        self.scanned = Instant::now();
        // device and inode numbers are reused as soon as a container has ended
        self.seen.clear();
    }

    fn take(&mut self) -> NewMappings {
        self.mappings.as_mut().map(Mappings::take).unwrap_or_default()
    }

    /// Counts processes that had mapped a library before it was probed, each once. gpuprobe itself is ignored: NVML
    /// maps the CUDA driver into it.
    pub(crate) fn count_late_attach(&mut self, processes: impl IntoIterator<Item = Tgid>) {
        let own = Tgid(std::process::id());
        let others = processes.into_iter().filter(|tgid| *tgid != own);
        let new = others.filter(|tgid| self.late.insert(*tgid)).count();
        self.losses.add(LossCause::LateAttach, new as u64);
    }

    /// All mappings made before the last attach have been reported by now, unless libraries were attached during this
    /// call.
    fn forget_late(&mut self, attaches_before: u64, probes: &Probes) {
        if probes.attaches == attaches_before {
            self.late.clear();
        }
    }

    fn consider(&mut self, mapped: &Mapped, probes: &mut Probes) {
        probes.check_mapping(mapped);
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        if self.seen.insert(key(mapped)) {
            self.during(|watch| watch.probe_mapped(mapped, probes));
        }
        // other processes may have mapped the same file before it was probed
        if probes.was_mapped_early(mapped) {
            self.count_late_attach([mapped.tgid]);
        }
    }

    /// Probes a file that no process had mapped before.
    fn probe_mapped(&mut self, mapped: &Mapped, probes: &mut Probes) {
        match probes.attach_process(mapped.tgid) {
            Ok(0) if probes.has_mapped(mapped) => {}
            // it has unmapped the file, or executes another program by now
            Ok(0) => self.unmapped(mapped, probes),
            Ok(_) => self.count_late_attach([mapped.tgid]),
            Err(DiscoverError::NoSuchProcess { .. }) => self.unmapped(mapped, probes),
            Err(_) => {}
        }
    }

    /// A process no longer has a file that it mapped. The file may still exist for the next process.
    fn unmapped(&mut self, mapped: &Mapped, probes: &mut Probes) {
        if probes.is_probed(mapped) {
            return;
        }
        let same = identity(&mapped.path).is_ok_and(|(_, inode)| inode == mapped.inode);
        let new = if same { probes.attach_path(&mapped.path).unwrap_or(0) } else { 0 };
        if !same {
            // a path of another mount namespace: try again when another process maps it
            self.seen.remove(&key(mapped));
        }
        // a process is counted as late or as exited, not as both
        if (new > 0 || (!same && probes.has_library_name(mapped))) && self.late.insert(mapped.tgid) {
            self.losses.add(LossCause::ExitedBeforeAttach, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::RESCAN;

    #[test]
    fn a_late_process_is_counted_once_and_this_process_never() {
        let mut watch = Watch::start(RESCAN);
        let (own, other) = (Tgid(std::process::id()), Tgid(1));
        watch.count_late_attach([own, other]);
        watch.count_late_attach([other]);
        assert_eq!(watch.losses().total(), 1);
    }
}
