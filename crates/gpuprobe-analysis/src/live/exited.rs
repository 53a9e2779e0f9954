//! Exited processes. Their last counters are listed individually for a while, so that the next scrape sees them, and
//! are then summed by name, so that nothing is ever missing from the sums. Several runs can share a metric series: a
//! process may execute its program again, or another process of the same name may get its pid. A series must never
//! decrease, so the counters of earlier runs are kept until the last run is dropped, and then all of them are summed
//! at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gpuprobe_event::Tgid;
use gpuprobe_event::counters::{CallCounts, FailureCounts, GpuOpRows, LiveTotals, ProcessKey, ProcessMemory};
use serde::Serialize;

use super::function_counts::{Failure, FunctionCounts};
use super::memory_counts::{MemoryCounts, MemoryTotals};
use super::process_snapshot::ProcessSnapshot;
use crate::gpu_ops::process_ops::GpuOps;
use crate::process_info::ProcessInfo;

/// How long an exited process is listed by default, so that the next scrape sees its counters.
pub const LISTED_AFTER_EXIT_NS: u64 = 5 * 60 * 1_000_000_000;

/// Exited processes listed by default. One that uses ten functions takes 20 kB of a scrape.
pub const MOST_EXITED: usize = 128;
/// Names with sums of their own. Any process can take any name, so further names are summed under [`OTHER`].
const MOST_NAMES: usize = 64;
/// The name of the sum over all further names.
const OTHER: &str = "other";

/// The last rows of an exited process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitedProcess {
    pub key: ProcessKey,
    pub info: ProcessInfo,
    /// One row per function.
    pub calls: Vec<CallCounts>,
    /// One row per function and error.
    pub failures: Vec<FailureCounts>,
    pub memory: Option<ProcessMemory>,
    /// Rows of GPU operations.
    pub gpu_ops: GpuOpRows,
}

/// The sum over all exited processes of one name that are no longer listed individually.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PastProcesses {
    pub name: String,
    /// The number of processes.
    pub processes: u64,
    /// Sorted by API and name.
    pub functions: Vec<FunctionCounts>,
    /// Sorted by function and error.
    pub failures: Vec<Failure>,
    /// Memory counters; nothing is live.
    pub memory: MemoryCounts,
    /// GPU operations.
    pub gpu_ops: GpuOps,
}

impl PastProcesses {
    fn add(&mut self, earlier: &EarlierRuns) {
        let process = &earlier.sum;
        self.processes += earlier.runs;
        add_functions(&mut self.functions, &process.functions);
        process.failures.iter().for_each(|failure| failure.add_to(&mut self.failures));
        self.memory.add(&process.memory);
        self.gpu_ops.add(&process.gpu_ops);
    }
}

fn add_functions(sums: &mut Vec<FunctionCounts>, functions: &[FunctionCounts]) {
    for more in functions {
        match sums.iter_mut().find(|f| f.is_same(more)) {
            Some(sum) => sum.add(more),
            None => sums.push(more.clone()),
        }
    }
    sums.sort_unstable_by_key(|f| (f.api, f.function));
}

/// The sum over runs that are only listed because a later run shares their metric series.
#[derive(Clone, Debug)]
struct EarlierRuns {
    runs: u64,
    /// The sum, under the key of the first run.
    sum: Arc<ProcessSnapshot>,
}

impl EarlierRuns {
    fn add(&mut self, process: &ProcessSnapshot) {
        self.runs += 1;
        let sum = Arc::make_mut(&mut self.sum);
        sum.exited_at_ns = sum.exited_at_ns.max(process.exited_at_ns);
        add_functions(&mut sum.functions, &process.functions);
        process.failures.iter().for_each(|failure| failure.add_to(&mut sum.failures));
        sum.memory.add(&process.memory);
        sum.gpu_ops.add_run(&process.gpu_ops);
    }
}

