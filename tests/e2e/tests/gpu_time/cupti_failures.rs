//! A libcupti that fails, is used by something else, is not there, or reports what is not known: the program's own result
//! stays as it is, and the trace says why there are no GPU times.

use gpuprobe_e2e::cupti_ledger::assert_submissions;
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Outcome, bpf_test};
use gpuprobe_event::agent::Collection;

use crate::work::{Work, collections, lost};

/// Long enough that records are delivered while it runs.
const ARGS: [&str; 6] = ["--threads", "1", "--operations", "400", "--pause", "1500"];
const QUICK: [&str; 4] = ["--threads", "2", "--operations", "100"];
const CODE: u32 = 999;

/// Runs the workload with these variables.
fn run(variables: &[(&str, &str)]) -> (Work, Outcome) {
    let work = variables.iter().fold(Work::new(&ARGS), |work, (name, value)| work.env(name, value));
    let outcome = work.run(&["--gpu-time=nodes"]);
    (work, outcome)
}

fn assert_refused(work: &Work, code: u32, why: &str) {
    let outcome = work.run(&["--gpu-time=nodes"]);
    assert_eq!(collections(&outcome.trace), [Collection::Refused], "{why}");
    let state = &outcome.trace.agent_states[0];
    assert_eq!(state.code, code, "{state:?}");
    assert!(state.text.contains(why), "{state:?}");
    assert_eq!(outcome.trace.executions, [], "{why}");
    assert_eq!(work.ledger().enabled().len(), 0, "{why}: what was enabled is disabled");
    outcome.trace.assert_whole();
}

fn assert_refused_after(failure: &str, why: &str) {
    assert_refused(&Work::new(&QUICK).env("STANDIN_FAIL", failure), CODE, why);
}

#[bpf_test]
fn a_failure_at_the_beginning_leaves_nothing_enabled() {
    for function in
        ["cuptiSubscribe", "cuptiUnsubscribe", "cuptiActivityRegisterCallbacks", "cuptiGetTimestamp"]
    {
        assert_refused_after(&format!("{function}:{CODE}"), function);
    }
    // each kind of records in turn
    for call in 1..=4 {
        assert_refused_after(&format!("cuptiActivityEnable:{CODE}:{call}"), "cuptiActivityEnable");
    }
    // it has no text either
    let both = format!("cuptiSubscribe:{CODE},cuptiGetResultString:{CODE}");
    assert_refused_after(&both, "cuptiSubscribe failed");
}

#[bpf_test]
fn cupti_that_is_used_or_missing_is_left_alone() {
    let used = Work::new(&QUICK).env("STANDIN_CUPTI", "subscriber");
    assert_refused(&used, 39, "another profiler uses CUPTI");
    let missing = Work::new(&QUICK).without_cupti();
    assert_refused(&missing, 0, "there is no libcupti.so.12");
}

/// The agent sends its state again and again.
#[bpf_test]
fn a_refusal_is_noted_once_and_nothing_is_counted() {
    let used = Work::new(&ARGS).env("STANDIN_CUPTI", "subscriber");
    let missing = Work::new(&ARGS).without_cupti();
    for (work, why) in [(used, "another profiler uses CUPTI"), (missing, "there is no libcupti.so.12")] {
        let outcome = work.run(&["--gpu-time"]);
        outcome.trace.assert_whole();
        assert_eq!(work.ledger().records, [], "{why}");
        let stderr = &outcome.finished.stderr;
        let note = format!("no GPU times of process {}: ", pid_of(&outcome.printed()));
        let notes: Vec<_> = stderr.lines().filter(|line| line.contains(&note)).collect();
        assert!(matches!(notes[..], [only] if only.contains(why)), "{stderr}");
        for figure in ["GPU time by CUDA kernel", "of GPU time", "unmatched"] {
            assert!(!stderr.contains(figure), "{figure}: {stderr}");
        }
    }
}

#[bpf_test]
fn a_failure_later_ends_collection() {
    let (work, outcome) = run(&[("STANDIN_FAIL", &format!("cuptiActivityFlushAll:{CODE}"))]);
    assert_eq!(collections(&outcome.trace), [Collection::Collecting, Collection::Failed]);
    let state = &outcome.trace.agent_states[1];
    assert_eq!(state.code, CODE, "{state:?}");
    assert!(state.text.contains("cuptiActivityFlushAll"), "{state:?}");
    assert_eq!(work.ledger().enabled().len(), 0);
    work.ledger().assert_contains(&outcome.trace);
}

#[bpf_test]
fn failures_that_change_no_record_change_nothing() {
    for function in ["cuptiActivityGetNumDroppedRecords", "cuptiActivityDisable", "cuptiGetVersion"] {
        let (work, outcome) = run(&[("STANDIN_FAIL", &format!("{function}:{CODE}"))]);
        assert_eq!(collections(&outcome.trace), [Collection::Collecting], "{function}");
        outcome.trace.assert_whole();
        assert_eq!(work.ledger().assert_equal(&outcome.trace), 360 + 40 * 4, "{function}");
    }
}

#[bpf_test]
fn records_that_are_longer_or_late_are_read_as_usual() {
    for wishes in ["longer", "late", "longer,late"] {
        let (work, outcome) = run(&[("STANDIN_CUPTI", wishes)]);
        outcome.trace.assert_whole();
        assert_eq!(work.ledger().assert_equal(&outcome.trace), 360 + 40 * 4, "{wishes}");
        assert_eq!(assert_submissions(&outcome.trace), 0, "{wishes}");
    }
}

#[bpf_test]
fn records_of_an_unknown_kind_are_counted() {
    let (work, outcome) = run(&[("STANDIN_CUPTI", "unknown,longer")]);
    let executions = work.ledger().assert_equal(&outcome.trace);
    // one before every third record
    assert_eq!(lost(&outcome.trace, "undecodable"), executions as u64 / 3);
}

#[bpf_test]
fn dropped_records_are_counted() {
    let (work, outcome) = run(&[("STANDIN_CUPTI", "drop:7")]);
    let ledger = work.ledger();
    let dropped = ledger.records.iter().filter(|record| record.is_dropped).count();
    ledger.assert_equal(&outcome.trace);
    assert_eq!(lost(&outcome.trace, "lost_execution"), dropped as u64);
    assert!(dropped > 0);
}
