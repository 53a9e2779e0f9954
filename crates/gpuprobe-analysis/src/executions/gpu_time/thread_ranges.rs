//! Finds the innermost NVTX range in which something was submitted.
//!
//! A range is known when it ends. What was submitted in it may have been executed, and reported, long before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use gpuprobe_event::{Tgid, Tid};

/// The number of a name of ranges.
pub(super) type RangeName = u32;

/// The place of a range in its thread: by its start, and the outer one first.
type Place = (u64, Reverse<u64>);

#[derive(Clone, Copy, Debug)]
struct Ended {
    name: RangeName,
    /// The range around it, if that has ended.
    around: Option<Place>,
}

/// The ranges of one thread. They are nested.
#[derive(Clone, Debug, Default)]
struct Thread {
    ended: BTreeMap<Place, Ended>,
    /// Those without a range around them yet, in the order of their ends.
    outermost: VecDeque<Place>,
    /// Executions whose range has not ended, by when they were submitted: how many, and their time.
    waiting: BTreeMap<u64, (u64, u64)>,
}

/// The ranges of all threads.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadRanges {
    threads: HashMap<(Tgid, Tid), Thread>,
}

/// Executions to count for a range.
pub(super) struct Counted {
    pub(super) executions: u64,
    pub(super) ns: u64,
}

impl ThreadRanges {
    const MOST_THREADS: usize = 256;
    const MOST_ENDED: usize = 1 << 14;
    const MOST_WAITING: usize = 1 << 16;

    /// A range ended. Returns the executions that are in it and in no range inside it.
    pub(super) fn ended(
        &mut self,
        thread: (Tgid, Tid),
        (start_ns, end_ns): (u64, u64),
        name: RangeName,
    ) -> Option<Counted> {
        let thread = self.thread(thread)?;
        let place = (start_ns, Reverse(end_ns));
        while let Some(inner) = thread.outermost.back().copied().filter(|inner| *inner >= place) {
            thread.outermost.pop_back();
            if let Some(range) = thread.ended.get_mut(&inner) {
                range.around = Some(place).filter(|around| *around < inner);
            }
        }
        thread.outermost.push_back(place);
        thread.ended.insert(place, Ended { name, around: None });
        if thread.ended.len() > Self::MOST_ENDED
            && let Some((forgotten, _)) = thread.ended.pop_first()
            && thread.outermost.front() == Some(&forgotten)
        {
            thread.outermost.pop_front();
        }
        let inside: Vec<_> = thread.waiting.range(start_ns..=end_ns).map(|(at, _)| *at).collect();
        let mut counted = Counted { executions: 0, ns: 0 };
        for at in inside {
            let (executions, ns) = thread.waiting.remove(&at).unwrap_or_default();
            counted.executions += executions;
            counted.ns = counted.ns.saturating_add(ns);
        }
        Some(counted)
    }

    /// Something was submitted at this time and executed. Returns its range, if that has ended; otherwise it waits.
    pub(super) fn executed(&mut self, thread: (Tgid, Tid), at_ns: u64, ns: u64) -> Option<RangeName> {
        let thread = self.thread(thread)?;
        let mut candidate = thread.ended.range(..=(at_ns, Reverse(0))).next_back();
        while let Some(((_, Reverse(end_ns)), range)) = candidate {
            if *end_ns >= at_ns {
                return Some(range.name);
            }
            // it has ended before: only a range around it can be the one
            candidate = range.around.and_then(|around| thread.ended.get_key_value(&around));
        }
        if thread.waiting.len() >= Self::MOST_WAITING {
            // it is most probably in no range at all
            thread.waiting.pop_first();
        }
        let (executions, sum_ns) = thread.waiting.entry(at_ns).or_default();
        *executions += 1;
        *sum_ns = sum_ns.saturating_add(ns);
        None
    }

    /// A process exited or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        self.threads.retain(|(of, _), _| *of != tgid);
    }

    fn thread(&mut self, key: (Tgid, Tid)) -> Option<&mut Thread> {
        let has_room = self.threads.len() < Self::MOST_THREADS;
        (has_room || self.threads.contains_key(&key)).then(|| self.threads.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: (Tgid, Tid) = (Tgid(1), Tid(2));

    fn ended(ranges: &mut ThreadRanges, start_ns: u64, end_ns: u64, name: RangeName) -> (u64, u64) {
        let counted = ranges.ended(THREAD, (start_ns, end_ns), name).unwrap();
        (counted.executions, counted.ns)
    }

    #[test]
    fn executions_that_come_after_their_range_find_the_innermost() {
        let mut ranges = ThreadRanges::default();
        for (start_ns, end_ns, name) in [(20, 30, 2), (40, 45, 3), (50, 55, 5), (50, 60, 4), (10, 70, 1)] {
            assert_eq!(ended(&mut ranges, start_ns, end_ns, name), (0, 0));
        }
        let of = |ranges: &mut ThreadRanges, at| ranges.executed(THREAD, at, 7);
        let found = [15, 25, 35, 44, 48, 52, 58, 65, 75, 5].map(|at| of(&mut ranges, at));
        let expected = [1, 2, 1, 3, 1, 5, 4, 1].map(Some).into_iter().chain([None, None]);
        assert_eq!(found.to_vec(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn executions_that_come_before_the_end_of_their_range_wait_for_it() {
        let mut ranges = ThreadRanges::default();
        ended(&mut ranges, 20, 30, 2);
        for at in [15, 25, 35, 36, 80] {
            ranges.executed(THREAD, at, 7);
        }
        assert_eq!(ended(&mut ranges, 34, 40, 3), (2, 14));
        assert_eq!(ended(&mut ranges, 10, 70, 1), (1, 7));
        assert_eq!(ranges.executed(THREAD, 31, 7), Some(1));
        assert_eq!(ranges.executed((Tgid(1), Tid(3)), 31, 7), None, "another thread");
    }

    #[test]
    fn memory_is_bounded() {
        let mut ranges = ThreadRanges::default();
        for at in 0..200_000 {
            ended(&mut ranges, at * 10, at * 10 + 5, 1);
            ranges.executed(THREAD, at * 10 + 7, 1);
        }
        let thread = &ranges.threads[&THREAD];
        assert!(
            thread.ended.len() <= ThreadRanges::MOST_ENDED
                && thread.waiting.len() <= ThreadRanges::MOST_WAITING
        );
        assert!(thread.outermost.len() <= ThreadRanges::MOST_ENDED + 1);
    }
}