/// Recently exited processes, oldest first, and the sums of all before them. Both are shared with the snapshots, so the
/// rows of a process are built once.
#[derive(Clone, Debug)]
pub struct ExitedProcesses {
    listed: VecDeque<Arc<ProcessSnapshot>>,
    /// The number of listed processes by pid.
    pids: HashMap<Tgid, usize>,
    /// Earlier runs that share their series with a listed or running process, by pid.
    earlier: BTreeMap<Tgid, Vec<EarlierRuns>>,
    /// The most processes to list.
    most: usize,
    past: BTreeMap<String, Arc<PastProcesses>>,
    totals: MemoryTotals,
    forgotten_early: u64,
    /// How long a process is listed.
    listed_ns: u64,
}

impl Default for ExitedProcesses {
    fn default() -> Self {
        Self::bounded(MOST_EXITED)
    }
}

impl ExitedProcesses {
    /// Lists at most `most` processes.
    pub fn bounded(most: usize) -> Self {
        Self {
            listed: VecDeque::new(),
            pids: HashMap::new(),
            earlier: BTreeMap::new(),
            most,
            past: BTreeMap::new(),
            totals: MemoryTotals::default(),
            forgotten_early: 0,
            listed_ns: LISTED_AFTER_EXIT_NS,
        }
    }

    /// Changes how long a process is listed.
    pub fn list_for(&mut self, ns: u64) {
        self.listed_ns = ns;
    }

    /// Adds a process, whose live memory was freed by its exit. A process without any rows is ignored.
    pub fn keep(&mut self, mut process: ExitedProcess) {
        let is_idle = process.calls.is_empty() && process.failures.is_empty();
        if is_idle && process.memory.is_none() && process.gpu_ops.is_empty() {
            return;
        }
        if let Some(memory) = &mut process.memory {
            self.totals.add_exited(memory);
            memory.live.fill(LiveTotals::default());
        }
        let ExitedProcess { key, info, calls, failures, memory, gpu_ops } = &process;
        let mut exited = ProcessSnapshot::new(*key, info, calls, memory.as_ref());
        exited.gpu_ops = GpuOps::of_exited(gpu_ops);
        exited.gpu_ops.launched = info.launched.clone().finish(&gpu_ops.launches);
        exited.gpu_ops.graph_kernels = info.graph_kernels.clone().finish(&gpu_ops.graph_kernels);
        exited.gpu_ops.requests = info.requests.clone().finish(&gpu_ops.commands, &gpu_ops.unified);
        failures.iter().for_each(|row| Failure::from(row).add_to(&mut exited.failures));
        *self.pids.entry(exited.pid).or_default() += 1;
        self.listed.push_back(Arc::new(exited));
    }

    /// Changes the most processes to list.
    pub fn keep_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Moves the oldest to the sums if there are too many. `is_shared` returns whether a running process shares the
    /// series of a process.
    pub fn make_room(&mut self, is_shared: impl Fn(&ProcessSnapshot) -> bool) {
        while self.listed.len() > self.most {
            self.forgotten_early += self.drop_oldest(&is_shared);
        }
    }

    /// Moves processes that exited too long ago, or do not fit, to the sums.
    pub fn forget_old(&mut self, now_ns: u64, is_shared: impl Fn(&ProcessSnapshot) -> bool) {
        let is_old = |process: &Arc<ProcessSnapshot>| {
            process.exited_at_ns.is_some_and(|at| now_ns.saturating_sub(at) >= self.listed_ns)
        };
        // they are in the order of their exits
        for _ in 0..self.listed.iter().take_while(|process| is_old(process)).count() {
            self.drop_oldest(&is_shared);
        }
        self.make_room(&is_shared);
        self.drop_earlier(is_shared);
    }

    /// Moves earlier runs to the sums if no later run shares their series any more. This happens if the last run exits
    /// without any rows.
    fn drop_earlier(&mut self, is_shared: impl Fn(&ProcessSnapshot) -> bool) {
        let mut earlier = std::mem::take(&mut self.earlier);
        earlier.retain(|_, of_pid| {
            of_pid.retain(|runs| {
                let stays = is_shared(&runs.sum) || self.lists_another(&runs.sum);
                if !stays {
                    self.sum_up(runs);
                }
                stays
            });
            !of_pid.is_empty()
        });
        self.earlier = earlier;
    }

