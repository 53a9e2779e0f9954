//! Calls that are easy to miss or to get wrong: before `main`, in late libraries, without a runtime library, in
//! children, inside each other, and calls that never return.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::ledger::{argument, assert_parents};
use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::recording::{Counts, Recording, counts_of, inner_counts, kind_of, number, pid_of};
use gpuprobe_e2e::{Outcome, Run, bpf_test, fixtures, tiers};
use gpuprobe_event::{Api, LossCause, Outcome as Ending, ProcessChange, Value as Argument};
use gpuprobe_standin::Cuda;
use serde_json::Value;
use tempfile::TempDir;

/// The functions of both libraries that the small workloads call.
const USED: [&str; 6] =
    ["cudaMalloc", "cudaFree", "cudaLaunchHostFunc", "cuMemAlloc_v2", "cuMemFree_v2", "cuLaunchHostFunc"];

fn run(workload: &str, args: &[&str]) -> Outcome {
    run_with(&["-e", "*"], workload, args)
}

fn run_with(options: &[&str], workload: &str, args: &[&str]) -> Outcome {
    Run::new(fixtures::standins(Cuda::Cuda12).workload(workload)).options(options).args(args).outcome()
}

fn run_on(tier: &str, workload: &str, args: &[&str]) -> Outcome {
    run_with(&tiers::options(tier, &USED), workload, args)
}

/// Compares the runtime calls that the workload printed, their inner calls, and the live memory.
fn assert_printed(trace: &Recording, printed: &Value) {
    let (pid, calls) = (pid_of(printed), counts_of(&printed["calls"]));
    assert_eq!(trace.counts(pid, Api::Runtime), calls, "runtime calls");
    assert_eq!(trace.counts(pid, Api::Driver), inner_counts(&calls), "driver calls");
    assert_live(trace, printed);
}

fn assert_live(trace: &Recording, printed: &Value) {
    let live = (number(&printed["live"]), number(&printed["live_bytes"]));
    assert_eq!(trace.live(pid_of(printed)), live, "live allocations and bytes");
}

#[bpf_test(tiers)]
fn a_call_before_main_is_recorded(tier: &str) {
    assert_constructor(&run_on(tier, "constructor", &[]));
}

/// Checks the recording of `constructor`.
fn assert_constructor(outcome: &Outcome) {
    let printed = outcome.printed();
    outcome.trace.assert_whole();
    assert_printed(&outcome.trace, &printed);
    assert_parents(&outcome.trace, pid_of(&printed));
    let first = outcome.trace.of(pid_of(&printed)).find(|c| c.api == Api::Runtime);
    let first = first.unwrap_or_else(|| panic!("no runtime call"));
    assert_eq!((&*first.name, first.effect.size()), ("cudaMalloc", Some(4096)), "the constructor's");
}

#[bpf_test(tiers)]
fn a_library_loaded_later_is_recorded_from_its_constructor_on(tier: &str) {
    for delay in ["0", "300"] {
        let outcome = run_on(tier, "late_dlopen", &[delay]);
        let printed = outcome.printed();
        outcome.trace.assert_whole();
        assert_printed(&outcome.trace, &printed);
        assert_parents(&outcome.trace, pid_of(&printed));
        let first = outcome.trace.of(pid_of(&printed)).find(|c| c.api == Api::Runtime);
        assert_eq!(first.and_then(|c| c.effect.size()), Some(12345), "the plugin's constructor");
    }
}

#[bpf_test]
fn a_program_that_uses_only_the_cuda_driver_is_recorded() {
    let outcome = run("driver_only", &[]);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    trace.assert_whole();
    let pid = pid_of(&printed);
    assert_eq!(trace.counts(pid, Api::Driver), counts_of(&printed["calls"]));
    assert_eq!(trace.counts(pid, Api::Runtime), Counts::new());
    assert!(trace.of(pid).all(|c| c.parent.is_none() && c.status == Some(0)));
    assert_live(trace, &printed);
    for (kind, bytes) in counts_of(&printed["copy_bytes"]) {
        let copies = trace.of(pid).filter(|c| kind_of(c) == Some(&kind));
        assert_eq!(copies.filter_map(|c| c.effect.size()).sum::<u64>(), bytes, "{kind}");
    }
    let launches: Vec<_> = trace.of(pid).filter(|c| c.name == "cuLaunchKernel").collect();
    assert_eq!(launches.len(), 5);
    for launch in launches {
        let shape = launch.effect.launch().map(|launch| (launch.grid, launch.block));
        assert_eq!(shape, Some((Some([11, 12, 13]), Some([21, 22, 1]))));
        assert_eq!(argument(launch, "sharedMemBytes"), Some(&Argument::Uint(2048)));
    }
}

