//! Finds libraries as processes begin to use them, on the whole host, without looking at processes that do nothing new.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use gpuprobe_capture::{Mapped, Mappings, NewMappings};
use gpuprobe_discover::{DiscoverError, identity};
use gpuprobe_event::{LossCause, Losses, Tgid};

use crate::notes::note;
use crate::probes::Probes;

/// How often every process is looked at where the kernel does not tell of mappings.
const SCAN_WITHOUT_REPORTS: Duration = Duration::from_secs(1);
/// How often everything is looked at once more, and libraries that nobody uses any more are let go.
pub(crate) const RESCAN_SECONDS: u64 = 10;
/// Files remembered as looked at. A host that has more of them is looked at again, which costs but does no harm.
const MOST_SEEN: usize = 1 << 16;

/// What identifies a file in a report: device, inode and its generation. Without the last, a library that is given the
/// inode number of a file that was deleted would not be looked at.
type Seen = ((u32, u32), u64, u64);

fn key(mapped: &Mapped) -> Seen {
    (mapped.device, mapped.inode, mapped.generation)
}

/// The watch over new mappings.
#[derive(Debug)]
pub(crate) struct Watch {
    mappings: Option<Mappings>,
    seen: HashSet<Seen>,
    losses: Losses,
    /// Processes counted as late since libraries last came to be observed: a process may report several mappings.
    late: HashSet<Tgid>,
    scanned: Instant,
    rescan: Duration,
}

impl Watch {
    /// Begins to watch; without the kernel's reports, by looking at all processes every second. Everything is looked at
    /// once more every so many seconds.
    pub(crate) fn start(rescan_seconds: u64) -> Self {
        let mappings = Mappings::open();
        if let Err(error) = &mappings {
            note!(
                "gpuprobe: new libraries are found by looking, once a second: no mapping reports ({error})"
            );
        }
        Self {
            mappings: mappings.ok(),
            seen: HashSet::new(),
            losses: Losses::default(),
            late: HashSet::new(),
            scanned: Instant::now(),
            rescan: Duration::from_secs(rescan_seconds),
        }
    }

    /// From now on, everything is looked at once more every so many seconds.
    pub(crate) fn look_every(&mut self, seconds: u64) {
        self.rescan = Duration::from_secs(seconds);
    }

    /// Descriptors to wait on.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.mappings.iter().flat_map(Mappings::fds).collect()
    }

    /// What was missed, by cause.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Probes what these processes have mapped since the last look.
    pub(crate) fn look_at(&mut self, processes: &HashSet<Tgid>, probes: &mut Probes) {
        let (new, attaches) = (self.take(), probes.attaches);
        for mapped in new.mapped.iter().filter(|mapped| processes.contains(&mapped.tgid)) {
            self.consider(mapped, probes);
        }
        let blind = self.mappings.is_none() && self.scanned.elapsed() >= SCAN_WITHOUT_REPORTS;
        if new.lost > 0 || blind {
            self.scanned = Instant::now();
            for tgid in processes {
                // one that has ended has nothing mapped any more
                if let Ok(1..) = probes.attach_process(*tgid) {
                    self.count_late([*tgid]);
                }
            }
        }
        self.settle(attaches, probes);
    }

    /// Probes what is new on the whole host, and takes probes out of what is gone.
    pub(crate) fn look(&mut self, probes: &mut Probes) {
        let (new, attaches) = (self.take(), probes.attaches);
        for mapped in &new.mapped {
            self.consider(mapped, probes);
        }
        let blind = self.mappings.is_none() && self.scanned.elapsed() >= SCAN_WITHOUT_REPORTS;
        self.losses.add(LossCause::LostMapping, new.lost);
        if new.lost > 0 || blind || self.scanned.elapsed() >= self.rescan {
            let late = probes.look_again();
            self.count_late(late);
            self.scanned = Instant::now();
            // numbers of devices and inodes are given again to other files, as soon as a container is gone
            self.seen.clear();
        }
        self.settle(attaches, probes);
    }

    fn take(&mut self) -> NewMappings {
        self.mappings.as_mut().map(Mappings::take).unwrap_or_default()
    }

    /// Counts processes that had mapped a library before its calls were observed, each once. NVML maps the driver into
    /// this process, whose calls nobody asks for.
    pub(crate) fn count_late(&mut self, processes: impl IntoIterator<Item = Tgid>) {
        let own = Tgid(std::process::id());
        let others = processes.into_iter().filter(|tgid| *tgid != own);
        let new = others.filter(|tgid| self.late.insert(*tgid)).count();
        self.losses.add(LossCause::LateAttach, new as u64);
    }

    /// All mappings that were made before the last library came to be observed have been reported by now, unless some
    /// came to be observed during this look.
    fn settle(&mut self, attaches_before: u64, probes: &Probes) {
        if probes.attaches == attaches_before {
            self.late.clear();
        }
    }

    fn consider(&mut self, mapped: &Mapped, probes: &mut Probes) {
        probes.note_mapping(mapped);
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        if self.seen.insert(key(mapped)) {
            self.look_into(mapped, probes);
        }
        // others may have mapped the same file before its probes were in
        if probes.was_mapped_early(mapped) {
            self.count_late([mapped.tgid]);
        }
    }

    /// Probes what a process has mapped that nobody had before.
    fn look_into(&mut self, mapped: &Mapped, probes: &mut Probes) {
        match probes.attach_process(mapped.tgid) {
            Ok(0) if probes.has_mapped(mapped) => {}
            // it has let go of the file, or executes another program by now
            Ok(0) => self.gone(mapped, probes),
            Ok(_) => self.count_late([mapped.tgid]),
            Err(DiscoverError::NoSuchProcess { .. }) => self.gone(mapped, probes),
            Err(_) => {}
        }
    }

    /// A process that mapped a file does not have it any more. The file may still be there for the next one.
    fn gone(&mut self, mapped: &Mapped, probes: &mut Probes) {
        if probes.is_probed(mapped) {
            return;
        }
        let same = identity(&mapped.path).is_ok_and(|(_, inode)| inode == mapped.inode);
        let new = if same { probes.attach_path(&mapped.path).unwrap_or(0) } else { 0 };
        if !same {
            // of another mount namespace: look again when somebody else maps it
            self.seen.remove(&key(mapped));
        }
        // it is not a late one too
        if (new > 0 || (!same && probes.is_telling(mapped))) && self.late.insert(mapped.tgid) {
            self.losses.add(LossCause::GoneBeforeAttach, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_process_is_counted_once_and_this_process_never() {
        let mut watch = Watch::start(RESCAN_SECONDS);
        let (own, other) = (Tgid(std::process::id()), Tgid(1));
        watch.count_late([own, other]);
        watch.count_late([other]);
        assert_eq!(watch.losses().total(), 1);
    }
}
