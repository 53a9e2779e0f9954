//! Finished ranges on their way from the program's threads to the agent's.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuprobe_event::agent::RangeKind;

use super::text::Text;
use crate::wakeup;

/// A power of two. The agent's thread looks every 100 ms, and earlier if it is woken.
const SLOTS: usize = 4096;
/// Ranges after which the thread is woken.
const WAKE_AFTER: usize = SLOTS / 4;

pub(crate) static RING: Ring = Ring::new();

#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedRange {
    pub(crate) kind: RangeKind,
    pub(crate) tid: u32,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) domain: Text,
    pub(crate) name: Text,
    pub(crate) color: u32,
}

impl FinishedRange {
    const NONE: Self = Self {
        // all zeros, so that the file does not contain the ring
        kind: RangeKind::Nested,
        tid: 0,
        start_ns: 0,
        end_ns: 0,
        domain: Text::EMPTY,
        name: Text::EMPTY,
        color: 0,
    };
}

struct Slot {
    /// Less than the position that is to be written here: its round is not over. One more: it is written.
    sequence: AtomicUsize,
    range: UnsafeCell<FinishedRange>,
}

/// Any thread adds, one takes. None waits for another one.
pub(crate) struct Ring {
    added: AtomicUsize,
    taken: AtomicUsize,
    slots: [Slot; SLOTS],
}

// SAFETY: a slot belongs to the thread that moved `added` over it until its sequence says that it is written, and then
// to the thread that takes.
unsafe impl Sync for Ring {}

impl Ring {
    const fn new() -> Self {
        Self {
            added: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            slots: [const { Slot { sequence: AtomicUsize::new(0), range: UnsafeCell::new(FinishedRange::NONE) } };
                SLOTS],
        }
    }

    fn slot(&self, position: usize) -> Option<&Slot> {
        self.slots.get(position % SLOTS)
    }

    /// The sequence of a slot that may be written at a position. Slots begin with 0, so rounds are counted.
    fn free_at(position: usize) -> usize {
        position / SLOTS * 2
    }

    /// `false` if the ring is full.
    pub(super) fn add(&self, range: &FinishedRange) -> bool {
        let mut position = self.added.load(Ordering::Relaxed);
        loop {
            let Some(slot) = self.slot(position) else { return false };
            let sequence = slot.sequence.load(Ordering::Acquire);
            if sequence < Self::free_at(position) {
                return false;
            }
            if sequence > Self::free_at(position) {
                position = self.added.load(Ordering::Relaxed);
                continue;
            }
            match self.added.compare_exchange_weak(
                position,
                position + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    // SAFETY: this thread has moved `added` over the slot, which was free.
                    unsafe { slot.range.get().write(*range) };
                    slot.sequence.store(sequence + 1, Ordering::Release);
                    break;
                }
                Err(now) => position = now,
            }
        }
        if position % WAKE_AFTER == WAKE_AFTER - 1 {
            wakeup::AGENT.next();
        }
        true
    }

    /// The next range. Only the agent's thread may call it.
    pub(crate) fn take(&self) -> Option<FinishedRange> {
        let position = self.taken.load(Ordering::Relaxed);
        let slot = self.slot(position)?;
        let written = Self::free_at(position) + 1;
        if slot.sequence.load(Ordering::Acquire) != written {
            return None;
        }
        // SAFETY: the slot is written, and free only after the store below.
        let range = unsafe { slot.range.get().read() };
        slot.sequence.store(written + 1, Ordering::Release);
        self.taken.store(position + 1, Ordering::Relaxed);
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn range(tid: u32, start_ns: u64) -> FinishedRange {
        FinishedRange { tid, start_ns, ..FinishedRange::NONE }
    }

    #[test]
    fn a_full_ring_takes_no_more_until_one_is_taken() {
        static RING: Ring = Ring::new();
        let ring = &RING;
        assert!(ring.take().is_none());
        for number in 0..SLOTS as u64 {
            assert!(ring.add(&range(1, number)));
        }
        assert!(!ring.add(&range(1, 0)));
        assert_eq!(ring.take().map(|range| range.start_ns), Some(0));
        assert!(ring.add(&range(1, SLOTS as u64)));
        assert!(!ring.add(&range(1, 0)));
        for number in 1..=SLOTS as u64 {
            assert_eq!(ring.take().map(|range| range.start_ns), Some(number));
        }
        assert!(ring.take().is_none());
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        static RING: Ring = Ring::new();
        let ring = &RING;
        let (threads, each) = (3, 20_000);
        thread::scope(|scope| {
            for tid in 0..threads {
                scope.spawn(move || {
                    for number in 0..each {
                        while !ring.add(&range(tid, number)) {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut next = vec![0; threads as usize];
            while next.iter().sum::<u64>() < u64::from(threads) * each {
                let Some(found) = ring.take() else {
                    thread::yield_now();
                    continue;
                };
                assert_eq!(found.start_ns, next[found.tid as usize]);
                next[found.tid as usize] += 1;
            }
        });
    }
}