#[bpf_test]
fn a_statically_linked_runtime_is_recorded() {
    let outcome = run("static_runtime", &[]);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    trace.assert_whole();
    let (pid, calls) = (pid_of(&printed), counts_of(&printed["calls"]));
    assert_eq!(trace.counts(pid, Api::Runtime), calls);
    let mut inner = inner_counts(&calls);
    inner.remove("cuMemcpy");
    inner.insert("cuMemcpyHtoD_v2".to_owned(), 1);
    assert_eq!(trace.counts(pid, Api::Driver), inner);
    assert_parents(trace, pid);
    assert_live(trace, &printed);
}

#[bpf_test]
fn a_ledger_with_a_statically_linked_runtime_is_exact() {
    let outcome = run("ledger_static", &["--threads", "4", "--calls", "5000"]);
    outcome.trace.assert_whole();
    gpuprobe_e2e::ledger::assert_equal(&outcome.trace, &outcome.printed());
}

/// A copy of a workload without symbols, next to the libcuda that it loads.
fn stripped(workload: &str) -> (TempDir, PathBuf) {
    let (folder, built) = (fixtures::folder(), fixtures::standins(Cuda::Cuda12));
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", workload]);
    let program = folder.path().join(workload);
    assert_eq!(finish(Command::new("strip").arg(&program)).status, 0, "strip");
    (folder, program)
}

/// Checks that the trace reports once that this program's runtime has no symbols, and nothing else.
fn assert_hidden_runtime_reported(outcome: &Outcome, program: &Path) {
    let end = outcome.trace.assert_ended();
    let line = format!(
        "{}: the CUDA runtime is linked in and stripped of its symbols; only its calls to libcuda are seen",
        shown(program)
    );
    assert_eq!(end.skipped, std::slice::from_ref(&line));
    assert_eq!(outcome.finished.stderr.lines().filter(|l| **l == format!("not watched: {line}")).count(), 1);
    assert_eq!((outcome.trace.losses.len(), end.lost.len()), (0, 0), "{:?}", end.lost);
}

#[bpf_test]
fn a_stripped_static_runtime_is_reported_and_the_cuda_driver_recorded() {
    let (_folder, program) = stripped("static_runtime");
    let outcome = Run::new(&program).options(&["-e", "*"]).outcome();
    assert_hidden_runtime_reported(&outcome, &program);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    let pid = pid_of(&printed);
    assert_eq!(trace.counts(pid, Api::Runtime), Counts::new());
    let mut inner = inner_counts(&counts_of(&printed["calls"]));
    inner.remove("cuMemcpy");
    inner.insert("cuMemcpyHtoD_v2".to_owned(), 1);
    assert_eq!(trace.counts(pid, Api::Driver), inner);
    assert!(trace.of(pid).all(|c| c.parent.is_none()));
    assert_live(trace, &printed);

    // a user who names only CUDA driver functions misses nothing
    let outcome = Run::new(&program).options(&["-e", "cu[!d]*"]).outcome();
    outcome.trace.assert_whole();
    assert_eq!(outcome.trace.counts(pid_of(&outcome.printed()), Api::Driver), inner);

    let daemon = finish(&mut gpuprobe(&["daemon", "--metrics-addr", "127.0.0.1:0", "-p", &shown(&program)]));
    assert_eq!(daemon.status, 1);
    assert!(daemon.stderr.contains("stripped of its symbols"), "{}", daemon.stderr);
}

#[bpf_test]
fn a_stripped_ledger_is_exact_at_the_cuda_driver() {
    let (_folder, program) = stripped("ledger_static");
    let args = ["--threads", "4", "--calls", "5000"];
    let outcome = Run::new(&program).options(&["-e", "*"]).args(&args).outcome();
    assert_hidden_runtime_reported(&outcome, &program);
    let printed = outcome.printed();
    let pid = pid_of(&printed);
    assert_eq!(outcome.trace.counts(pid, Api::Driver), counts_of(&printed["driver_calls"]));
    assert_eq!(outcome.trace.counts(pid, Api::Runtime), Counts::new());
}

#[bpf_test(tiers)]
fn children_and_executed_programs_are_separate_processes(tier: &str) {
    assert_forker(&run_on(tier, "forker", &["3"]));
}