    /// Removes the oldest from the list. Returns the number of runs that were moved to the sums.
    fn drop_oldest(&mut self, is_shared: impl Fn(&ProcessSnapshot) -> bool) -> u64 {
        let Some(oldest) = self.listed.pop_front() else { return 0 };
        if let Some(with_pid) = self.pids.get_mut(&oldest.pid) {
            *with_pid -= 1;
            if *with_pid == 0 {
                self.pids.remove(&oldest.pid);
            }
        }
        let stays = is_shared(&oldest) || self.lists_another(&oldest);
        let mut of_pid = self.earlier.remove(&oldest.pid).unwrap_or_default();
        let runs = match of_pid.iter().position(|runs| runs.sum.has_labels_of(&oldest)) {
            Some(at) => {
                let mut runs = of_pid.swap_remove(at);
                runs.add(&oldest);
                runs
            }
            None => EarlierRuns { runs: 1, sum: Arc::clone(&oldest) },
        };
        let summed_up = if stays { 0 } else { runs.runs };
        if stays {
            of_pid.push(runs);
        } else {
            self.sum_up(&runs);
        }
        if !of_pid.is_empty() {
            self.earlier.insert(oldest.pid, of_pid);
        }
        summed_up
    }

    /// Whether another listed process shares the series.
    fn lists_another(&self, process: &ProcessSnapshot) -> bool {
        self.pids.contains_key(&process.pid) && self.listed.iter().any(|listed| listed.has_labels_of(process))
    }

    fn sum_up(&mut self, runs: &EarlierRuns) {
        let name = &runs.sum.name;
        let has_room = self.past.len() < MOST_NAMES || self.past.contains_key(name);
        let name = if has_room { name } else { OTHER };
        let sums = self.past.entry(name.to_owned()).or_default();
        // copies the sums if a snapshot still uses them
        let sums = Arc::make_mut(sums);
        name.clone_into(&mut sums.name);
        sums.add(runs);
    }

