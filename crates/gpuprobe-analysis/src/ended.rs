//! Processes that ended: the last of their counters, shown one by one for a while so that the last scrape sees them, and
//! after that summed up by name, so that nothing they did is ever missing from the sums.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpuprobe_event::counters::{CallCounts, FailureCounts, Held, ProcessKey, ProcessMemory, WorkRows};
use serde::Serialize;

use crate::snapshot::{
    Failure, FunctionCounts, KEPT_AFTER_EXIT_NS, MemoryCounts, MemoryTotals, ProcessInfo, ProcessSnapshot,
};
use crate::work::Work;

/// Processes shown one by one by default. One that uses ten functions takes 20 kB of a scrape.
pub const MOST_ENDED: usize = 128;
/// Names with sums of their own. Any process can take any name, so those beyond are summed up under [`OTHER`].
const MOST_NAMES: usize = 64;
/// The name of all further ones.
const OTHER: &str = "other";

/// One process that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedProcess {
    /// Which.
    pub key: ProcessKey,
    /// Its name and when it ended.
    pub info: ProcessInfo,
    /// What it did, a row per function.
    pub calls: Vec<CallCounts>,
    /// How it failed, a row per function and error.
    pub failures: Vec<FailureCounts>,
    /// What it did to memory.
    pub memory: Option<ProcessMemory>,
    /// What it launched and copied.
    pub work: WorkRows,
}

/// What all processes of one name did that ended and are no longer shown one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PastProcesses {
    /// Their name.
    pub name: String,
    /// How many they were.
    pub processes: u64,
    /// By function, sorted by family and name.
    pub functions: Vec<FunctionCounts>,
    /// In which ways they failed, by function and error.
    pub failures: Vec<Failure>,
    /// Memory; nothing is held any more.
    pub memory: MemoryCounts,
    /// Launches and copies.
    pub work: Work,
}

impl PastProcesses {
    fn add(&mut self, process: &ProcessSnapshot) {
        self.processes += 1;
        for more in &process.functions {
            match self.functions.iter_mut().find(|f| f.is_same(more)) {
                Some(sum) => sum.add(more),
                None => self.functions.push(more.clone()),
            }
        }
        self.functions.sort_unstable_by_key(|f| (f.api, f.function));
        process.failures.iter().for_each(|failure| failure.add_to(&mut self.failures));
        self.memory.add(&process.memory);
        self.work.add(&process.work);
    }
}

/// The processes that ended a short time ago, oldest first, and the sums of those before them. Both are shared with the
/// snapshots that show them: the rows of a process are made once.
#[derive(Clone, Debug)]
pub struct Ended {
    kept: VecDeque<Arc<ProcessSnapshot>>,
    most: usize,
    past: BTreeMap<String, Arc<PastProcesses>>,
    totals: MemoryTotals,
    forgotten_early: u64,
    /// How long they are shown one by one.
    shown_ns: u64,
}

impl Default for Ended {
    fn default() -> Self {
        Self::bounded(MOST_ENDED)
    }
}

