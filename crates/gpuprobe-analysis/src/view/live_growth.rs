//! How live memory grows, for both live views.

use std::collections::{HashMap, HashSet, VecDeque};

/// Growth is the change over this long, or since the process is known.
const WINDOW_SECONDS: f64 = 60.0;
/// The least time between two points that are kept, which bounds their number whatever the time between readings is.
const STEP_SECONDS: f64 = 5.0;

/// A process of one host, by pid and instance.
pub(super) type ProcessKey = (u32, u64);

/// The live bytes of processes in the last minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveGrowth {
    processes: HashMap<ProcessKey, Points>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Points {
    /// The oldest one is the last that is not within the window, if there is one.
    kept: VecDeque<Point>,
    latest: Point,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    unix_seconds: f64,
    bytes: u64,
}

impl LiveGrowth {
    /// Adds the live bytes of all running processes at a time. The others are forgotten.
    pub(super) fn take(&mut self, unix_seconds: f64, processes: impl IntoIterator<Item = (ProcessKey, u64)>) {
        let mut listed = HashSet::with_capacity(self.processes.len());
        for (key, bytes) in processes {
            listed.insert(key);
            self.processes.entry(key).or_default().take(Point { unix_seconds, bytes });
        }
        self.processes.retain(|key, _| listed.contains(key));
    }

    /// The change of a process's live memory in bytes per second; `None` before its second reading.
    pub(super) fn of(&self, key: ProcessKey) -> Option<f64> {
        let points = self.processes.get(&key)?;
        let (first, last) = (points.kept.front()?, points.latest);
        let seconds = last.unix_seconds - first.unix_seconds;
        (seconds > 0.0).then(|| (last.bytes as f64 - first.bytes as f64) / seconds)
    }
}

impl Points {
    fn take(&mut self, point: Point) {
        let now = point.unix_seconds;
        // the clock was set back
        self.kept.retain(|kept| kept.unix_seconds <= now);
        while self.kept.get(1).is_some_and(|second| second.unix_seconds <= now - WINDOW_SECONDS) {
            self.kept.pop_front();
        }
        if self.kept.back().is_none_or(|last| now - last.unix_seconds >= STEP_SECONDS) {
            self.kept.push_back(point);
        }
        self.latest = point;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: ProcessKey = (7, 1);

    fn after(readings: impl IntoIterator<Item = (f64, u64)>) -> LiveGrowth {
        let mut growth = LiveGrowth::default();
        readings.into_iter().for_each(|(at, bytes)| growth.take(at, [(PROCESS, bytes)]));
        growth
    }

    /// A process allocates 100 bytes per second for 100 seconds, and then nothing.
    #[test]
    fn it_is_the_change_over_the_last_minute_whatever_the_interval_is() {
        for interval in [0.25, 1.0, 2.0, 5.0, 15.0, 30.0, 60.0] {
            let readings = |until: f64| {
                let count = (until / interval) as u32 + 1;
                (0..count)
                    .map(move |n| f64::from(n) * interval)
                    .map(|at| (at, (at.min(100.0) * 100.0) as u64))
            };
            assert_eq!(after(readings(interval)).of(PROCESS), Some(100.0), "{interval}");
            assert_eq!(after(readings(90.0)).of(PROCESS), Some(100.0), "{interval}");
            let over = after(readings(240.0));
            assert_eq!(over.of(PROCESS), Some(0.0), "{interval}");
            assert!(over.processes[&PROCESS].kept.len() <= 14, "{interval}: {over:?}");
        }
        let half = after((0..=130).map(|second| (f64::from(second), 100 * second.min(100) as u64)));
        assert_eq!(half.of(PROCESS), Some(3000.0 / 60.0), "30 of the last 60 seconds");
    }

    #[test]
    fn it_is_unknown_at_first_and_after_the_clock_was_set_back() {
        assert_eq!(after([(5.0, 9)]).of(PROCESS), None);
        assert_eq!(after([(5.0, 9), (5.0, 9)]).of(PROCESS), None);
        assert_eq!(after([(500.0, 9), (3.0, 9)]).of(PROCESS), None);
        assert_eq!(after([(500.0, 9), (3.0, 9), (5.0, 7)]).of(PROCESS), Some(-1.0));
        let mut growth = after([(5.0, 9), (6.0, 19)]);
        growth.take(7.0, [((8, 1), 1)]);
        assert_eq!((growth.of(PROCESS), growth.processes.len()), (None, 1), "a process that is gone");
    }
}
