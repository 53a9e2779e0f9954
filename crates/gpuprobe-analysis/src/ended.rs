//! Processes that ended: the last of their counters, kept for a while so that the last scrape sees them, and the sums
//! of those that are no longer kept.

use std::collections::VecDeque;

use gpuprobe_event::counters::{CallCounts, Held, ProcessKey, ProcessMemory};

use crate::snapshot::{KEPT_AFTER_EXIT_NS, MemoryTotals, ProcessInfo};

/// Rows kept by default: 20 MiB, or some 6,000 processes that use ten functions each.
pub const MOST_ROWS: usize = 1 << 16;

/// One process that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedProcess {
    /// Which.
    pub key: ProcessKey,
    /// Its name and when it ended.
    pub info: ProcessInfo,
    /// What it did, a row per function.
    pub calls: Vec<CallCounts>,
    /// What it did to memory.
    pub memory: Option<ProcessMemory>,
}

impl EndedProcess {
    fn rows(&self) -> usize {
        self.calls.len() + usize::from(self.memory.is_some())
    }
}

/// The processes that ended a short time ago, oldest first.
#[derive(Clone, Debug)]
pub struct Ended {
    kept: VecDeque<EndedProcess>,
    rows: usize,
    most_rows: usize,
    forgotten: MemoryTotals,
    forgotten_early: u64,
}

impl Default for Ended {
    fn default() -> Self {
        Self::bounded(MOST_ROWS)
    }
}

impl Ended {
    /// A store of at most this many rows.
    pub fn bounded(most_rows: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            rows: 0,
            most_rows,
            forgotten: MemoryTotals::default(),
            forgotten_early: 0,
        }
    }

    /// Keeps a process. What it held is gone with it. One that did nothing is not kept. Where there is no room, the
    /// oldest are forgotten.
    pub fn keep(&mut self, mut process: EndedProcess) {
        if process.rows() == 0 {
            return;
        }
        if let Some(memory) = &mut process.memory {
            memory.held.fill(Held::default());
        }
        self.rows += process.rows();
        self.kept.push_back(process);
        while self.rows > self.most_rows && self.forget_oldest() {
            self.forgotten_early += 1;
        }
    }

    /// Forgets those that ended too long ago to be shown.
    pub fn forget_old(&mut self, now_ns: u64) {
        let old = |p: &EndedProcess| {
            p.info.exited_at_ns.is_some_and(|at| now_ns.saturating_sub(at) >= KEPT_AFTER_EXIT_NS)
        };
        while self.kept.front().is_some_and(old) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.kept.pop_front() else { return false };
        self.rows -= oldest.rows();
        oldest.memory.iter().for_each(|memory| self.forgotten.add(memory));
        true
    }

    /// Those that are kept, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &EndedProcess> {
        self.kept.iter()
    }

    /// What those did that are no longer kept.
    pub fn forgotten(&self) -> MemoryTotals {
        self.forgotten
    }

    /// How many were forgotten before their time because there was no room.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::LATENCY_BUCKETS;
    use gpuprobe_event::{FunctionId, Space, Tgid};

    use super::*;

    fn process(tgid: u32, exited_at_ns: u64, functions: u32) -> EndedProcess {
        let key = ProcessKey { tgid: Tgid(tgid), instance: 1 };
        let row = |function| CallCounts {
            process: key,
            function: FunctionId(function),
            calls: 1,
            errors: 0,
            bytes: 0,
            total_ns: 1,
            latency: [0; LATENCY_BUCKETS],
        };
        let memory = ProcessMemory {
            process: key,
            held: [Held { live_bytes: 5, live_allocations: 1 }; Space::ALL.len()],
            allocated_bytes: 10,
            freed_bytes: 5,
            allocations: 4,
            failed_allocations: 3,
            frees: 2,
            failed_frees: 1,
            unknown_frees: 1,
            replaced: 0,
        };
        EndedProcess {
            key,
            info: ProcessInfo { exited_at_ns: Some(exited_at_ns), ..ProcessInfo::default() },
            calls: (0..functions).map(row).collect(),
            memory: Some(memory),
        }
    }

    fn pids(ended: &Ended) -> Vec<u32> {
        ended.iter().map(|p| p.key.tgid.0).collect()
    }

    #[test]
    fn a_process_is_kept_for_five_minutes_and_then_stays_in_the_sums() {
        let mut ended = Ended::default();
        ended.keep(process(1, 10, 3));
        ended.keep(process(2, 20, 3));
        ended.forget_old(KEPT_AFTER_EXIT_NS + 9);
        assert_eq!(pids(&ended), [1, 2]);
        assert_eq!(ended.forgotten(), MemoryTotals::default());
        ended.forget_old(KEPT_AFTER_EXIT_NS + 10);
        assert_eq!(pids(&ended), [2]);
        let sums = MemoryTotals {
            allocations: 4,
            failed_allocations: 3,
            frees: 3,
            failed_frees: 1,
            unknown_frees: 1,
            replaced: 0,
        };
        assert_eq!((ended.forgotten(), ended.forgotten_early()), (sums, 0));
    }

    #[test]
    fn the_oldest_give_way_and_are_counted() {
        let mut ended = Ended::bounded(8);
        for tgid in 1..=5 {
            ended.keep(process(tgid, 0, 3));
        }
        assert_eq!(pids(&ended), [4, 5]);
        assert_eq!((ended.forgotten_early(), ended.forgotten().allocations, ended.rows), (3, 12, 8));
    }

    #[test]
    fn nothing_is_held_any_more_and_who_did_nothing_is_not_kept() {
        let mut ended = Ended::default();
        ended.keep(process(1, 0, 1));
        ended.keep(EndedProcess { memory: None, ..process(2, 0, 0) });
        assert_eq!(pids(&ended), [1]);
        let memory = ended.iter().next().and_then(|p| p.memory.as_ref()).unwrap();
        assert_eq!(memory.held, [Held::default(); Space::ALL.len()]);
    }
}
