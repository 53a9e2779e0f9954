//! What is remembered of processes from one block to the next: how long they have been watched, and how much they had
//! copied by calls that do not wait, so that bytes can be told over the time in which they were moved.

use std::collections::BTreeMap;

use gpuprobe_analysis::{ProcessSnapshot, Snapshot};
use gpuprobe_event::counters::CopyDirection;

type Key = (u32, u64);

/// Bytes over a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) bytes_per_second: f64,
    /// The time from one block to the next.
    pub(super) seconds: f64,
}

#[derive(Debug)]
struct Watched {
    /// Seconds since 1970.
    since: f64,
    until: Option<f64>,
    /// Bytes by calls that do not wait.
    copied: BTreeMap<CopyDirection, u64>,
    /// Of these, what came since the last look.
    fresh: BTreeMap<CopyDirection, u64>,
}

/// All processes of the last snapshot.
#[derive(Debug, Default)]
pub(super) struct Rates {
    now: Option<f64>,
    /// From the look before to the last one.
    seconds: Option<f64>,
    processes: BTreeMap<Key, Watched>,
}

impl Rates {
    /// Looks at a snapshot. Who is not in it any more is forgotten.
    pub(super) fn take(&mut self, snapshot: &Snapshot) {
        let now = snapshot.unix_seconds;
        let before = self.now.replace(now);
        // clocks are set now and then
        self.seconds = before.map(|before| now - before).filter(|seconds| *seconds > 0.0);
        let mut known = std::mem::take(&mut self.processes);
        for process in &snapshot.processes {
            let key = key(process);
            let copied = copied(process);
            let watched = match known.remove(&key) {
                Some(old) => Watched { fresh: since(&old.copied, &copied), copied, ..old },
                // whoever was not there at the last look began after it
                None => Watched { since: before.unwrap_or(now), until: None, fresh: copied.clone(), copied },
            };
            let until = watched.until.or_else(|| process.exited_at_ns.map(|_| now));
            self.processes.insert(key, Watched { until, ..watched });
        }
    }

    /// How fast a process copied one way by calls that do not wait, since the look before.
    pub(super) fn copied(&self, process: &ProcessSnapshot, direction: CopyDirection) -> Option<Rate> {
        let (seconds, watched) = (self.seconds?, self.processes.get(&key(process))?);
        let bytes = watched.fresh.get(&direction).copied().unwrap_or(0);
        Some(Rate { bytes_per_second: bytes as f64 / seconds, seconds })
    }

    /// For how long a process has been watched.
    pub(super) fn watched_ns(&self, process: &ProcessSnapshot) -> u64 {
        let Some((now, watched)) = self.now.zip(self.processes.get(&key(process))) else { return 0 };
        // a conversion to an integer saturates
        ((watched.until.unwrap_or(now) - watched.since) * 1e9) as u64
    }
}

fn key(process: &ProcessSnapshot) -> Key {
    (process.pid.0, process.instance)
}

fn copied(process: &ProcessSnapshot) -> BTreeMap<CopyDirection, u64> {
    let mut copied = BTreeMap::new();
    for copy in process.work.copies.iter().filter(|copy| copy.is_async) {
        let bytes: &mut u64 = copied.entry(copy.direction).or_default();
        *bytes = bytes.saturating_add(copy.bytes);
    }
    copied
}

fn since(
    old: &BTreeMap<CopyDirection, u64>,
    new: &BTreeMap<CopyDirection, u64>,
) -> BTreeMap<CopyDirection, u64> {
    let before = |direction| old.get(direction).copied().unwrap_or(0);
    new.iter().map(|(direction, bytes)| (*direction, bytes.saturating_sub(before(direction)))).collect()
}
