//! `run --stack`: the stacks of launches, copies, waits and failed calls, compared with the ledger of a program that
//! makes them from functions of its own.

use std::collections::HashSet;
use std::path::Path;

use gpuprobe_analysis::SiteCalls;
use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures, tiers};
use gpuprobe_event::{Call, Class};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// The functions that the program calls, for tiers on which every function is expensive.
const FUNCTIONS: [&str; 11] = [
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cudaMemcpy",
    "cuMemcpyHtoD_v2",
    "cudaDeviceSynchronize",
    "cuCtxSynchronize",
    "cudaMalloc",
    "cuMemAlloc_v2",
    "cudaFree",
    "cuMemFree_v2",
    "cudaSetDevice",
];

/// Records the program, to this file.
fn recorded(trace: &Path, options: &[&str], rounds: &str) -> (Outcome, Value) {
    let run = Run::new(fixtures::standins(Cuda::Cuda12).workload("callers"));
    let outcome = run.options(options).args(&[rounds]).outcome_in(trace);
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let ledger = outcome.printed();
    (outcome, ledger)
}

/// The function of a frame such as `forward (callers.c:33)`.
fn function(frame: &str) -> &str {
    frame.split([' ', '+']).next().unwrap_or_default()
}

/// How many of the calls with a call site each function made. Its caller must be on the stack as well.
fn by_function<'a>(calls: impl Iterator<Item = &'a Call>) -> Counts {
    let mut counts = Counts::new();
    for call in calls.filter(|call| call.call_site().is_some()) {
        let stack = call.stack.as_deref().unwrap_or_else(|| panic!("no stack: {call:?}"));
        assert!(stack.iter().skip(1).any(|frame| function(frame) == "train"), "{stack:?}");
        *counts.entry(function(&stack[0]).to_owned()).or_default() += 1;
    }
    counts
}

/// A figure of the summary by function.
fn summed(sites: &[SiteCalls], figure: fn(&SiteCalls) -> u64) -> Counts {
    let mut sums = Counts::new();
    for site in sites {
        *sums.entry(function(&site.call_site).to_owned()).or_default() += figure(site);
    }
    sums
}

#[bpf_test(tiers)]
fn launches_copies_waits_and_failures_have_the_stacks_of_the_program(tier: &str) {
    let folder = fixtures::folder();
    let options = [&["--stack"], &tiers::options(tier, &FUNCTIONS)[..]].concat();
    let (outcome, ledger) = recorded(&folder.path().join("t.jsonl"), &options, "100");
    outcome.trace.assert_whole();
    let pid = pid_of(&ledger);
    let of = |is: fn(&Call) -> bool| by_function(outcome.trace.of(pid).filter(|call| is(call)));
    assert_eq!(of(|call| call.class == Class::Launch), counts_of(&ledger["launches"]), "launches");
    assert_eq!(of(|call| call.class == Class::Memcpy), counts_of(&ledger["copies"]), "copies");
    assert_eq!(of(|call| call.class == Class::Sync), counts_of(&ledger["waits"]), "waits");
    assert_eq!(of(Call::failed), counts_of(&ledger["failures"]), "failures");
    // a call inside another one of its kind has none
    let inside = |call: &&Call| call.parent.is_some() && call.call_site().is_some();
    assert_eq!(outcome.trace.of(pid).find(inside), None);
    let report = outcome.trace.summary().calls_by_site;
    assert_eq!(summed(&report.launches, |site| site.launches), counts_of(&ledger["launches"]), "summary");
    assert_eq!(summed(&report.waits, |site| site.waits), counts_of(&ledger["waits"]), "summary");
}

#[bpf_test]
fn folded_stacks_have_the_launches_of_each_function() {
    let folder = fixtures::folder();
    let trace = folder.path().join("t.jsonl");
    let (_, ledger) = recorded(&trace, &["--stack"], "50");
    let trace = shown(trace);
    let folded = |weight: &str| {
        let options = ["convert", &trace, "--to", "folded", "--weight", weight, "-o", "-"];
        let folded = finish(&mut gpuprobe(&options));
        assert_eq!(folded.status, 0, "{}", folded.stderr);
        folded.stdout
    };
    let mut counts = Counts::new();
    for line in folded("launches").lines() {
        let (stack, launches) = line.rsplit_once(' ').unwrap();
        let frames: Vec<_> = stack.split(';').collect();
        let [.., train, caller, _launch] = frames.as_slice() else { panic!("{line}") };
        assert_eq!(function(train), "train", "{line}");
        *counts.entry(function(caller).to_owned()).or_default() += launches.parse::<u64>().unwrap();
    }
    assert_eq!(counts, counts_of(&ledger["launches"]));
    let waiting = folded("waiting");
    let is_finish = |line: &str| line.contains(";finish (") && line.contains(";cudaDeviceSynchronize ");
    assert!(!waiting.is_empty() && waiting.lines().all(is_finish), "{waiting}");
}

/// A stack is written once, and only the stacks of allocations without `--stack`.
#[bpf_test]
fn a_trace_has_each_stack_once_and_only_if_it_was_asked_for() {
    for options in [&["--stack"][..], &[]] {
        let folder = fixtures::folder();
        let trace = folder.path().join("t.jsonl");
        let (_, ledger) = recorded(&trace, options, "20");
        let text = std::fs::read_to_string(&trace).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let with_stack: Vec<_> = lines.iter().filter(|line| line["stack"].is_array()).collect();
        let sites: HashSet<_> = with_stack.iter().map(|line| number(&line["site"])).collect();
        assert_eq!(sites.len(), with_stack.len(), "each site has its stack once");
        let launches = lines.iter().filter(|line| line["type"] == "launch" && line["site"].is_u64()).count();
        let made: u64 = counts_of(&ledger["launches"]).values().sum();
        assert_eq!(launches as u64, if options.is_empty() { 0 } else { made }, "{options:?}");
    }
}
