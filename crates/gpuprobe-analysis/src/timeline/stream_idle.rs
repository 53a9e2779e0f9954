//! When streams were certainly idle: from the return of a wait to the next launch.

use std::collections::HashMap;

use gpuprobe_event::Tgid;
use serde::Serialize;

use super::MOST_BINS;
use crate::stats::bins::Bins;

/// Streams with idle times.
const MOST_STREAMS: usize = 256;
/// Idle times of one stream; of more, the longest are kept.
const MOST_SPANS: usize = 2000;

/// The idle times of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdleRow {
    pub tgid: Tgid,
    /// See [`crate::streams::stream_of`].
    pub stream: u64,
    /// The sum of all idle times.
    pub idle_ns: u64,
    /// The number of idle times.
    pub count: u64,
    /// Start and end of the longest idle times.
    pub spans: Vec<(u64, u64)>,
    /// Idle nanoseconds over time.
    pub bins: Bins<u64, MOST_BINS>,
}

impl IdleRow {
    /// Idle nanoseconds in this many columns between two times. A bin is divided among the columns it overlaps.
    pub fn columns(&self, (from_ns, to_ns): (u64, u64), columns: usize) -> Vec<u64> {
        let mut sums = vec![0.0; columns];
        let column_ns = to_ns.saturating_sub(from_ns).max(1) as f64 / columns as f64;
        let position = |at_ns: u64| at_ns.saturating_sub(from_ns) as f64 / column_ns;
        for (times, ns) in self.bins.iter().filter(|(_, ns)| **ns > 0) {
            let (from, to) = (position(times.start), position(times.end.min(to_ns)));
            let width = (to - from).max(f64::MIN_POSITIVE);
            for (column, sum) in sums.iter_mut().enumerate().skip(from as usize) {
                if column as f64 >= to {
                    break;
                }
                let overlap = to.min(column as f64 + 1.0) - from.max(column as f64);
                *sum += *ns as f64 * overlap / width;
            }
        }
        sums.into_iter().map(|sum| sum as u64).collect()
    }
}

/// Collects the idle times of streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamIdle {
    rows: HashMap<(Tgid, u64), IdleRow>,
}

impl StreamIdle {
    /// A stream was idle in this time.
    pub(crate) fn add(&mut self, tgid: Tgid, stream: u64, (from_ns, to_ns): (u64, u64)) {
        let key = (tgid, stream);
        if self.rows.len() >= MOST_STREAMS && !self.rows.contains_key(&key) {
            return;
        }
        let row = self.rows.entry(key).or_insert_with(|| IdleRow { tgid, stream, ..IdleRow::default() });
        row.idle_ns = row.idle_ns.saturating_add(to_ns.saturating_sub(from_ns));
        row.count += 1;
        for (times, ns) in row.bins.between(from_ns, to_ns) {
            let share = to_ns.min(times.end).saturating_sub(from_ns.max(times.start));
            *ns = ns.saturating_add(share);
        }
        row.spans.push((from_ns, to_ns));
        if row.spans.len() > MOST_SPANS {
            row.spans.sort_by_key(|(from, to)| std::cmp::Reverse(to.saturating_sub(*from)));
            row.spans.truncate(MOST_SPANS / 2);
        }
    }

    /// Sorted by process and stream.
    pub(crate) fn report(&self) -> Vec<IdleRow> {
        let mut rows: Vec<_> = self.rows.values().cloned().collect();
        rows.iter_mut().for_each(|row| row.spans.sort_unstable());
        rows.sort_by_key(|row| (row.tgid, row.stream));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_the_longest_times_are_kept() {
        let mut idle = StreamIdle::default();
        for i in 0..10_000 {
            idle.add(Tgid(1), 7, (i * 100, i * 100 + 1 + i % 50));
        }
        idle.add(Tgid(1), 7, (u64::MAX - 90, u64::MAX));
        let rows = idle.report();
        assert_eq!((rows.len(), rows[0].count, rows[0].idle_ns), (1, 10_001, 255_000 + 90));
        assert!(rows[0].spans.len() <= MOST_SPANS && rows[0].spans.contains(&(u64::MAX - 90, u64::MAX)));
        assert!(rows[0].spans.is_sorted());
    }

    #[test]
    fn columns_have_their_share_of_the_idle_time() {
        let mut idle = StreamIdle::default();
        idle.add(Tgid(1), 7, (1000, 1500));
        idle.add(Tgid(1), 7, (1900, 2000));
        assert_eq!(idle.report()[0].columns((1000, 2000), 4), [250, 250, 0, 100]);
        assert_eq!(idle.report()[0].columns((0, 0), 1).len(), 1);
    }
}