/// Checks the recording of `forker 3`.
fn assert_forker(outcome: &Outcome) {
    let trace = &outcome.trace;
    assert_eq!(trace.assert_whole().exit_status, Some(0));
    let printed = outcome.finished.json();
    assert_eq!(printed.len(), 5, "a parent, three children, one executed again");
    let named = |name: &'static str| printed.iter().filter(move |p| p["process"] == name);
    let executed = named("executed").next().map(pid_of);
    let parent = named("parent").next().map(pid_of);
    let mut total = 0;
    for (pid, mut calls) in named("parent").chain(named("child")).map(|p| (pid_of(p), counts_of(&p["calls"])))
    {
        let ended = (ProcessChange::Exit, Some(0));
        let mut changes = vec![(ProcessChange::Start, None), (ProcessChange::Exec, None), ended];
        if Some(pid) == executed {
            for (name, n) in named("executed").flat_map(|p| counts_of(&p["calls"])) {
                *calls.entry(name).or_default() += n;
            }
        } else if Some(pid) == parent {
            changes.remove(0);
        } else {
            changes.remove(1);
        }
        assert_eq!(trace.changes(pid), changes, "process {pid}");
        assert_eq!(trace.counts(pid, Api::Runtime), calls, "process {pid}");
        assert_eq!(trace.counts(pid, Api::Driver), inner_counts(&calls), "process {pid}");
        assert_parents(trace, pid);
        total += 2 * calls.values().sum::<u64>();
    }
    assert_eq!(trace.calls.len() as u64, total);
    for start in trace.processes.iter().filter(|p| p.change == ProcessChange::Start) {
        assert_eq!(start.parent.map(|p| p.0), parent, "{start:?}");
    }
    assert_per_program(trace, &printed);
}

/// Before and after its exec, a process counts as two programs with separate memory.
fn assert_per_program(trace: &Recording, printed: &[Value]) {
    for line in printed {
        let pid = pid_of(line);
        let exec = trace.processes.iter().find(|p| p.tgid.0 == pid && p.change == ProcessChange::Exec);
        let exec_ns = exec.map_or(0, |e| e.at_ns);
        let again = line["process"] == "executed";
        let mut calls = Counts::new();
        for call in trace.of(pid).filter(|c| c.api == Api::Runtime) {
            if line["process"] == "parent" || (call.start_ns > exec_ns) == (again || exec.is_none()) {
                *calls.entry(call.name.to_string()).or_default() += 1;
            }
        }
        assert_eq!(calls, counts_of(&line["calls"]), "{line}");
    }
}

#[bpf_test]
fn calls_inside_calls_have_the_right_parents_five_levels_down() {
    let outcome = run("recursion", &["5"]);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    trace.assert_whole();
    assert_printed(trace, &printed);
    let by_id = trace.by_id();
    let ancestors = |id: Option<u64>| {
        std::iter::successors(id.map(|id| by_id[&id]), |c| c.parent.map(|p| by_id[&p]))
            .map(|c| c.name.to_string())
            .collect::<Vec<_>>()
    };
    let level = ["cuLaunchHostFunc", "cudaLaunchHostFunc"];
    for name in ["cudaMalloc", "cudaFree", "cudaLaunchHostFunc"] {
        let calls: Vec<_> = trace.of(pid_of(&printed)).filter(|c| c.name == name).collect();
        // the first host function is launched outside of any other; its calls are one level down
        let outer = usize::from(name != "cudaLaunchHostFunc");
        let mut depths: Vec<_> = calls.iter().map(|c| ancestors(c.parent)).collect();
        depths.sort_by_key(Vec::len);
        let expected: Vec<_> = (0..5).map(|i| level.repeat(i + outer)).collect();
        assert_eq!(depths, expected, "{name}");
    }
    let sizes: Vec<_> =
        trace.calls.iter().filter(|c| c.name == "cudaMalloc").map(|c| c.effect.size()).collect();
    assert_eq!(sizes, [100, 200, 300, 400, 500].map(Some), "each level's own allocation is counted");
}

#[bpf_test(tiers)]
fn calls_left_by_longjmp_are_counted_and_later_calls_are_exact(tier: &str) {
    assert_longjmp(&run_on(tier, "longjmp", &["3"]));
}

