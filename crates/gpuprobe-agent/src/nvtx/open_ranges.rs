//! Ranges that may end on another thread than they began on.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::thread_ranges::OpenRange;

const MOST_OPEN: usize = 1024;
/// Slots that are tried before a range is dropped.
const TRIES: u64 = 64;

/// The id of a range is the number of its slot and, above that, a number that no other range has. In a slot, 0 is free and
/// 1 is being written or read.
const BUSY: u64 = 1;

struct Slot {
    id: AtomicU64,
    range: UnsafeCell<ProcessRange>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessRange {
    pub(super) range: OpenRange,
    /// The thread on which it began.
    pub(super) tid: u32,
    pub(super) collection: u32,
}

impl ProcessRange {
    const NONE: Self = Self { range: OpenRange::NONE, tid: 0, collection: 0 };
}

pub(super) struct OpenRanges {
    begun: AtomicU64,
    slots: [Slot; MOST_OPEN],
}

// SAFETY: a slot that is busy belongs to the thread that made it so.
unsafe impl Sync for OpenRanges {}

pub(super) static OPEN: OpenRanges = OpenRanges::new();

impl OpenRanges {
    const fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            slots: [const { Slot { id: AtomicU64::new(0), range: UnsafeCell::new(ProcessRange::NONE) } };
                MOST_OPEN],
        }
    }

    /// The id of the new range; 0 if there is no room.
    pub(super) fn begin(&self, range: ProcessRange) -> u64 {
        for _ in 0..TRIES {
            let number = self.begun.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let Some(slot) = self.slots.get(number as usize % MOST_OPEN) else { continue };
            if slot.id.compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // SAFETY: this thread has made it busy.
                unsafe { slot.range.get().write(range) };
                // its lowest bits are the number of the slot
                let id = number.wrapping_add(MOST_OPEN as u64);
                slot.id.store(id, Ordering::Release);
                return id;
            }
        }
        0
    }

    /// The range of an id, which may be anything.
    pub(super) fn end(&self, id: u64) -> Option<ProcessRange> {
        let slot = self.slots.get(id as usize % MOST_OPEN).filter(|_| id > BUSY)?;
        slot.id.compare_exchange(id, BUSY, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: this thread has made it busy.
        let range = unsafe { slot.range.get().read() };
        slot.id.store(0, Ordering::Release);
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_once_and_there_is_a_limit() {
        static OPEN: OpenRanges = OpenRanges::new();
        let open = &OPEN;
        let range = |tid| ProcessRange { tid, ..ProcessRange::NONE };
        let first = open.begin(range(1));
        let second = open.begin(range(2));
        assert!(first > BUSY && second > BUSY && first != second);
        assert_eq!(open.end(first).map(|range| range.tid), Some(1));
        assert!(open.end(first).is_none());
        for wrong in [0, BUSY, 99, second + MOST_OPEN as u64] {
            assert!(open.end(wrong).is_none());
        }
        assert_eq!(open.end(second).map(|range| range.tid), Some(2));
        let ids: Vec<u64> = (0..2 * MOST_OPEN).map(|_| open.begin(range(3))).collect();
        assert_eq!(ids.iter().filter(|id| **id != 0).count(), MOST_OPEN);
        assert!(ids.iter().filter(|id| **id != 0).all(|id| open.end(*id).is_some()));
    }
}
