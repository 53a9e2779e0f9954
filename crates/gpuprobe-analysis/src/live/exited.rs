//! Processes that ended: the last of their counters, shown one by one for a while so that the last scrape sees them, and
//! after that summed up by name, so that nothing they did is ever missing from the sums. A process may run its own program
//! again, or another of that name may get its pid: such runs share their series, which never falls while it is there. So
//! what one of them did stays until the last of them goes, and then all of it is summed up at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gpuprobe_event::Tgid;
use gpuprobe_event::counters::{CallCounts, FailureCounts, Held, ProcessKey, ProcessMemory, WorkRows};
use serde::Serialize;

use super::function_counts::{Failure, FunctionCounts};
use super::memory_counts::{MemoryCounts, MemoryTotals};
use super::process_snapshot::ProcessSnapshot;
use crate::gpu_ops::process_ops::Work;
use crate::process_info::ProcessInfo;

/// How long a process is shown after its end if nobody says otherwise, so that the last scrape sees its counters.
pub const KEPT_AFTER_EXIT_NS: u64 = 5 * 60 * 1_000_000_000;

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
    fn add(&mut self, earlier: &EarlierRuns) {
        let process = &earlier.did;
        self.processes += earlier.runs;
        add_functions(&mut self.functions, &process.functions);
        process.failures.iter().for_each(|failure| failure.add_to(&mut self.failures));
        self.memory.add(&process.memory);
        self.work.add(&process.work);
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

/// What runs with the same labels did that would not be shown any more but for later ones.
#[derive(Clone, Debug)]
struct EarlierRuns {
    runs: u64,
    /// All of it, under the key of the first.
    did: Arc<ProcessSnapshot>,
}

impl EarlierRuns {
    fn add(&mut self, process: &ProcessSnapshot) {
        self.runs += 1;
        let did = Arc::make_mut(&mut self.did);
        did.exited_at_ns = did.exited_at_ns.max(process.exited_at_ns);
        add_functions(&mut did.functions, &process.functions);
        process.failures.iter().for_each(|failure| failure.add_to(&mut did.failures));
        did.memory.add(&process.memory);
        did.work.add_run(&process.work);
    }
}

/// The processes that ended a short time ago, oldest first, and the sums of those before them. Both are shared with the
/// snapshots that show them: the rows of a process are made once.
#[derive(Clone, Debug)]
pub struct Ended {
    kept: VecDeque<Arc<ProcessSnapshot>>,
    /// How many of these had each pid.
    pids: HashMap<Tgid, usize>,
    /// Those before them whose labels somebody still has, by pid.
    earlier: BTreeMap<Tgid, Vec<EarlierRuns>>,
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
            pids: HashMap::new(),
            earlier: BTreeMap::new(),
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

    /// Keeps a process. What it held is gone with it. One that did nothing is not kept.
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
        ended.work.asked = info.asked.clone().finish(&work.commands, &work.unified);
        failures.iter().for_each(|row| Failure::from(row).add_to(&mut ended.failures));
        *self.pids.entry(ended.pid).or_default() += 1;
        self.kept.push_back(Arc::new(ended));
    }

    /// Keeps at most so many one by one from now on.
    pub fn keep_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Sums up the oldest where there is no room. Whether a process with the same labels has rows elsewhere is asked.
    pub fn make_room(&mut self, goes_on: impl Fn(&ProcessSnapshot) -> bool) {
        while self.kept.len() > self.most {
            self.forgotten_early += self.let_go_of_oldest(&goes_on);
        }
    }

    /// Sums up those that ended too long ago to be shown one by one, and where there is no room.
    pub fn forget_old(&mut self, now_ns: u64, goes_on: impl Fn(&ProcessSnapshot) -> bool) {
        let is_old = |process: &Arc<ProcessSnapshot>| {
            process.exited_at_ns.is_some_and(|at| now_ns.saturating_sub(at) >= self.shown_ns)
        };
        // in the order in which they ended
        for _ in 0..self.kept.iter().take_while(|process| is_old(process)).count() {
            self.let_go_of_oldest(&goes_on);
        }
        self.make_room(&goes_on);
        self.let_go_of_earlier(goes_on);
    }

    /// Sums up what earlier runs did where the last one went without having done anything.
    fn let_go_of_earlier(&mut self, goes_on: impl Fn(&ProcessSnapshot) -> bool) {
        let mut earlier = std::mem::take(&mut self.earlier);
        earlier.retain(|_, of_pid| {
            of_pid.retain(|runs| {
                let stays = goes_on(&runs.did) || self.keeps_another(&runs.did);
                if !stays {
                    self.sum_up(runs);
                }
                stays
            });
            !of_pid.is_empty()
        });
        self.earlier = earlier;
    }

    /// Ends the time of the oldest, and tells how many joined the sums.
    fn let_go_of_oldest(&mut self, goes_on: impl Fn(&ProcessSnapshot) -> bool) -> u64 {
        let Some(oldest) = self.kept.pop_front() else { return 0 };
        if let Some(alike) = self.pids.get_mut(&oldest.pid) {
            *alike -= 1;
            if *alike == 0 {
                self.pids.remove(&oldest.pid);
            }
        }
        let stays = goes_on(&oldest) || self.keeps_another(&oldest);
        let mut of_pid = self.earlier.remove(&oldest.pid).unwrap_or_default();
        let runs = match of_pid.iter().position(|runs| runs.did.has_labels_of(&oldest)) {
            Some(at) => {
                let mut runs = of_pid.swap_remove(at);
                runs.add(&oldest);
                runs
            }
            None => EarlierRuns { runs: 1, did: Arc::clone(&oldest) },
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

    /// Whether one with these labels is kept.
    fn keeps_another(&self, process: &ProcessSnapshot) -> bool {
        self.pids.contains_key(&process.pid) && self.kept.iter().any(|kept| kept.has_labels_of(process))
    }

    fn sum_up(&mut self, runs: &EarlierRuns) {
        let name = &runs.did.name;
        let has_room = self.past.len() < MOST_NAMES || self.past.contains_key(name);
        let name = if has_room { name } else { OTHER };
        let sums = self.past.entry(name.to_owned()).or_default();
        // a snapshot may still show the sums as they were
        let sums = Arc::make_mut(sums);
        name.clone_into(&mut sums.name);
        sums.add(runs);
    }

    /// Those that are shown one by one, oldest first, and what earlier runs did that share their series with others.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ProcessSnapshot>> {
        self.kept.iter().chain(self.earlier.values().flatten().map(|runs| &runs.did))
    }

    /// Those of them that had this pid.
    pub fn with_pid(&self, pid: Tgid) -> impl Iterator<Item = &Arc<ProcessSnapshot>> {
        let kept = self.pids.contains_key(&pid).then(|| self.kept.iter()).into_iter().flatten();
        let earlier = self.earlier.get(&pid).into_iter().flatten().map(|runs| &runs.did);
        kept.filter(move |process| process.pid == pid).chain(earlier)
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
    use gpuprobe_event::{Api, DriverTime, Space, Tgid, catalogue};

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
            driver: DriverTime { calls: 1, ns: 1 },
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
            replaced_bytes: 0,
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

    /// Keeps a process while nobody runs.
    fn keep(ended: &mut Ended, process: EndedProcess) {
        ended.keep(process);
        ended.make_room(|_| false);
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
        ended.forget_old(KEPT_AFTER_EXIT_NS + 9, |_| false);
        assert_eq!((pids(&ended), past(&ended)), (vec![1, 2], vec![]));
        ended.forget_old(KEPT_AFTER_EXIT_NS + 10, |_| false);
        assert_eq!((pids(&ended), past(&ended)), (vec![2], vec![("a", 1, vec![("cuInit", 1)])]));
        assert_eq!((ended.totals(), ended.forgotten_early()), (totals, 0));
    }

    #[test]
    fn the_oldest_give_way_are_counted_and_nothing_they_did_is_missing() {
        let mut ended = Ended::bounded(1);
        keep(&mut ended, process(1, "b", 0, &["cuInit", "cuMemAlloc_v2"]));
        keep(&mut ended, process(10, "a", 0, &["cuInit"]));
        // a snapshot that shows the sums as they are now
        let shown: Vec<_> = ended.past().cloned().collect();
        keep(&mut ended, process(100, "b", 0, &["cuMemFree_v2", "cuInit"]));
        keep(&mut ended, process(1000, "b", 0, &["cuInit"]));
        let b = vec![("cuInit", 101), ("cuMemAlloc_v2", 1), ("cuMemFree_v2", 100)];
        assert_eq!(past(&ended), [("a", 1, vec![("cuInit", 10)]), ("b", 2, b)]);
        assert_eq!((pids(&ended), ended.forgotten_early()), (vec![1000], 3));
        let sums = ended.past().last().unwrap();
        let init = &sums.functions[0];
        assert_eq!((init.errors, init.bytes, init.total_ns), (2, 4, 6));
        assert_eq!(init.latency, [8; LATENCY_BUCKETS]);
        let memory = MemoryCounts {
            live: Vec::new(),
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
            keep(&mut ended, process(tgid, &format!("name{tgid:03}"), 0, &["cuInit"]));
        }
        keep(&mut ended, process(1, "name000", 0, &["cuInit"]));
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
        let live = &ended.iter().next().unwrap().memory.live;
        assert_eq!(live.len(), Space::ALL.len());
        assert!(live.iter().all(|live| (live.amount.bytes, live.amount.allocations) == (0, 0)));
    }

    fn calls_of(ended: &Ended, pid: u32) -> u64 {
        let of_pid = ended.iter().filter(|p| p.pid.0 == pid);
        of_pid.flat_map(|p| &p.functions).map(|f| f.calls).sum()
    }

    /// The same pid and name, and one more instance each time.
    fn run(instance: u64, exited_at_ns: u64) -> EndedProcess {
        let mut run = process(7, "a", exited_at_ns, &["cuInit"]);
        run.key.instance = instance;
        run
    }

    #[test]
    fn what_earlier_runs_did_stays_until_the_last_one_goes() {
        for most in [0, 2, 100] {
            let mut ended = Ended::bounded(most);
            let mut sum = 0;
            for instance in 1..=5 {
                ended.keep(run(instance, instance));
                // the next one runs already, with the same labels
                ended.make_room(|process| process.pid.0 == 7);
                ended.forget_old(KEPT_AFTER_EXIT_NS + instance - 1, |process| process.pid.0 == 7);
                sum += 7;
                assert_eq!((calls_of(&ended, 7), past(&ended)), (sum, vec![]), "{most}");
            }
            assert!(ended.iter().count() <= most.min(1) + 1, "they take no more room than one");
            // the last one did nothing of its own
            ended.forget_old(KEPT_AFTER_EXIT_NS + 5, |_| false);
            assert_eq!((calls_of(&ended, 7), past(&ended)), (0, vec![("a", 5, vec![("cuInit", 35)])]));
            assert_eq!(ended.past().next().unwrap().memory.allocated_bytes, 50);
            assert!(ended.earlier.is_empty() && ended.pids.is_empty());
        }
    }

    #[test]
    fn runs_that_are_kept_keep_those_before_them_and_others_do_not() {
        let mut ended = Ended::default();
        ended.keep(run(1, 10));
        ended.keep(process(7, "b", 10, &["cuInit"]));
        ended.keep(run(2, 20));
        ended.forget_old(KEPT_AFTER_EXIT_NS + 10, |_| false);
        assert_eq!((calls_of(&ended, 7), past(&ended)), (14, vec![("b", 1, vec![("cuInit", 7)])]));
        let shown: Vec<_> = ended.with_pid(Tgid(7)).map(|p| p.instance).collect();
        assert_eq!(shown, [2, 1]);
        ended.forget_old(KEPT_AFTER_EXIT_NS + 20, |_| false);
        let a = ("a", 2, vec![("cuInit", 14)]);
        assert_eq!((calls_of(&ended, 7), past(&ended)), (0, vec![a, ("b", 1, vec![("cuInit", 7)])]));
        assert_eq!(ended.forgotten_early(), 0);
    }
}
