//! The ranges that a thread has open. Their memory is reserved from the beginning; a thread gets its part at its first
//! range and gives it back when it exits.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::text::Text;

const MOST_THREADS: usize = 256;
const MOST_OPEN: usize = 64;

/// The key of `pthread_getspecific`, plus one; 0 if there is none.
static KEY: AtomicU32 = AtomicU32::new(0);
static THREADS: Threads = Threads(
    [const { Slot { is_taken: AtomicBool::new(false), ranges: UnsafeCell::new(ThreadRanges::NONE) } };
        MOST_THREADS],
);

#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRange {
    pub(super) start_ns: u64,
    pub(super) domain: Text,
    pub(super) name: Text,
    pub(super) color: u32,
}

impl OpenRange {
    pub(super) const NONE: Self = Self { start_ns: 0, domain: Text::EMPTY, name: Text::EMPTY, color: 0 };
}

#[derive(Debug)]
pub(super) struct ThreadRanges {
    pub(super) tid: u32,
    /// Ranges of an earlier collection are not finished in a later one.
    collection: u32,
    count: usize,
    open: [OpenRange; MOST_OPEN],
}

struct Slot {
    is_taken: AtomicBool,
    ranges: UnsafeCell<ThreadRanges>,
}

struct Threads([Slot; MOST_THREADS]);

// SAFETY: the content of a slot is used by the thread that took it alone.
unsafe impl Sync for Threads {}

impl ThreadRanges {
    const NONE: Self = Self { tid: 0, collection: 0, count: 0, open: [OpenRange::NONE; MOST_OPEN] };

    /// How many ranges of a domain are open.
    fn depth(&self, domain: u64) -> usize {
        self.open.iter().take(self.count).filter(|range| range.domain.id == domain).count()
    }

    /// The depth of the new range, from 0; `None` if too many are open.
    pub(super) fn push(&mut self, range: OpenRange) -> Option<usize> {
        let depth = self.depth(range.domain.id);
        *self.open.get_mut(self.count)? = range;
        self.count += 1;
        Some(depth)
    }

    /// The innermost range of a domain, and how many of it are open after that.
    pub(super) fn pop(&mut self, domain: u64) -> Option<(OpenRange, usize)> {
        let open = self.open.get_mut(..self.count)?;
        let at = open.iter().rposition(|range| range.domain.id == domain)?;
        let range = *open.get(at)?;
        // those of other domains move up
        open.get_mut(at..)?.rotate_left(1);
        self.count -= 1;
        Some((range, self.depth(domain)))
    }
}

/// Makes it possible for threads to have ranges.
pub(super) fn prepare() {
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut key = 0;
    // SAFETY: the pointer is valid during the call, and the library is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } == 0 {
        // a second key, of a thread that came here at the same time, stays unused
        KEY.store(key + 1, Ordering::Release);
    }
}

extern "C" fn give_back(slot: *mut c_void) {
    // SAFETY: a slot of `THREADS`, which is never freed.
    if let Some(slot) = unsafe { slot.cast::<Slot>().as_ref() } {
        slot.is_taken.store(false, Ordering::Release);
    }
}

/// Lets the calling thread use its ranges; `None` if too many threads have some.
pub(super) fn with_own<T>(collection: u32, work: impl FnOnce(&mut ThreadRanges) -> T) -> Option<T> {
    let slot = own_slot()?;
    // SAFETY: the slot belongs to this thread, and `work` calls nothing that comes here again.
    let ranges = unsafe { &mut *slot.ranges.get() };
    if ranges.collection != collection {
        (ranges.collection, ranges.count) = (collection, 0);
    }
    Some(work(ranges))
}

fn own_slot() -> Option<&'static Slot> {
    let key = KEY.load(Ordering::Acquire).checked_sub(1)?;
    // SAFETY: the key exists; its values are null and slots of `THREADS`.
    if let Some(slot) = unsafe { libc::pthread_getspecific(key).cast::<Slot>().as_ref() } {
        return Some(slot);
    }
    let slot = THREADS.0.iter().find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))?;
    // SAFETY: the key exists.
    if unsafe { libc::pthread_setspecific(key, ptr::from_ref(slot).cast()) } != 0 {
        slot.is_taken.store(false, Ordering::Release);
        return None;
    }
    // SAFETY: this thread has just taken the slot.
    unsafe {
        let ranges = slot.ranges.get();
        (*ranges).tid = libc::gettid().cast_unsigned();
        (*ranges).count = 0;
    }
    Some(slot)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn range(domain: u64, start_ns: u64) -> OpenRange {
        OpenRange { start_ns, domain: Text::with_id(domain), ..OpenRange::NONE }
    }

    #[test]
    fn ranges_of_domains_are_nested_independently() {
        let mut ranges = ThreadRanges::NONE;
        assert!(ranges.pop(0).is_none());
        assert_eq!(ranges.push(range(0, 1)), Some(0));
        assert_eq!(ranges.push(range(7, 2)), Some(0));
        assert_eq!(ranges.push(range(0, 3)), Some(1));
        assert_eq!(ranges.push(range(7, 4)), Some(1));
        let mut popped = |domain| ranges.pop(domain).map(|(range, left)| (range.start_ns, left));
        assert_eq!(popped(0), Some((3, 1)));
        assert_eq!(popped(7), Some((4, 1)));
        assert_eq!(popped(7), Some((2, 0)));
        assert_eq!(popped(7), None);
        assert_eq!(popped(0), Some((1, 0)));
        for number in 0..MOST_OPEN as u64 {
            assert!(ranges.push(range(0, number)).is_some());
        }
        assert_eq!(ranges.push(range(0, 0)), None);
    }

    #[test]
    fn a_thread_gives_back_what_it_had_and_a_new_collection_begins_empty() {
        prepare();
        for _ in 0..2 * MOST_THREADS {
            let tid = thread::spawn(|| with_own(1, |own| (own.push(range(0, 1)), own.tid))).join();
            assert!(matches!(tid, Ok(Some((Some(0), tid))) if tid > 0));
        }
        let depth = |collection| with_own(collection, |own| own.push(range(0, 1)));
        assert_eq!(depth(1), Some(Some(0)));
        assert_eq!(depth(1), Some(Some(1)));
        assert_eq!(depth(2), Some(Some(0)));
    }
}
