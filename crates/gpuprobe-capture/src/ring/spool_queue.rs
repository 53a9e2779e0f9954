//! The parts of a spool, which three threads share: one copies, one stores in a file, and one decodes.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::records::Records;
use super::spool_file::StoredPart;

/// If more waits in memory, it is moved to the file.
const MUCH: u64 = 64 << 20;
/// The most that waits in memory. It is more than much, because a write may have to wait for the disk.
const MOST: u64 = 256 << 20;
/// The most bytes of stacks that wait. If the ring fills up, BPF sends shorter ones.
const MOST_SITES: u64 = 64 << 20;
/// So many used parts are kept: new memory costs more than copying into it.
const MOST_UNUSED: usize = 32;

/// What waits to be decoded.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In the file; older than what is in memory.
    stored: VecDeque<StoredPart>,
    /// In memory.
    waiting: VecDeque<Records>,
    /// Bytes of `waiting`.
    waiting_bytes: u64,
    /// Stacks of unknown call sites.
    sites: Records,
    /// The oldest part in memory is being moved to the file.
    pub(super) is_storing: bool,
    /// There is no room in the file, or no file.
    is_file_full: bool,
    calls: u64,
    unused: Vec<Records>,
    is_ending: bool,
    /// Why copying ended.
    pub(super) failure: Option<io::Error>,
}

impl Queue {
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    pub(super) fn take_stored(&mut self) -> Option<StoredPart> {
        let part = self.stored.pop_front()?;
        self.calls -= part.calls;
        Some(part)
    }

    /// Exchanges `used` for the oldest part in memory, if there is one.
    pub(super) fn take_waiting(&mut self, used: &mut Records) -> bool {
        let Some(part) = self.waiting.pop_front() else { return false };
        self.calls -= part.calls();
        self.waiting_bytes -= part.size();
        let used = std::mem::replace(used, part);
        self.reuse(used);
        true
    }

    pub(super) fn take_sites(&mut self, sites: &mut Records) {
        sites.append(&mut self.sites);
    }

    /// Returns how many calls it had.
    pub(super) fn discard(&mut self) -> u64 {
        self.stored.clear();
        self.waiting.clear();
        self.waiting_bytes = 0;
        std::mem::take(&mut self.calls)
    }

    fn add(&mut self, part: Records) {
        if part.len() == 0 {
            self.reuse(part);
            return;
        }
        self.calls += part.calls();
        self.waiting_bytes += part.size();
        self.waiting.push_back(part);
    }

    fn reuse(&mut self, mut part: Records) {
        if self.unused.len() < MOST_UNUSED {
            part.clear();
            self.unused.push(part);
        }
    }
}

/// The queue, and a signal for each change of it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        // what a panicked thread left is still consistent: each part is added at once
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change.
    pub(super) fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another part may be copied, and returns one to fill; `None` at the end.
    pub(super) fn wait_for_room(&self) -> Option<Records> {
        let mut queue = self.lock();
        while (queue.waiting_bytes >= MOST || queue.sites.size() >= MOST_SITES) && !queue.is_ending {
            queue = self.wait(queue);
        }
        (!queue.is_ending).then(|| queue.unused.pop().unwrap_or_default())
    }

    /// Sleeps; `false` at the end.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut queue = self.lock();
        while !queue.is_ending {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Adds a part, and the stacks that came with it.
    pub(super) fn add(&self, part: Records, sites: &mut Records) {
        let mut queue = self.lock();
        queue.add(part);
        queue.sites.append(sites);
        if queue.waiting_bytes > MUCH && !queue.is_file_full {
            self.changed.notify_all();
        }
    }

    /// Waits until much is in memory, and takes out the oldest part to store it; `None` at the end.
    pub(super) fn wait_for_much(&self) -> Option<Records> {
        let mut queue = self.lock();
        while !queue.is_ending {
            if queue.waiting_bytes > MUCH
                && !queue.is_file_full
                && let Some(part) = queue.waiting.pop_front()
            {
                queue.is_storing = true;
                return Some(part);
            }
            queue = self.wait(queue);
        }
        None
    }

    /// Notes that a part was stored, or puts it back.
    pub(super) fn stored(&self, part: Records, stored: Option<StoredPart>) {
        let mut queue = self.lock();
        queue.is_storing = false;
        match stored {
            Some(stored) => {
                queue.waiting_bytes -= part.size();
                queue.stored.push_back(stored);
                queue.reuse(part);
            }
            None => {
                queue.is_file_full = true;
                queue.waiting.push_front(part);
            }
        }
        drop(queue);
        self.changed.notify_all();
    }

    /// Notes that a part was taken.
    pub(super) fn made_room(&self) {
        self.lock().is_file_full = false;
        self.changed.notify_all();
    }

    /// Ends the threads that copy and store.
    pub(super) fn end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::spool_file::SpoolFile;
    use crate::wire::number;

    /// A part of a third of what is much, with one call.
    fn part(name: u8) -> Records {
        let mut call = vec![name; MUCH as usize / 3];
        call[..2].copy_from_slice(&number::RECORD_CALL.to_ne_bytes());
        let mut part = Records::default();
        part.push(&call);
        part
    }

    fn name_of(part: &Records) -> u8 {
        part.iter().next().unwrap()[2]
    }

    /// Takes everything, from the file first.
    fn take_all(shared: &Shared, file: &mut SpoolFile) -> Vec<u8> {
        let (mut names, mut taken) = (Vec::new(), Records::default());
        let mut queue = shared.lock();
        while let Some(stored) = queue.take_stored() {
            file.take(&stored, &mut taken).unwrap();
            names.push(name_of(&taken));
        }
        while queue.take_waiting(&mut taken) {
            names.push(name_of(&taken));
        }
        names
    }

    #[test]
    fn what_is_too_much_for_memory_is_stored_and_taken_in_order() {
        for parts_in_file in [0, 1, 5] {
            let shared = Shared::default();
            let most = parts_in_file * part(0).size();
            let mut file = SpoolFile::new(tempfile::tempfile().unwrap(), move |_, size, _| size <= most);
            (1..=5).for_each(|name| shared.add(part(name), &mut Records::default()));
            assert_eq!(shared.lock().calls(), 5);
            let is_much = |queue: &Queue| queue.waiting_bytes > MUCH && !queue.is_file_full;
            while is_much(&shared.lock()) {
                let records = shared.wait_for_much().unwrap();
                let stored = file.add(&records);
                shared.stored(records, stored);
            }
            assert_eq!(
                shared.lock().stored.len() as u64,
                parts_in_file.min(3),
                "until it is not much any more"
            );
            assert_eq!(take_all(&shared, &mut file), [1, 2, 3, 4, 5]);
            let queue = shared.lock();
            assert_eq!((queue.calls(), queue.waiting_bytes), (0, 0));
        }
    }

    #[test]
    fn what_is_discarded_is_counted_and_stacks_stay() {
        let shared = Shared::default();
        let mut sites = Records::default();
        sites.push(b"stack");
        shared.add(part(1), &mut sites);
        shared.end();
        assert!(shared.wait_for_room().is_none() && shared.wait_for_much().is_none());
        let mut queue = shared.lock();
        assert_eq!((queue.discard(), queue.calls()), (1, 0));
        queue.take_sites(&mut sites);
        assert_eq!(sites.iter().collect::<Vec<_>>(), [b"stack"]);
    }
}
