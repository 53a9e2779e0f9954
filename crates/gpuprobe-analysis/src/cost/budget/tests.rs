use gpuprobe_event::Tgid;

use super::*;

/// Of which 2% are planned for, and a little more: rounding must not add a turn.
const BUDGET: f64 = 0.030_001;
const SECOND: u64 = 1_000_000_000;
const LAUNCH: &str = "cuLaunchKernel";
const COPY: &str = "cuMemcpyHtoD_v2";
const QUERY: &str = "cuStreamQuery";
const ALLOC: &str = "cuMemAlloc_v2";

fn id(name: &str) -> FunctionId {
    catalogue().lookup(Api::Driver, None, name).unwrap().id
}

fn process(pid: u32) -> ProcessKey {
    ProcessKey { tgid: Tgid(pid), instance: 1 }
}

/// Every call takes a microsecond; allocations are never sampled.
fn cost(function: FunctionId) -> Option<CallCost> {
    Some(CallCost { ns: 1000.0, may_be_sampled: function != id(ALLOC) })
}

/// A decision after a second with these calls.
fn after_a_second(budget: &mut Budget, now_ns: u64, calls: &[(u32, &str, u64)]) -> SamplingPlan {
    budget.restart(now_ns - SECOND);
    for (pid, name, calls) in calls {
        budget.note_calls((process(*pid), id(name)), *calls);
    }
    budget.decide(now_ns, &cost)
}

fn groups(plan: &SamplingPlan) -> Vec<SampledGroup> {
    plan.groups.iter().copied().collect()
}

#[test]
fn nothing_is_sampled_within_the_budget() {
    let plan = after_a_second(&mut Budget::new(BUDGET), SECOND, &[(1, LAUNCH, 10_000), (1, COPY, 9_000)]);
    assert_eq!((groups(&plan), plan.weight), (vec![], 1));
}

#[test]
fn the_most_expensive_functions_share_what_the_others_leave() {
    let mut budget = Budget::new(BUDGET);
    // 20% for launches, 0.5% for copies: 1.5% is left, 7.5% of the time
    let plan = after_a_second(&mut budget, SECOND, &[(1, LAUNCH, 200_000), (1, COPY, 5_000)]);
    assert_eq!((groups(&plan), plan.weight), (vec![SampledGroup::Launches], 14));
    let share = budget.process_cost(process(1), &budget.spending(&cost)[&process(1)]).share;
    assert!((0.018..=0.02).contains(&share), "{share}");
    // copies are over half the budget now
    let plan = after_a_second(&mut Budget::new(BUDGET), SECOND, &[(1, LAUNCH, 60_000), (1, COPY, 20_000)]);
    assert_eq!((groups(&plan), plan.weight), (vec![SampledGroup::Launches, SampledGroup::Copies], 4));
}

#[test]
fn the_most_demanding_process_decides() {
    let calls = [(1, LAUNCH, 40_000), (2, LAUNCH, 400_000), (3, LAUNCH, 10)];
    let plan = after_a_second(&mut Budget::new(BUDGET), SECOND, &calls);
    assert_eq!((groups(&plan), plan.weight), (vec![SampledGroup::Launches], 20));
}

#[test]
fn memory_is_never_sampled_and_may_take_the_whole_budget() {
    let plan = after_a_second(&mut Budget::new(BUDGET), SECOND, &[(1, ALLOC, 500_000)]);
    assert_eq!(groups(&plan), vec![]);
    let plan = after_a_second(&mut Budget::new(BUDGET), SECOND, &[(1, ALLOC, 500_000), (1, QUERY, 1_000)]);
    let query = SampledGroup::Function(Api::Driver, QUERY);
    assert_eq!((groups(&plan), plan.weight), (vec![query], MOST_TURNS), "it keeps a turn now and then");
}

#[test]
fn time_for_which_probes_are_attached_beyond_the_turn_costs_too() {
    let mut budget = Budget::new(BUDGET);
    for _ in 0..50 {
        budget.note_attached(150, 100);
    }
    assert_eq!(after_a_second(&mut budget, SECOND, &[(1, LAUNCH, 200_000)]).weight, 15);
}

