//! State that is kept from one block to the next: how long each process has been watched, and how many bytes it has
//! copied by asynchronous calls. The time inside an asynchronous call is not the time of the copy, so the rate is the
//! number of bytes over the time between two blocks.

use std::collections::BTreeMap;

use gpuprobe_analysis::{ProcessSnapshot, Snapshot};
use gpuprobe_event::counters::CopyDirection;

type Key = (u32, u64);

/// Bytes per second over the time between two blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) bytes_per_second: f64,
    pub(super) seconds: f64,
}

#[derive(Debug)]
struct Watched {
    /// Seconds since 1970.
    since: f64,
    until: Option<f64>,
    /// Total bytes of asynchronous copies.
    copied: BTreeMap<CopyDirection, u64>,
    /// Bytes of asynchronous copies since the previous snapshot.
    recent: BTreeMap<CopyDirection, u64>,
}

/// The state of all processes of the last snapshot.
#[derive(Debug, Default)]
pub(super) struct Rates {
    now: Option<f64>,
    /// From the previous snapshot to the last one.
    seconds: Option<f64>,
    processes: BTreeMap<Key, Watched>,
}

impl Rates {
    /// Takes in a snapshot and forgets processes that are no longer in it.
    pub(super) fn take(&mut self, snapshot: &Snapshot) {
        let now = snapshot.unix_seconds;
        let before = self.now.replace(now);
        // the clock may have been set back
        self.seconds = before.map(|before| now - before).filter(|seconds| *seconds > 0.0);
        let mut known = std::mem::take(&mut self.processes);
        for process in &snapshot.processes {
            let key = key(process);
            let copied = copied(process);
            let watched = match known.remove(&key) {
                Some(old) => Watched { recent: since(&old.copied, &copied), copied, ..old },
                // a process that was not in the previous snapshot began after it
                None => Watched { since: before.unwrap_or(now), until: None, recent: copied.clone(), copied },
            };
            let until = watched.until.or_else(|| process.exited_at_ns.map(|_| now));
            self.processes.insert(key, Watched { until, ..watched });
        }
    }

    /// The rate of asynchronous copies of a process in one direction, since the previous snapshot.
    pub(super) fn copied(&self, process: &ProcessSnapshot, direction: CopyDirection) -> Option<Rate> {
        let (seconds, watched) = (self.seconds?, self.processes.get(&key(process))?);
        let bytes = watched.recent.get(&direction).copied().unwrap_or(0);
        Some(Rate { bytes_per_second: bytes as f64 / seconds, seconds })
    }

    /// For how long a process has been watched.
    pub(super) fn observed_ns(&self, process: &ProcessSnapshot) -> u64 {
        let Some((now, watched)) = self.now.zip(self.processes.get(&key(process))) else { return 0 };
        // converting a float to an integer saturates
        ((watched.until.unwrap_or(now) - watched.since) * 1e9) as u64
    }
}

fn key(process: &ProcessSnapshot) -> Key {
    (process.pid.0, process.instance)
}

fn copied(process: &ProcessSnapshot) -> BTreeMap<CopyDirection, u64> {
    let mut copied = BTreeMap::new();
    for copy in process.gpu_ops.copies.iter().filter(|copy| copy.is_async) {
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

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::{CopyTotals, HostMemory, LATENCY_BUCKETS};

    use super::*;
    use crate::test_processes::process;

    fn at(unix_seconds: f64, bytes: Option<u64>, exited_at_ns: Option<u64>) -> Snapshot {
        let copies = |bytes| CopyTotals {
            direction: CopyDirection::HostToDevice,
            is_async: true,
            host: HostMemory::Pinned,
            copies: 1,
            errors: 0,
            bytes,
            total_ns: 1,
            sizes: [0; LATENCY_BUCKETS],
        };
        let process = |bytes| ProcessSnapshot {
            exited_at_ns,
            gpu_ops: gpuprobe_analysis::GpuOps { copies: vec![copies(bytes)], ..Default::default() },
            ..process(7, "app")
        };
        let processes = bytes.map(|bytes| process(bytes).into()).into_iter().collect();
        Snapshot { unix_seconds, processes, ..Snapshot::default() }
    }

    /// The rate, and the seconds watched, after one more snapshot.
    fn take(rates: &mut Rates, snapshot: &Snapshot) -> (Option<f64>, u64) {
        rates.take(snapshot);
        let process = &snapshot.processes[0];
        let rate = rates.copied(process, CopyDirection::HostToDevice);
        (rate.map(|rate| rate.bytes_per_second), rates.observed_ns(process) / 1_000_000_000)
    }

    #[test]
    fn a_rate_is_the_bytes_over_the_time_since_the_previous_snapshot() {
        let mut rates = Rates::default();
        rates.take(&at(100.0, None, None));
        assert_eq!(
            take(&mut rates, &at(105.0, Some(50), None)),
            (Some(10.0), 5),
            "it began after that snapshot"
        );
        assert_eq!(take(&mut rates, &at(107.0, Some(250), None)), (Some(100.0), 7));
        assert_eq!(take(&mut rates, &at(109.0, Some(250), Some(1))), (Some(0.0), 9));
        assert_eq!(take(&mut rates, &at(119.0, Some(250), Some(1))), (Some(0.0), 9), "it has exited");
        rates.take(&at(120.0, None, None));
        assert!(rates.processes.is_empty());
    }

    #[test]
    fn there_is_no_rate_for_the_first_snapshot_or_after_the_clock_was_set_back() {
        let mut rates = Rates::default();
        assert_eq!(take(&mut rates, &at(100.0, Some(50), None)), (None, 0));
        assert_eq!(take(&mut rates, &at(90.0, Some(60), None)), (None, 0));
        assert_eq!(take(&mut rates, &at(100.0, Some(70), None)), (Some(1.0), 0));
    }
}
