//! `gpuprobe run` against the ledger: every call, byte, error and launch, at scale, for every way to begin a function
//! and every way to attach.

use std::collections::BTreeMap;

use gpuprobe_e2e::ledger::assert_equal;
use gpuprobe_e2e::recording::{Counts, counts_of, inner_counts, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, alone, needs, places};
use gpuprobe_event::{Api, ProcessChange};
use gpuprobe_standin::{Built, Cuda, Prologue};

fn ledger(built: &Built, options: &[&str], calls: u32) -> Outcome {
    let run = Run::new(built.workload("ledger")).options(options);
    run.args(&["--threads", "8", "--calls", &calls.to_string()]).outcome()
}

/// A recording of everything that the ledger did, with nothing lost.
fn assert_exact(outcome: &Outcome, calls: u64) {
    let printed = outcome.printed();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert_eq!(number(&printed["total_calls"]), calls);
    let end = outcome.trace.assert_whole();
    assert_eq!(end.exit_status, Some(0));
    assert_eq!(end.calls, 2 * calls, "each runtime call makes one driver call");
    assert_equal(&outcome.trace, &printed);
}

/// The calls column of the summary's table.
fn summary_counts(stderr: &str) -> Counts {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let calls = words.next()?.parse().ok()?;
        (!line.starts_with(' ') && name.starts_with("cu")).then(|| (name.to_owned(), calls))
    };
    stderr.lines().filter_map(row).collect()
}

#[test]
fn a_hundred_thousand_calls_of_eight_threads_are_all_there_with_their_inner_calls() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let outcome = ledger(&places::standins(Cuda::Cuda12), &["-e", "*"], 100_000);
    assert_exact(&outcome, 100_000);

    let printed = outcome.printed();
    let pid = pid_of(&printed);
    let changes = [(ProcessChange::Exec, None), (ProcessChange::Exit, Some(0))];
    assert_eq!(outcome.trace.changes(pid), changes);
    let mut both = counts_of(&printed["calls"]);
    both.extend(counts_of(&printed["driver_calls"]));
    let stderr = &outcome.finished.stderr;
    assert_eq!(summary_counts(stderr), both, "the summary's counts\n{stderr}");
    let head = "100000 calls and 100000 inside them in 1 process over ";
    assert!(stderr.starts_with(head), "{stderr}");
    assert!(stderr.contains("\n0 lost\n"), "{stderr}");
}

#[test]
fn every_prologue_is_counted_once() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    for prologue in Prologue::ALL {
        println!("{prologue:?}");
        let outcome = ledger(&places::ledger(prologue), &["-e", "*"], 10_000);
        assert_exact(&outcome, 10_000);
    }
}

#[test]
fn the_runtime_of_cuda_13_is_traced_as_exactly() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    assert_exact(&ledger(&places::standins(Cuda::Cuda13), &["-e", "*"], 10_000), 10_000);
}

#[test]
fn the_multi_tier_sees_the_same() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let outcome = ledger(&places::standins(Cuda::Cuda12), &["--attach", "multi", "-e", "*"], 10_000);
    assert_exact(&outcome, 10_000);
}

#[test]
fn the_perf_tier_sees_the_same() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    // few functions, because each one costs a tenth of a second to let go of
    let chosen = ["cudaMalloc", "cudaFree", "cuMemAlloc_v2", "cuMemFree_v2"];
    let mut options = vec!["--attach", "perf"];
    options.extend(chosen.iter().flat_map(|f| ["-e", f]));
    let outcome = ledger(&places::standins(Cuda::Cuda12), &options, 10_000);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    trace.assert_whole();
    let pid = pid_of(&printed);
    for (api, field) in [(Api::Runtime, "calls"), (Api::Driver, "driver_calls")] {
        let mut expected = counts_of(&printed[field]);
        expected.retain(|name, _| chosen.contains(&name.as_str()));
        assert_eq!(expected.len(), 2);
        assert_eq!(trace.counts(pid, api), expected, "{api}");
    }
    gpuprobe_e2e::ledger::assert_parents(trace, pid);
}

#[test]
fn chosen_functions_are_recorded_and_no_others() {
    if !needs::bpf() {
        return;
    }
    let built = places::standins(Cuda::Cuda12);
    let outcome = ledger(&built, &["-e", "cudaM*", "-e", "!cudaMemcpy*"], 2_000);
    let printed = outcome.printed();
    outcome.trace.assert_whole();
    let mut expected = counts_of(&printed["calls"]);
    expected.retain(|name, _| name.starts_with("cudaM") && !name.starts_with("cudaMemcpy"));
    assert_eq!(outcome.trace.counts(pid_of(&printed), Api::Runtime), expected);
    assert_eq!(outcome.trace.counts(pid_of(&printed), Api::Driver), BTreeMap::new());
}

#[test]
fn what_the_libraries_refuse_is_recorded_with_its_error() {
    if !needs::bpf() {
        return;
    }
    let built = places::standins(Cuda::Cuda12);
    let run = Run::new(built.workload("constructor")).options(&["-e", "*"]);
    let outcome = run.env("STANDIN_FAIL", "cudaMalloc:2:2").outcome();
    let printed = outcome.printed();
    let pid = pid_of(&printed);
    outcome.trace.assert_whole();
    assert_eq!(outcome.finished.status, 1, "the workload says that a call failed");
    let calls = counts_of(&printed["calls"]);
    assert_eq!(outcome.trace.counts(pid, Api::Runtime), calls);
    let failed: Vec<_> = outcome.trace.of(pid).filter(|c| c.failed()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((&*failed[0].name, failed[0].status), ("cudaMalloc", Some(2)));
    assert_eq!(failed[0].error.as_deref(), Some("cudaErrorMemoryAllocation"));
    // the one that failed never reached the driver
    let mut inner = inner_counts(&calls);
    inner.insert("cuMemAlloc_v2".to_owned(), 1);
    assert_eq!(outcome.trace.counts(pid, Api::Driver), inner);
}

#[test]
fn the_commands_exit_status_and_output_pass_through() {
    if !needs::bpf() {
        return;
    }
    let outcome = Run::new("sh").args(&["-c", "echo out; echo err >&2; exit 37"]).outcome();
    assert_eq!(outcome.finished.status, 37);
    assert_eq!(outcome.finished.stdout, "out\n");
    assert!(outcome.finished.stderr.starts_with("err\n"), "{}", outcome.finished.stderr);
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(37));

    let outcome = Run::new("sh").args(&["-c", "kill -TERM $$"]).outcome();
    assert_eq!(outcome.finished.status, 128 + 15);
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(128 + 15));
}
