//! Commands that are recorded from their start: every record of CUPTI is in the trace, with its call.

use gpuprobe_e2e::cupti_ledger::{assert_submissions, misjudged};
use gpuprobe_e2e::{Outcome, bpf_test};
use gpuprobe_event::ExecutionKind;
use gpuprobe_event::agent::{Collection, GraphRecords};

use crate::work::{Work, collections, options};

/// Checks that all records are there and nothing is lost. Returns the number of executions.
fn assert_complete(work: &Work, outcome: &Outcome) -> usize {
    let trace = &outcome.trace;
    trace.assert_whole();
    assert_eq!(collections(trace), [Collection::Collecting]);
    assert_eq!(misjudged(trace), 0, "without the right call");
    work.ledger().assert_equal(trace)
}

#[bpf_test(tiers)]
fn every_operation_of_several_threads_is_executed_once(tier: &str) {
    let work = Work::new(&["--threads", "4", "--operations", "300"]);
    let outcome = work.run(&options(tier, "--gpu-time=nodes"));
    // of ten operations one is a launch of a graph with four nodes
    assert_eq!(assert_complete(&work, &outcome), 4 * (270 + 30 * 4));
    assert_eq!(outcome.trace.agent_states[0].graphs, GraphRecords::Nodes);
}

#[bpf_test]
fn graphs_are_recorded_as_a_whole() {
    let work = Work::new(&["--threads", "3", "--operations", "600"]);
    let outcome = work.run(&["--gpu-time"]);
    assert_eq!(assert_complete(&work, &outcome), 3 * 600);
    let graphs = outcome.trace.executions.iter().filter(|it| it.kind == ExecutionKind::Graph);
    assert_eq!(graphs.count(), 3 * 60);
    assert_eq!(outcome.trace.agent_states[0].graphs, GraphRecords::Whole);
}

#[bpf_test(tiers)]
fn every_execution_of_one_thread_has_its_call(tier: &str) {
    let work = Work::new(&["--threads", "1", "--operations", "1000"]);
    let outcome = work.run(&options(tier, "--gpu-time=nodes"));
    outcome.trace.assert_whole();
    work.ledger().assert_equal(&outcome.trace);
    assert_eq!(assert_submissions(&outcome.trace), 0, "calls without executions");
    let mut by_call: Vec<(u64, u32)> =
        outcome.trace.executions.iter().map(|it| (it.submission.unwrap().call, it.correlation)).collect();
    by_call.sort_unstable();
    by_call.dedup();
    let numbers: Vec<u32> = by_call.into_iter().map(|(_, correlation)| correlation).collect();
    assert_eq!(numbers, (1..=1000).collect::<Vec<_>>());
}
