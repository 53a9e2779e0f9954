//! The union of intervals that come roughly in the order of time.

use std::collections::BTreeMap;

/// An interval in which something ran, or nothing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval<T> {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// Of what started first in it; of an idle interval, of what ended it.
    pub(super) first: T,
}

/// Merges intervals. Those that are complete are summed and forgotten.
#[derive(Clone, Debug)]
pub(super) struct BusyUnion<T> {
    /// Disjoint, by start.
    open: BTreeMap<u64, (u64, T)>,
    /// The end of the last interval that was forgotten.
    closed_ns: Option<u64>,
    busy_ns: u64,
    /// Intervals that came too late, so that some of their time may be missing.
    late: u64,
}

impl<T> Default for BusyUnion<T> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), closed_ns: None, busy_ns: 0, late: 0 }
    }
}

impl<T: Copy> BusyUnion<T> {
    /// An interval may come so much later than others that start after it.
    const WINDOW_NS: u64 = 2_000_000_000;
    const MOST_OPEN: usize = 4096;

    /// Adds an interval, and calls `idle` with each interval between others that is complete now.
    pub(super) fn add(&mut self, interval: Interval<T>, idle: impl FnMut(Interval<T>)) {
        let Interval { mut start_ns, mut end_ns, mut first } = interval;
        if let Some(closed_ns) = self.closed_ns.filter(|closed_ns| start_ns < *closed_ns) {
            self.late += 1;
            start_ns = closed_ns;
        }
        if start_ns > end_ns {
            return;
        }
        while let Some((&from_ns, &(to_ns, of))) = self.open.range(..=end_ns).next_back()
            && to_ns >= start_ns
        {
            self.open.remove(&from_ns);
            end_ns = end_ns.max(to_ns);
            if from_ns <= start_ns {
                (start_ns, first) = (from_ns, of);
            }
        }
        self.open.insert(start_ns, (end_ns, first));
        let newest_ns = self.open.last_key_value().map_or(0, |(start_ns, _)| *start_ns);
        self.close(newest_ns.saturating_sub(Self::WINDOW_NS), Self::MOST_OPEN, idle);
    }

    /// Closes intervals that ended before a time, and the first ones if there are more than `most`.
    pub(super) fn close(&mut self, before_ns: u64, most: usize, mut idle: impl FnMut(Interval<T>)) {
        while let Some((&start_ns, &(end_ns, first))) = self.open.first_key_value()
            && (end_ns < before_ns || self.open.len() > most)
        {
            self.open.pop_first();
            self.busy_ns = self.busy_ns.saturating_add(end_ns - start_ns);
            if let Some(from_ns) = self.closed_ns.filter(|from_ns| *from_ns < start_ns) {
                idle(Interval { start_ns: from_ns, end_ns: start_ns, first });
            }
            self.closed_ns = Some(end_ns);
        }
    }

    /// What follows is not connected with what was before: the time between is not idle.
    pub(super) fn interrupt(&mut self) {
        self.closed_ns = None;
    }

    pub(super) fn busy_ns(&self) -> u64 {
        let open = self.open.iter().map(|(start_ns, (end_ns, _))| end_ns - start_ns);
        open.fold(self.busy_ns, u64::saturating_add)
    }

    pub(super) fn late(&self) -> u64 {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(union: &mut BusyUnion<u64>, start_ns: u64, end_ns: u64) -> Vec<(u64, u64, u64)> {
        let mut idle = Vec::new();
        let interval = Interval { start_ns, end_ns, first: start_ns };
        union.add(interval, |it| idle.push((it.start_ns, it.end_ns, it.first)));
        idle
    }

    #[test]
    fn overlapping_intervals_count_once_in_any_order() {
        let mut union = BusyUnion::default();
        for (start_ns, end_ns) in [(50, 60), (10, 20), (15, 30), (58, 70), (12, 14), (30, 31)] {
            assert_eq!(added(&mut union, start_ns, end_ns), []);
        }
        assert_eq!((union.busy_ns(), union.open.len(), union.late()), (41, 2, 0));
        let mut idle = Vec::new();
        union.close(u64::MAX, 0, |it| idle.push((it.start_ns, it.end_ns, it.first)));
        assert_eq!((idle, union.busy_ns()), (vec![(31, 50, 50)], 41));
    }

    #[test]
    fn what_comes_too_late_is_counted_and_adds_only_what_is_still_open() {
        let window = BusyUnion::<u64>::WINDOW_NS;
        let mut union = BusyUnion::default();
        added(&mut union, 0, 10);
        added(&mut union, 100, 110);
        assert_eq!(added(&mut union, window * 2, window * 2 + 5), [(10, 100, 100)]);
        added(&mut union, 50, 60);
        assert_eq!((union.busy_ns(), union.late()), (25, 1));
        added(&mut union, 105, 120);
        assert_eq!((union.busy_ns(), union.late()), (35, 2));
    }

    #[test]
    fn memory_is_bounded() {
        let mut union = BusyUnion::default();
        let idle: usize = (0..20_000).map(|at| added(&mut union, at * 10, at * 10 + 5).len()).sum();
        assert_eq!(union.open.len(), BusyUnion::<u64>::MOST_OPEN);
        assert_eq!((union.busy_ns(), idle), (100_000, 20_000 - BusyUnion::<u64>::MOST_OPEN - 1));
        added(&mut union, u64::MAX, u64::MAX);
        added(&mut union, 7, 3);
    }
}