#[test]
fn a_decision_is_due_after_a_second_or_when_its_budget_is_spent() {
    let mut budget = Budget::new(BUDGET);
    assert!(!budget.is_due(0, &cost), "the first time starts the clock");
    assert!(!budget.is_due(SECOND / 2, &cost));
    assert!(budget.is_due(SECOND, &cost));
    budget.note_calls((process(1), id(LAUNCH)), 20_001);
    assert!(budget.is_due(SECOND / 10, &cost), "20 ms are spent");
}

#[test]
fn a_function_is_probed_all_the_time_again_when_it_was_cheap_for_some_seconds() {
    let mut budget = Budget::new(BUDGET);
    let busy = [(1, LAUNCH, 200_000)];
    assert_eq!(after_a_second(&mut budget, SECOND, &busy).weight, 10);
    let mut sampled_until = 0;
    for second in 2..60 {
        if !after_a_second(&mut budget, second * SECOND, &[(1, LAUNCH, 100)]).groups.is_empty() {
            sampled_until = second;
        }
    }
    // the average over some seconds has to fall below the budget first
    assert!((8..=20).contains(&sampled_until), "{sampled_until}");
}

#[test]
fn phases_of_a_second_are_averaged() {
    let mut budget = Budget::new(BUDGET);
    let mut weights = Vec::new();
    for second in 1..60 {
        let calls = if second % 2 == 0 { 200 } else { 200_000 };
        let plan = after_a_second(&mut budget, second * SECOND, &[(1, LAUNCH, calls)]);
        weights.extend((second > 20).then_some(plan.weight));
    }
    assert!(weights.iter().all(|weight| (4..=7).contains(weight)), "{weights:?}");
}

#[test]
fn a_lifted_budget_samples_nothing() {
    let mut budget = Budget::new(BUDGET);
    let busy = [(1, LAUNCH, 200_000)];
    after_a_second(&mut budget, SECOND, &busy);
    budget.set_share(None);
    assert_eq!(groups(&after_a_second(&mut budget, 2 * SECOND, &busy)), vec![]);
    assert_eq!(budget.report(0, None).share, None);
}

#[test]
fn totals_become_calls_and_a_new_process_starts_at_zero() {
    let mut budget = Budget::new(BUDGET);
    let row = |pid, calls| Called { process: process(pid), function: id(LAUNCH), calls };
    budget.restart(0);
    budget.note_totals(&[row(1, 100)]);
    budget.note_totals(&[row(1, 150), row(2, 7)]);
    budget.note_totals(&[row(2, 8)]);
    assert_eq!(budget.calls[&(process(1), id(LAUNCH))], 150);
    assert_eq!(budget.calls[&(process(2), id(LAUNCH))], 8);
}

#[test]
fn the_report_has_estimates_and_errors_of_sampled_functions() {
    let mut budget = Budget::new(BUDGET);
    assert_eq!(after_a_second(&mut budget, SECOND, &[(1, LAUNCH, 200_000)]).weight, 10);
    let mut stratum = Stratum { start_ns: SECOND, end_ns: 2 * SECOND, weight: 10 };
    for calls in [100_000, 100_000, 130_000] {
        budget.note_calls((process(1), id(LAUNCH)), calls / 2);
        budget.note_calls((process(2), id(LAUNCH)), calls / 2);
        budget.note_calls((process(1), id(COPY)), 3);
        budget.finish_stratum(&stratum);
        budget.decide(stratum.end_ns, &cost);
        stratum = Stratum { start_ns: stratum.end_ns, end_ns: stratum.end_ns + SECOND, weight: 10 };
    }
    let report = budget.report(stratum.start_ns + SECOND / 2, Some(&stratum));
    let [launch] = report.sampled.as_slice() else { panic!("{report:?}") };
    assert_eq!((launch.function, launch.ratio, launch.estimated_calls), (LAUNCH, 0.1, 297_000.0));
    assert!((launch.current_variance.sqrt() - 65_000.0).abs() < 1e-6, "{launch:?}");
    assert!(launch.variance > 0.0 && launch.standard_error > 65_000.0, "{launch:?}");
    let ended = budget.report(stratum.start_ns, None);
    assert_eq!(ended.sampled[0].ratio, 1.0);
}