impl Ended {
    /// A store that keeps so many one by one.
    pub fn bounded(most: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            most,
            past: BTreeMap::new(),
            totals: MemoryTotals::default(),
            forgotten_early: 0,
            shown_ns: KEPT_AFTER_EXIT_NS,
        }
    }

    /// Shows them one by one for so long from now on.
    pub fn show_for(&mut self, ns: u64) {
        self.shown_ns = ns;
    }

    /// Whether one that ended then is not shown any more.
    pub(crate) fn is_old(&self, exited_at_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(exited_at_ns) >= self.shown_ns
    }

    /// Keeps a process. What it held is gone with it. One that did nothing is not kept. Where there is no room, the
    /// oldest join the sums.
    pub fn keep(&mut self, mut process: EndedProcess) {
        let is_idle = process.calls.is_empty() && process.failures.is_empty();
        if is_idle && process.memory.is_none() && process.work.is_empty() {
            return;
        }
        if let Some(memory) = &mut process.memory {
            self.totals.add_ended(memory);
            memory.held.fill(Held::default());
        }
        let EndedProcess { key, info, calls, failures, memory, work } = &process;
        let mut ended = ProcessSnapshot::new(*key, info, calls, memory.as_ref());
        ended.work = Work::of_ended(work);
        ended.work.launched = info.launched.clone().finish(&work.launches);
        failures.iter().for_each(|row| Failure::from(row).add_to(&mut ended.failures));
        self.kept.push_back(Arc::new(ended));
        self.keep_most(self.most);
    }

    /// Keeps at most so many one by one from now on.
    pub fn keep_most(&mut self, most: usize) {
        self.most = most;
        while self.kept.len() > self.most && self.sum_up_oldest() {
            self.forgotten_early += 1;
        }
    }

    /// Sums up those that ended too long ago to be shown one by one.
    pub fn forget_old(&mut self, now_ns: u64) {
        let is_old = |this: &Self| {
            let oldest = this.kept.front().and_then(|process| process.exited_at_ns);
            oldest.is_some_and(|at| this.is_old(at, now_ns))
        };
        while is_old(self) {
            self.sum_up_oldest();
        }
    }

    fn sum_up_oldest(&mut self) -> bool {
        let Some(oldest) = self.kept.pop_front() else { return false };
        let has_room = self.past.len() < MOST_NAMES || self.past.contains_key(&oldest.name);
        let name = if has_room { &oldest.name } else { OTHER };
        let sums = self.past.entry(name.to_owned()).or_default();
        // a snapshot may still show the sums as they were
        let sums = Arc::make_mut(sums);
        name.clone_into(&mut sums.name);
        sums.add(&oldest);
        true
    }

    /// Those that are shown one by one, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ProcessSnapshot>> {
        self.kept.iter()
    }

    /// The sums of all before them, by name.
    pub fn past(&self) -> impl Iterator<Item = &Arc<PastProcesses>> {
        self.past.values()
    }

    /// What all of them did to memory.
    pub fn totals(&self) -> MemoryTotals {
        self.totals
    }

    /// How many were summed up before their time because there was no room.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::LATENCY_BUCKETS;
    use gpuprobe_event::{Api, Space, Tgid, catalogue};

    use super::*;

    fn process(tgid: u32, name: &str, exited_at_ns: u64, functions: &[&str]) -> EndedProcess {
        let key = ProcessKey { tgid: Tgid(tgid), instance: 1 };
        let row = |function: &&str| CallCounts {
            process: key,
            function: catalogue().lookup(Api::Driver, None, function).unwrap().id,
            calls: u64::from(tgid),
            errors: 1,
            bytes: 2,
            total_ns: 3,
            latency: [4; LATENCY_BUCKETS],
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
            replaced: 2,
            ended_allocations: 0,
            ended_bytes: 0,
            peak_bytes: 0,
        };
        let info =
            ProcessInfo { name: name.to_owned(), exited_at_ns: Some(exited_at_ns), ..ProcessInfo::default() };
        let calls = functions.iter().map(row).collect();
        EndedProcess {
            key,
            info,
            calls,
            failures: Vec::new(),
            memory: Some(memory),
            work: WorkRows::default(),
        }
    }

    fn pids(ended: &Ended) -> Vec<u32> {
        ended.iter().map(|p| p.pid.0).collect()
    }

    /// A name, how many had it, and their calls of each function.
    type Past<'a> = (&'a str, u64, Vec<(&'a str, u64)>);

    fn past(ended: &Ended) -> Vec<Past<'_>> {
        let calls = |p: &PastProcesses| p.functions.iter().map(|f| (f.function, f.calls)).collect();
        ended.past().map(|p| (p.name.as_str(), p.processes, calls(p))).collect()
    }

    #[test]
    fn a_process_is_shown_for_five_minutes_and_then_stays_in_the_sums() {
        let mut ended = Ended::default();
        ended.keep(process(1, "a", 10, &["cuInit"]));
        ended.keep(process(2, "a", 20, &["cuInit"]));
        let totals = ended.totals();
        assert_eq!((totals.allocations, totals.frees, totals.replaced), (8, 6, 4));
        assert_eq!((totals.live_allocations, totals.ended_allocations, totals.ended_bytes), (0, 12, 60));
        ended.forget_old(KEPT_AFTER_EXIT_NS + 9);
        assert_eq!((pids(&ended), past(&ended)), (vec![1, 2], vec![]));
        ended.forget_old(KEPT_AFTER_EXIT_NS + 10);
        assert_eq!((pids(&ended), past(&ended)), (vec![2], vec![("a", 1, vec![("cuInit", 1)])]));
        assert_eq!((ended.totals(), ended.forgotten_early()), (totals, 0));
    }

    #[test]
    fn the_oldest_give_way_are_counted_and_nothing_they_did_is_missing() {
        let mut ended = Ended::bounded(1);
        ended.keep(process(1, "b", 0, &["cuInit", "cuMemAlloc_v2"]));
        ended.keep(process(10, "a", 0, &["cuInit"]));
        // a snapshot that shows the sums as they are now
        let shown: Vec<_> = ended.past().cloned().collect();
        ended.keep(process(100, "b", 0, &["cuMemFree_v2", "cuInit"]));
        ended.keep(process(1000, "b", 0, &["cuInit"]));
        let b = vec![("cuInit", 101), ("cuMemAlloc_v2", 1), ("cuMemFree_v2", 100)];
        assert_eq!(past(&ended), [("a", 1, vec![("cuInit", 10)]), ("b", 2, b)]);
        assert_eq!((pids(&ended), ended.forgotten_early()), (vec![1000], 3));
        let sums = ended.past().last().unwrap();
        let init = &sums.functions[0];
        assert_eq!((init.errors, init.bytes, init.total_ns), (2, 4, 6));
        assert_eq!(init.latency, [8; LATENCY_BUCKETS]);
        let memory = MemoryCounts {
            held: Vec::new(),
            allocated_bytes: 20,
            freed_bytes: 10,
            unknown_frees: 2,
            replaced: 4,
            ended_allocations: 0,
            ended_bytes: 0,
            peak_bytes: 0,
        };
        assert_eq!(sums.memory, memory);
        assert_eq!(shown[0].processes, 1, "what a snapshot shows does not change");
    }

    #[test]
    fn names_beyond_the_bound_are_summed_up_together() {
        let mut ended = Ended::bounded(0);
        for tgid in 0..200 {
            ended.keep(process(tgid, &format!("name{tgid:03}"), 0, &["cuInit"]));
        }
        ended.keep(process(1, "name000", 0, &["cuInit"]));
        let past = past(&ended);
        assert_eq!(past.len(), MOST_NAMES + 1);
        assert_eq!(past[0], ("name000", 2, vec![("cuInit", 1)]));
        let all: u64 = past.iter().flat_map(|(_, _, calls)| calls).map(|(_, n)| n).sum();
        assert_eq!(all, (0..200).sum::<u64>() + 1);
        let other = past.iter().find(|(name, ..)| *name == OTHER).unwrap();
        assert_eq!(other.1, 200 - MOST_NAMES as u64);
    }

    #[test]
    fn nothing_is_held_any_more_and_who_did_nothing_is_not_kept() {
        let mut ended = Ended::default();
        ended.keep(process(1, "a", 0, &["cuInit"]));
        ended.keep(EndedProcess { memory: None, ..process(2, "a", 0, &[]) });
        assert_eq!(pids(&ended), [1]);
        let held = &ended.iter().next().unwrap().memory.held;
        assert_eq!(held.len(), Space::ALL.len());
        assert!(held.iter().all(|h| (h.live_bytes, h.live_allocations) == (0, 0)));
    }
}
