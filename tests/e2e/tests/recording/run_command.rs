//! `gpuprobe run` compared with the ledger: every call, byte, error and launch, at scale, for every function prologue
//! and every tier.

use std::collections::BTreeMap;
use std::process::Command;

use gpuprobe_e2e::ledger::{assert_equal, assert_resolved};
use gpuprobe_e2e::process::finish;
use gpuprobe_e2e::recording::{Counts, counts_of, inner_counts, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures, tiers};
use gpuprobe_event::{Api, ProcessChange};
use gpuprobe_standin::{Built, Cuda, Prologue};

fn ledger(built: &Built, options: &[&str], calls: u32) -> Outcome {
    let run = Run::new(built.workload("ledger")).options(options);
    run.args(&["--threads", "8", "--calls", &calls.to_string()]).outcome()
}

/// Compares the whole recording with the ledger. Nothing may be lost.
fn assert_exact(outcome: &Outcome, calls: u64) {
    let printed = outcome.printed();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert_eq!(number(&printed["total_calls"]), calls);
    let end = outcome.trace.assert_whole();
    assert_eq!(end.exit_status, Some(0));
    assert_eq!(end.calls, 2 * calls, "each runtime call makes one driver call");
    let is_named = |call: &gpuprobe_event::Call| &*call.process != "?";
    assert!(
        outcome.trace.calls.iter().all(is_named),
        "also those that were read after the process had ended"
    );
    assert_equal(&outcome.trace, &printed);
    assert_resolved(&outcome.trace, pid_of(&printed));
}

/// The calls column of the summary's table of functions. A function has a row below each function that called it.
fn summary_counts(stderr: &str) -> Counts {
    let table = stderr.lines().skip_while(|line| !line.starts_with("function ")).skip(1);
    let mut counts = Counts::new();
    for line in table.take_while(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let (name, calls) =
            (words.next().unwrap_or_default(), words.next().and_then(|n| n.parse::<u64>().ok()));
        if let Some(calls) = calls.filter(|_| name.starts_with("cu")) {
            *counts.entry(name.to_owned()).or_default() += calls;
        }
    }
    counts
}

/// The functions of both libraries that the ledger calls, from a run without gpuprobe.
fn used(built: &Built) -> Vec<String> {
    let ledger = finish(Command::new(built.workload("ledger")).args(["--threads", "8", "--calls", "100000"]));
    let printed = &ledger.json()[0];
    counts_of(&printed["calls"]).into_keys().chain(counts_of(&printed["driver_calls"]).into_keys()).collect()
}

#[bpf_test(tiers, alone)]
fn a_hundred_thousand_calls_of_eight_threads_are_recorded_with_inner_calls(tier: &str) {
    let built = fixtures::standins(Cuda::Cuda12);
    let used = used(&built);
    let used: Vec<&str> = used.iter().map(String::as_str).collect();
    let shown = vec!["--nested", "--rows", "0"];
    let outcome = ledger(&built, &[tiers::options(tier, &used), shown].concat(), 100_000);
    assert_exact(&outcome, 100_000);
    assert_reported(&outcome);
}

#[bpf_test(tiers(session, multi), together)]
fn one_layer_has_its_own_calls_and_all_memory(tier: &str) {
    let built = fixtures::standins(Cuda::Cuda12);
    for (layer, api, printed_as) in
        [("driver", Api::Driver, "driver_calls"), ("runtime", Api::Runtime, "calls")]
    {
        let outcome = ledger(&built, &["--attach", tier, "--layer", layer, "-e", "*"], 20_000);
        let printed = outcome.printed();
        let pid = pid_of(&printed);
        assert_eq!(outcome.trace.counts(pid, api), counts_of(&printed[printed_as]), "{layer}");
        assert!(outcome.trace.calls.iter().all(|call| call.parent.is_none()), "{layer}: no other layer");
        let kinds = printed["memory"].as_object().into_iter().flatten();
        let live = kinds.map(|(_, kind)| number(&kind["live_bytes"])).sum::<u64>();
        assert_eq!(outcome.trace.live(pid).1, live, "{layer}");
    }
}