    /// The listed processes, oldest first, followed by the sums of earlier runs.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ProcessSnapshot>> {
        self.listed.iter().chain(self.earlier.values().flatten().map(|runs| &runs.sum))
    }

    /// The same for one pid.
    pub fn with_pid(&self, pid: Tgid) -> impl Iterator<Item = &Arc<ProcessSnapshot>> {
        let listed = self.pids.contains_key(&pid).then(|| self.listed.iter()).into_iter().flatten();
        let earlier = self.earlier.get(&pid).into_iter().flatten().map(|runs| &runs.sum);
        listed.filter(move |process| process.pid == pid).chain(earlier)
    }

    /// The sums by name.
    pub fn past(&self) -> impl Iterator<Item = &Arc<PastProcesses>> {
        self.past.values()
    }

    /// Memory totals of all exited processes.
    pub fn totals(&self) -> MemoryTotals {
        self.totals
    }

    /// The number of processes that were moved to the sums early because there was no room.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::LATENCY_BUCKETS;
    use gpuprobe_event::{Api, DeviceTime, Space, Tgid, catalogue};

    use super::*;

    fn process(tgid: u32, name: &str, exited_at_ns: u64, functions: &[&str]) -> ExitedProcess {
        let key = ProcessKey { tgid: Tgid(tgid), instance: 1 };
        let row = |function: &&str| CallCounts {
            process: key,
            function: catalogue().lookup(Api::Driver, None, function).unwrap().id,
            calls: u64::from(tgid),
            errors: 1,
            bytes: 2,
            total_ns: 3,
            driver: DeviceTime { calls: 1, ns: 1 },
            latency: [4; LATENCY_BUCKETS],
        };
        let memory = ProcessMemory {
            process: key,
            live: [LiveTotals { live_bytes: 5, live_allocations: 1 }; Space::ALL.len()],
            allocated_bytes: 10,
            freed_bytes: 5,
            allocations: 4,
            failed_allocations: 3,
            frees: 2,
            failed_frees: 1,
            unknown_frees: 1,
            replaced: 2,
            replaced_bytes: 0,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
            peak_bytes: 0,
            out_of_memory: 3,
        };
        let info =
            ProcessInfo { name: name.to_owned(), exited_at_ns: Some(exited_at_ns), ..ProcessInfo::default() };
        let calls = functions.iter().map(row).collect();
        ExitedProcess {
            key,
            info,
            calls,
            failures: Vec::new(),
            memory: Some(memory),
            gpu_ops: GpuOpRows::default(),
        }
    }

    /// Adds a process while no other process is running.
    fn keep(exited: &mut ExitedProcesses, process: ExitedProcess) {
        exited.keep(process);
        exited.make_room(|_| false);
    }

    fn pids(exited: &ExitedProcesses) -> Vec<u32> {
        exited.iter().map(|p| p.pid.0).collect()
    }

    /// A name, the number of processes with it, and their calls by function.
    type Past<'a> = (&'a str, u64, Vec<(&'a str, u64)>);

    fn past(exited: &ExitedProcesses) -> Vec<Past<'_>> {
        let calls = |p: &PastProcesses| p.functions.iter().map(|f| (f.function, f.calls)).collect();
        exited.past().map(|p| (p.name.as_str(), p.processes, calls(p))).collect()
    }

    #[test]
    fn a_process_is_listed_for_five_minutes_and_then_stays_in_the_sums() {
        let mut exited = ExitedProcesses::default();
        exited.keep(process(1, "a", 10, &["cuInit"]));
        exited.keep(process(2, "a", 20, &["cuInit"]));
        let totals = exited.totals();
        assert_eq!((totals.allocations, totals.frees, totals.replaced), (8, 6, 4));
        assert_eq!(
            (totals.live_allocations, totals.freed_with_context_allocations, totals.freed_with_context_bytes),
            (0, 12, 60)
        );
        exited.forget_old(LISTED_AFTER_EXIT_NS + 9, |_| false);
        assert_eq!((pids(&exited), past(&exited)), (vec![1, 2], vec![]));
        exited.forget_old(LISTED_AFTER_EXIT_NS + 10, |_| false);
        assert_eq!((pids(&exited), past(&exited)), (vec![2], vec![("a", 1, vec![("cuInit", 1)])]));
        assert_eq!((exited.totals(), exited.forgotten_early()), (totals, 0));
    }

    #[test]
    fn the_oldest_are_moved_to_the_sums_when_there_is_no_room() {
        let mut exited = ExitedProcesses::bounded(1);
        keep(&mut exited, process(1, "b", 0, &["cuInit", "cuMemAlloc_v2"]));
        keep(&mut exited, process(10, "a", 0, &["cuInit"]));
        // a snapshot with the current sums
        let shown: Vec<_> = exited.past().cloned().collect();
        keep(&mut exited, process(100, "b", 0, &["cuMemFree_v2", "cuInit"]));
        keep(&mut exited, process(1000, "b", 0, &["cuInit"]));
        let b = vec![("cuInit", 101), ("cuMemAlloc_v2", 1), ("cuMemFree_v2", 100)];
        assert_eq!(past(&exited), [("a", 1, vec![("cuInit", 10)]), ("b", 2, b)]);
        assert_eq!((pids(&exited), exited.forgotten_early()), (vec![1000], 3));
        let sums = exited.past().last().unwrap();
        let init = &sums.functions[0];
        assert_eq!((init.errors, init.bytes, init.total_ns), (2, 4, 6));
        assert_eq!(init.latency, [8; LATENCY_BUCKETS]);
        let memory = MemoryCounts {
            live: Vec::new(),
            allocated_bytes: 20,
            freed_bytes: 10,
            unknown_frees: 2,
            replaced: 4,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
            peak_bytes: 0,
            out_of_memory: 6,
        };
        assert_eq!(sums.memory, memory);
        assert_eq!(shown[0].processes, 1, "a snapshot does not change");
    }

    #[test]
    fn names_beyond_the_bound_share_a_sum() {
        let mut exited = ExitedProcesses::bounded(0);
        for tgid in 0..200 {
            keep(&mut exited, process(tgid, &format!("name{tgid:03}"), 0, &["cuInit"]));
        }
        keep(&mut exited, process(1, "name000", 0, &["cuInit"]));
        let past = past(&exited);
        assert_eq!(past.len(), MOST_NAMES + 1);
        assert_eq!(past[0], ("name000", 2, vec![("cuInit", 1)]));
        let all: u64 = past.iter().flat_map(|(_, _, calls)| calls).map(|(_, n)| n).sum();
        assert_eq!(all, (0..200).sum::<u64>() + 1);
        let other = past.iter().find(|(name, ..)| *name == OTHER).unwrap();
        assert_eq!(other.1, 200 - MOST_NAMES as u64);
    }

    #[test]
    fn exited_processes_have_no_live_memory_and_those_without_rows_are_ignored() {
        let mut exited = ExitedProcesses::default();
        exited.keep(process(1, "a", 0, &["cuInit"]));
        exited.keep(ExitedProcess { memory: None, ..process(2, "a", 0, &[]) });
        assert_eq!(pids(&exited), [1]);
        let live = &exited.iter().next().unwrap().memory.live;
        assert_eq!(live.len(), Space::ALL.len());
        assert!(live.iter().all(|live| (live.amount.bytes, live.amount.allocations) == (0, 0)));
    }

    fn calls_of(exited: &ExitedProcesses, pid: u32) -> u64 {
        let of_pid = exited.iter().filter(|p| p.pid.0 == pid);
        of_pid.flat_map(|p| &p.functions).map(|f| f.calls).sum()
    }

    /// A run with the same pid and name but another instance.
    fn run(instance: u64, exited_at_ns: u64) -> ExitedProcess {
        let mut run = process(7, "a", exited_at_ns, &["cuInit"]);
        run.key.instance = instance;
        run
    }

    #[test]
    fn earlier_runs_are_listed_until_the_last_run_is_dropped() {
        for most in [0, 2, 100] {
            let mut exited = ExitedProcesses::bounded(most);
            let mut sum = 0;
            for instance in 1..=5 {
                exited.keep(run(instance, instance));
                // the next run has started, with the same labels
                exited.make_room(|process| process.pid.0 == 7);
                exited.forget_old(LISTED_AFTER_EXIT_NS + instance - 1, |process| process.pid.0 == 7);
                sum += 7;
                assert_eq!((calls_of(&exited, 7), past(&exited)), (sum, vec![]), "{most}");
            }
            assert!(exited.iter().count() <= most.min(1) + 1, "earlier runs take the room of one");
            // the last run exited without any rows
            exited.forget_old(LISTED_AFTER_EXIT_NS + 5, |_| false);
            assert_eq!((calls_of(&exited, 7), past(&exited)), (0, vec![("a", 5, vec![("cuInit", 35)])]));
            assert_eq!(exited.past().next().unwrap().memory.allocated_bytes, 50);
            assert!(exited.earlier.is_empty() && exited.pids.is_empty());
        }
    }

    #[test]
    fn listed_runs_keep_earlier_runs_with_the_same_labels_only() {
        let mut exited = ExitedProcesses::default();
        exited.keep(run(1, 10));
        exited.keep(process(7, "b", 10, &["cuInit"]));
        exited.keep(run(2, 20));
        exited.forget_old(LISTED_AFTER_EXIT_NS + 10, |_| false);
        assert_eq!((calls_of(&exited, 7), past(&exited)), (14, vec![("b", 1, vec![("cuInit", 7)])]));
        let shown: Vec<_> = exited.with_pid(Tgid(7)).map(|p| p.instance).collect();
        assert_eq!(shown, [2, 1]);
        exited.forget_old(LISTED_AFTER_EXIT_NS + 20, |_| false);
        let a = ("a", 2, vec![("cuInit", 14)]);
        assert_eq!((calls_of(&exited, 7), past(&exited)), (0, vec![a, ("b", 1, vec![("cuInit", 7)])]));
        assert_eq!(exited.forgotten_early(), 0);
    }
}