/// Checks the recording of `longjmp 3`.
fn assert_longjmp(outcome: &Outcome) {
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    let pid = pid_of(&printed);
    let end = trace.assert_ended();
    let returned = |api| {
        let mut counts = Counts::new();
        for call in trace.of(pid).filter(|c| c.api == api && c.duration_ns().is_some()) {
            *counts.entry(call.name.to_string()).or_default() += 1;
        }
        counts
    };
    let calls = counts_of(&printed["calls"]);
    assert_eq!(returned(Api::Runtime), calls);
    assert_eq!(returned(Api::Driver), inner_counts(&calls));
    // each abandoned call abandoned its inner CUDA driver call too
    let left = 2 * number(&printed["abandoned"]["cudaLaunchHostFunc"]);
    let losses: Vec<_> = trace.losses.iter().map(|l| (l.cause, l.count)).collect();
    assert_eq!(end.lost.values().sum::<u64>(), left, "{:?}", end.lost);
    // a tier that cannot decide per call whether to probe the return has no return probes on functions that run
    // callbacks
    let unobserved = vec![(LossCause::UnobservedReturn, left)];
    assert!(losses == [(LossCause::Abandoned, left)] || losses == unobserved, "{losses:?}");
    assert_live(trace, &printed);
    let by_id = trace.by_id();
    for call in trace.of(pid).filter(|c| c.name.starts_with("cudaMalloc") || c.name.starts_with("cudaFree")) {
        assert_eq!(call.parent, None, "no call hangs below one that was left: {call:?}");
    }
    for inner in trace.of(pid).filter(|c| c.api == Api::Driver && c.duration_ns().is_some()) {
        let outer = inner.parent.and_then(|id| by_id.get(&id)).map(|c| &*c.name);
        assert!(matches!(outer, Some("cudaMalloc" | "cudaFree")), "{inner:?}");
    }
}

#[bpf_test]
fn a_killed_process_leaves_its_open_calls_unfinished() {
    let outcome = run("crash", &["--kill"]);
    let (printed, trace) = (outcome.printed(), &outcome.trace);
    let pid = pid_of(&printed);
    assert_eq!(outcome.finished.status, 137);
    let end = trace.assert_whole();
    assert_eq!(end.exit_status, Some(137));
    assert_eq!(trace.changes(pid).last(), Some(&(ProcessChange::Exit, Some(137))));
    let open: Vec<_> = trace.of(pid).filter(|c| c.outcome == Ending::Unfinished).collect();
    let names: Vec<_> = open.iter().map(|c| &*c.name).collect();
    assert_eq!(names, [printed["blocked_in"].as_str().unwrap_or_default()], "{open:?}");
    assert_eq!((open[0].status, open[0].parent), (None, None));
    let mut counts = trace.counts(pid, Api::Runtime);
    counts.remove("cudaDeviceSynchronize");
    assert_eq!(counts, counts_of(&printed["calls"]));
    assert_live(trace, &printed);
    let stderr = &outcome.finished.stderr;
    assert!(stderr.contains("1 call that did not return: cudaDeviceSynchronize"), "{stderr}");
    assert!(stderr.contains("killed by signal 9"), "{stderr}");
}

#[bpf_test]
fn every_process_of_a_shell_pipeline_is_followed() {
    let built = fixtures::standins(Cuda::Cuda12);
    let path = |name| shown(built.workload(name));
    let script =
        format!("{} & {}; wait; {} | cat", path("constructor"), path("driver_only"), path("recursion"));
    let outcome = Run::new("sh").options(&["-e", "*"]).args(&["-c", &script]).outcome();
    let trace = &outcome.trace;
    assert_eq!(trace.assert_whole().exit_status, Some(0));
    let printed = outcome.finished.json();
    assert_eq!(printed.len(), 3);
    let mut total = 0;
    for line in &printed {
        let (pid, calls) = (pid_of(line), counts_of(&line["calls"]));
        let driver_only = calls.contains_key("cuInit");
        let api = if driver_only { Api::Driver } else { Api::Runtime };
        assert_eq!(trace.counts(pid, api), calls, "{line}");
        total += calls.values().sum::<u64>() * if driver_only { 1 } else { 2 };
        let ended = (ProcessChange::Exit, Some(0));
        assert_eq!(trace.changes(pid), [(ProcessChange::Start, None), (ProcessChange::Exec, None), ended]);
    }
    assert_eq!(trace.calls.len() as u64, total);
    let names: Vec<_> = trace.calls.iter().map(|c| &*c.process).collect();
    assert!(names.iter().all(|n| ["constructor", "driver_only", "recursion"].contains(n)), "{names:?}");
}

/// A function that is probed only for the data it provides is not a parent, because it is not in the trace.
#[bpf_test]
fn a_call_inside_one_that_was_not_asked_for_is_outermost() {
    let run = Run::new(fixtures::standins(Cuda::Cuda12).workload("rare_call"));
    let outcome = run.options(&["-e", "cuLibraryGetKernel", "-e", "cuLaunchKernel"]).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let calls: Vec<_> = outcome.trace.calls.iter().map(|c| (&*c.name, c.parent)).collect();
    assert_eq!(calls, [("cuLibraryGetKernel", None)]);
}