/// Checks the process events and the printed summary.
fn assert_reported(outcome: &Outcome) {
    let printed = outcome.printed();
    let pid = pid_of(&printed);
    let changes = [(ProcessChange::Exec, None), (ProcessChange::Exit, Some(0))];
    assert_eq!(outcome.trace.changes(pid), changes);
    let mut both = counts_of(&printed["calls"]);
    both.extend(counts_of(&printed["driver_calls"]));
    let stderr = &outcome.finished.stderr;
    assert_eq!(summary_counts(stderr), both, "the summary's counts\n{stderr}");
    let head = "100000 calls and 100000 inside them in 1 process over ";
    assert!(stderr.contains(&format!("\n{head}")), "{stderr}");
    assert!(stderr.contains("\n0 lost\n"), "{stderr}");
}

/// The best tier of a Linux kernel of this release.
fn best_tier(release: &str) -> &'static str {
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (6, 13) => "session",
        (Some(major), Some(minor)) if (major, minor) >= (6, 6) => "multi",
        _ => "perf",
    }
}

#[bpf_test]
fn doctor_names_the_best_tier_of_the_linux_kernel_and_run_uses_it() {
    let release = nix::sys::utsname::uname().unwrap_or_else(|e| panic!("{e}"));
    let tier = best_tier(&release.release().to_string_lossy());
    assert_eq!(tiers::best(), tier, "named by doctor on {release:?}");
    let outcome = Run::new("true").options(&["-v"]).outcome();
    let stderr = &outcome.finished.stderr;
    assert!(stderr.lines().any(|l| l == format!("gpuprobe: attaching by {tier}")), "{stderr}");
}

#[bpf_test(alone)]
fn every_prologue_is_counted_once() {
    for prologue in Prologue::ALL {
        println!("{prologue:?}");
        let outcome = ledger(&fixtures::ledger(prologue), &["-e", "*"], 10_000);
        assert_exact(&outcome, 10_000);
    }
}

#[bpf_test(alone)]
fn the_runtime_of_cuda_13_is_traced_exactly() {
    assert_exact(&ledger(&fixtures::standins(Cuda::Cuda13), &["-e", "*"], 10_000), 10_000);
}

#[bpf_test]
fn chosen_functions_are_recorded_and_no_others() {
    let built = fixtures::standins(Cuda::Cuda12);
    let outcome = ledger(&built, &["-e", "cudaM*", "-e", "!cudaMemcpy*"], 2_000);
    let printed = outcome.printed();
    outcome.trace.assert_whole();
    let mut expected = counts_of(&printed["calls"]);
    expected.retain(|name, _| name.starts_with("cudaM") && !name.starts_with("cudaMemcpy"));
    assert_eq!(outcome.trace.counts(pid_of(&printed), Api::Runtime), expected);
    assert_eq!(outcome.trace.counts(pid_of(&printed), Api::Driver), BTreeMap::new());
}

#[bpf_test]
fn failed_calls_are_recorded_with_their_error() {
    let built = fixtures::standins(Cuda::Cuda12);
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
    // the failed call never reached the CUDA driver
    let mut inner = inner_counts(&calls);
    inner.insert("cuMemAlloc_v2".to_owned(), 1);
    assert_eq!(outcome.trace.counts(pid, Api::Driver), inner);
}

#[bpf_test]
fn the_commands_exit_status_and_output_pass_through() {
    let outcome = Run::new("sh").args(&["-c", "echo out; echo err >&2; exit 37"]).outcome();
    assert_eq!(outcome.finished.status, 37);
    assert_eq!(outcome.finished.stdout, "out\n");
    assert!(outcome.finished.stderr.starts_with("err\n"), "{}", outcome.finished.stderr);
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(37));

    let outcome = Run::new("sh").args(&["-c", "kill -TERM $$"]).outcome();
    assert_eq!(outcome.finished.status, 128 + 15);
    assert_eq!(outcome.trace.assert_whole().exit_status, Some(128 + 15));
}
