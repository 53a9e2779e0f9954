use gpuprobe_event::Tgid;

use super::*;

const SECOND: u64 = 1_000_000_000;
/// Every call costs a microsecond.
const COST: f64 = 1000.0;

fn id(name: &str) -> FunctionId {
    catalogue().lookup(Api::Driver, None, name).unwrap().id
}

fn process(pid: u32) -> ProcessKey {
    ProcessKey { tgid: Tgid(pid), instance: 1 }
}

/// The probes on allocations stay no matter what they cost.
fn cost(function: FunctionId) -> Option<CallCost> {
    Some(CallCost { ns: COST, may_be_removed: function != id("cuMemAlloc_v2") })
}

/// Checks the budget once a second.
struct Watched {
    budget: Budget,
    now_ns: u64,
    totals: BTreeMap<(u32, &'static str), u64>,
}

impl Watched {
    fn new(share: f64) -> Self {
        let mut watched = Self { budget: Budget::new(share), now_ns: 0, totals: BTreeMap::new() };
        assert_eq!(watched.second(&[]), [], "the first check only stores the counts");
        watched
    }

    /// Calls of a function without probes are not seen.
    fn second(&mut self, calls: &[(u32, &'static str, u64)]) -> Vec<Decision> {
        for (pid, name, calls) in calls {
            let report = self.budget.report(0.0, 0);
            if !report.unprobed.iter().any(|f| f.is_unprobed && f.function == *name) {
                *self.totals.entry((*pid, name)).or_default() += calls;
            }
        }
        self.now_ns += SECOND;
        let row = |(&(pid, name), &calls): (&(u32, &str), &u64)| Called {
            process: process(pid),
            function: id(name),
            calls,
        };
        let rows: Vec<_> = self.totals.iter().map(row).collect();
        self.budget.check(self.now_ns, &rows, &cost)
    }
}

fn unprobed(function: &str, pid: u32, share: f64, wait: u64) -> Decision {
    Decision::RemoveProbes { function: id(function), process: process(pid), share, wait_ns: wait * SECOND }
}

fn back(function: &str) -> Decision {
    Decision::RestoreProbes { function: id(function) }
}

#[test]
fn a_function_loses_its_probes_when_its_calls_exceed_the_budget_and_not_before() {
    let mut watched = Watched::new(0.02);
    // 20,000 calls of a microsecond are 2% of a second
    assert_eq!(watched.second(&[(7, "cuLaunchKernel", 20_000)]), []);
    assert_eq!(
        watched.second(&[(7, "cuLaunchKernel", 20_001)]),
        [unprobed("cuLaunchKernel", 7, 0.020001, 1)]
    );
    let report = watched.budget.report(1.5, watched.now_ns + SECOND / 2);
    assert_eq!(report.share, Some(0.02));
    assert_eq!(report.unprobed.len(), 1);
    let launch = &report.unprobed[0];
    assert_eq!((launch.function, launch.is_unprobed, launch.times), ("cuLaunchKernel", true, 1));
    assert_eq!((launch.missed_ns, launch.since_ns, report.start_unix), (SECOND / 2, 3 * SECOND, 1.5));
}

#[test]
fn memory_functions_keep_their_probes_and_their_cost_counts_against_the_budget() {
    let mut watched = Watched::new(0.02);
    let calls = [(7, "cuMemAlloc_v2", 500_000), (7, "cuLaunchKernel", 3_000), (7, "cuCtxSynchronize", 1_999)];
    // a function that takes less than a tenth of the budget is not removed
    assert_eq!(watched.second(&calls), [unprobed("cuLaunchKernel", 7, 0.003, 1)]);
    assert_eq!(watched.budget.report(1.5, 0).processes[0].share, 0.501999);
}

#[test]
fn the_most_expensive_functions_are_removed_first_until_the_rest_fits() {
    let mut watched = Watched::new(0.02);
    let calls = [
        (7, "cuLaunchKernel", 15_000),
        (7, "cuMemcpyHtoD_v2", 9_000),
        (7, "cuCtxSynchronize", 10_000),
        (7, "cuMemcpyDtoH_v2", 1_000),
    ];
    // 35,000 calls are 15,000 too many, exactly the calls of one function
    assert_eq!(watched.second(&calls), [unprobed("cuLaunchKernel", 7, 0.015, 1)]);
    assert_eq!(watched.budget.report(1.5, 0).processes[0].share, 0.02);
}

#[test]
fn each_process_has_its_own_budget_and_a_function_is_removed_for_all_processes() {
    let mut watched = Watched::new(0.02);
    let calls =
        [(7, "cuLaunchKernel", 15_000), (8, "cuLaunchKernel", 15_000), (9, "cuCtxSynchronize", 12_000)];
    assert_eq!(watched.second(&calls), [], "no single process has too many");
    let calls = [(7, "cuLaunchKernel", 30_000), (8, "cuLaunchKernel", 40_000)];
    assert_eq!(watched.second(&calls), [unprobed("cuLaunchKernel", 7, 0.03, 1)], "once");
    assert_eq!(watched.budget.times(), 1);
}

#[test]
fn the_wait_doubles_each_time_and_starts_again_after_a_cheap_period() {
    let mut watched = Watched::new(0.02);
    let expensive = [(7, "cuLaunchKernel", 100_000)];
    let mut waits = Vec::new();
    let mut seconds = 0;
    while waits.len() < 11 {
        for decision in watched.second(&expensive) {
            match decision {
                Decision::RemoveProbes { wait_ns, .. } => waits.push(wait_ns / SECOND),
                Decision::RestoreProbes { .. } => {}
            }
        }
        seconds += 1;
        assert!(seconds < 2_000);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]);
    let cheap = [(7, "cuLaunchKernel", 100)];
    let mut seen = Vec::new();
    for _ in 0..600 {
        seen.extend(watched.second(&cheap));
    }
    assert_eq!(seen, [back("cuLaunchKernel")]);
    let launch = watched.budget.report(1.5, watched.now_ns).unprobed[0].clone();
    assert_eq!((launch.is_unprobed, launch.times), (false, 11), "its figures stay lower bounds");
    assert_eq!(watched.second(&expensive), [unprobed("cuLaunchKernel", 7, 0.1, 1)]);
}

#[test]
fn a_changed_budget_applies_at_the_next_check() {
    let mut watched = Watched::new(0.5);
    assert_eq!(watched.second(&[(7, "cuLaunchKernel", 100_000)]), []);
    assert_eq!(watched.budget.set_share(0.05, watched.now_ns), []);
    assert_eq!(watched.second(&[(7, "cuLaunchKernel", 100_000)]), [unprobed("cuLaunchKernel", 7, 0.1, 1)]);
    assert_eq!(watched.budget.lift(watched.now_ns), [back("cuLaunchKernel")]);
    assert_eq!(watched.second(&[(7, "cuLaunchKernel", 900_000)]), []);
    let report = watched.budget.report(0.0, watched.now_ns);
    assert_eq!((report.share, report.unprobed.len()), (None, 1), "its figures stay lower bounds");
}

#[test]
fn a_larger_budget_brings_functions_back_at_once() {
    let mut watched = Watched::new(0.01);
    let calls = [(1, "cuLaunchKernel", 50_000)];
    assert_eq!(watched.second(&calls), [unprobed("cuLaunchKernel", 1, 0.05, 1)]);
    let now_ns = watched.now_ns + SECOND / 2;
    assert_eq!(watched.budget.set_share(0.005, now_ns), []);
    assert_eq!(watched.budget.set_share(0.02, now_ns), [back("cuLaunchKernel")]);
    let report = watched.budget.report(0.0, now_ns);
    assert_eq!((report.unprobed[0].since_ns, report.unprobed[0].missed_ns), (2 * SECOND, SECOND / 2));
    // it starts with the first wait again
    assert_eq!(watched.second(&calls), [unprobed("cuLaunchKernel", 1, 0.05, 1)]);
}

#[test]
fn unknown_costs_a_stopped_clock_and_falling_counters_remove_no_probes() {
    let mut budget = Budget::new(0.01);
    let row = |calls| Called { process: process(1), function: id("cuLaunchKernel"), calls };
    assert_eq!(budget.check(SECOND, &[row(1 << 60)], &cost), []);
    assert_eq!(budget.check(SECOND, &[row(1 << 61)], &cost), [], "no time has passed");
    assert_eq!(budget.check(2 * SECOND, &[], &cost), []);
    assert_eq!(budget.check(3 * SECOND, &[row(u64::MAX)], &|_| None), []);
    assert_eq!(budget.check(4 * SECOND, &[row(5)], &cost), [], "the counter fell");
}
