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
        // a process without memory calls has no kinds of memory; nothing is live any more
        if sum.memory.live.is_empty() {
            sum.memory.live.clone_from(&process.memory.live);
        }
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
    /// Processes moved to the sums since this was taken last; `None` if it is never taken.
    summed_up: Option<Vec<Arc<ProcessSnapshot>>>,
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
            summed_up: None,
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

    /// The processes that were moved to the sums since the last call of this. From the first call on, they are kept for
    /// the next one.
    pub fn take_summed_up(&mut self) -> Vec<Arc<ProcessSnapshot>> {
        self.summed_up.replace(Vec::new()).unwrap_or_default()
    }

    fn sum_up(&mut self, runs: &EarlierRuns) {
        if let Some(summed_up) = &mut self.summed_up {
            summed_up.push(Arc::clone(&runs.sum));
        }
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
mod tests;
