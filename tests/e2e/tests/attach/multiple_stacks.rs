//! Programs that call CUDA on several stacks of one thread: they run under gpuprobe as they do without it, and every
//! call is either observed or counted as lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Run, bpf_test, compile, fixtures, tiers};
use gpuprobe_event::{Figures, LossCause, Outcome};
use gpuprobe_standin::{Cuda, Library};

/// The modes of the workload; see its source.
const MODES: [&str; 10] = [
    "alt-above",
    "alt-below",
    "alt-frame",
    "alt-jump",
    "fibers",
    "fibers-array",
    "fibers-frame",
    "fibers-dropped",
    "deep-jump",
    "signal-jump",
];

/// On perf removing probes takes seconds, and the Linux kernel replaces return addresses there as it does on multi: one
/// mode of each kind.
const ON_PERF: [&str; 3] = ["alt-jump", "fibers", "signal-jump"];

/// A timer interrupts a copy. Only a Linux kernel with session probes can skip the return of a call that begins then.
const TIMER_MODES: [&str; 2] = ["timer-above", "timer-fibers"];

/// The modes that must be unharmed on this tier.
fn modes(tier: &str) -> impl Iterator<Item = &'static str> {
    let timer: &[&str] = if tier == "session" { &TIMER_MODES } else { &[] };
    timer.iter().chain(&MODES).copied()
}

fn workload() -> PathBuf {
    fixtures::standins(Cuda::Cuda12).workload("stacks")
}

fn runtime() -> PathBuf {
    fixtures::standins(Cuda::Cuda12).library(Library::Runtime(Cuda::Cuda12))
}

/// Runs a program under `run`, with probes only on the runtime: it ends as without them, and no call is missing
/// without being counted.
fn assert_unharmed(tier: &str, program: &Path, args: &[&str]) {
    let (made, calls, lost) = run_unharmed(tier, &[], program, args);
    assert_eq!(calls + lost, made, "{tier} {} {args:?}: {lost} lost", program.display());
}

/// Returns the calls that a program made, those that were observed, and those that were lost.
fn run_unharmed(tier: &str, options: &[&str], program: &Path, args: &[&str]) -> (u64, u64, u64) {
    let run = Run::new(program).options(&["--attach", tier, "-e", "cudaMalloc", "-e", "cudaFree"]);
    let run = run.options(&["-e", "cudaLaunchHostFunc", "-e", "cudaDeviceSynchronize"]).options(options);
    let outcome = run.args(args).outcome();
    let what = format!("{tier} {} {args:?}", program.display());
    assert_eq!(outcome.finished.status, 0, "{what}: {}", outcome.finished.stderr);
    let end = outcome.trace.assert_ended();
    println!("{what}: lost {:?}", end.lost);
    // the result of a call whose return is not probed counts as lost
    let observed = outcome.trace.calls.iter().filter(|call| call.outcome != Outcome::Unobserved);
    // lost lines of Python are not lost calls: a program may exit before its names are read
    let is_call = |cause: &str| LossCause::from_name(cause).unwrap().affects().contains(&Figures::Events);
    let lost = end.lost.iter().filter(|(cause, _)| is_call(cause)).map(|(_, count)| count).sum();
    (number(&outcome.printed()["made"]), observed.count() as u64, lost)
}

/// The same, after a run without gpuprobe that must succeed.
fn assert_as_unharmed_as_without(tier: &str, program: &Path, args: &[&str]) {
    let plain = finish(Command::new(program).args(args));
    assert_eq!(plain.status, 0, "without gpuprobe: {}", plain.stderr);
    assert_unharmed(tier, program, args);
}

// another tracer's return probe on the same function would replace the return address regardless of our decision
#[bpf_test(tiers, alone)]
fn programs_that_call_on_several_stacks_are_not_harmed(tier: &str) {
    let has_time = |mode: &&str| tier != "perf" || ON_PERF.contains(mode);
    for mode in MODES.iter().filter(|mode| has_time(mode)) {
        assert_unharmed(tier, &workload(), &[mode]);
    }
}

/// The copy is open, so the return of the free that interrupts it is not probed.
#[bpf_test(needs(tier("session")), alone)]
fn memory_that_was_freed_on_another_stack_is_not_live() {
    let driver = fixtures::standins(Cuda::Cuda12).library(Library::Driver);
    let daemon = Daemon::with(&["--runtime-failures", "-p", &shown(driver), "-p", &shown(runtime())]);
    let finished = finish(Command::new(workload()).args(["timer-above", "20"]));
    let pid = pid_of(&serde_json::from_str(&finished.stdout).unwrap());
    // one block stays; those that the handler allocates are lost
    let live = |m: &Metrics| {
        let bytes = |name| m.of(name, pid).unwrap_or_default();
        bytes("gpuprobe_memory_allocated_bytes_total") - bytes("gpuprobe_memory_freed_bytes_total")
    };
    let is_counted = |m: &Metrics| m.of("gpuprobe_memory_allocated_bytes_total", pid) == Some(41 * 4096);
    let metrics = daemon.until(PATIENCE, "allocations are counted", is_counted);
    assert_eq!(live(&metrics), 4096);
}

/// With copies the CUDA driver's functions are probed too, so calls inside a lost call are counted as lost as well.
#[bpf_test(needs(tier("session")), alone)]
fn programs_whose_copies_are_interrupted_are_not_harmed() {
    for mode in TIMER_MODES {
        let (made, calls, lost) = run_unharmed("session", &["-e", "cudaMemcpy"], &workload(), &[mode]);
        // calls overlapped, and no call is missing without being counted
        assert!(
            lost > 0 && calls < made && calls + lost >= made,
            "{mode}: {made} made, {calls} seen, {lost} lost"
        );
    }
}

/// The number of runs of each mode; `GPUPROBE_STACK_RUNS` sets another one.
fn runs() -> usize {
    std::env::var("GPUPROBE_STACK_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(5)
}

#[bpf_test(alone)]
fn many_runs_under_a_daemon_end_as_they_do_without_it() {
    let driver = fixtures::standins(Cuda::Cuda12).library(Library::Driver);
    // calls of the runtime overlap if their returns are probed
    let daemon = Daemon::with(&["--runtime-failures", "-p", &shown(driver), "-p", &shown(runtime())]);
    let tier = tiers::best();
    for mode in modes(tier) {
        for run in 0..runs() {
            let finished = finish(Command::new(workload()).args([mode, "20"]));
            assert_eq!(finished.status, 0, "{mode}, run {run}: {}", finished.stderr);
        }
    }
    // it has counted them and still answers
    let counted = |m: &Metrics| !m.pids("gpuprobe_calls_total").is_empty();
    let metrics = daemon.until(PATIENCE, "calls are counted", counted);
    if tier == "session" {
        // calls did overlap
        let unobserved = metrics.lost("unobserved_return");
        assert!(unobserved >= runs() as u64, "{unobserved}");
    }
}

#[bpf_test(tiers(session, multi), alone)]
fn fibers_of_boost_are_not_harmed(tier: &str) {
    let folder = fixtures::folder();
    let program = folder.path().join("boost_fibers");
    let standins = fixtures::standins(Cuda::Cuda12);
    let mut compiler = Command::new("c++");
    compiler.args(["-O2", "-o"]).arg(&program).arg(compile::source("boost_fibers.cpp")).arg(runtime());
    compiler.arg(format!("-Wl,-rpath,{}", shown(&standins.dir))).arg("-lboost_context");
    compile::run(&mut compiler);
    assert_as_unharmed_as_without(tier, &program, &[]);
}

#[bpf_test(tiers(session, multi), alone)]
fn callbacks_into_go_are_not_harmed(tier: &str) {
    let folder = fixtures::folder();
    let program = folder.path().join("go_callbacks");
    let standins = fixtures::standins(Cuda::Cuda12);
    fs::copy(compile::source("go_callbacks.go"), folder.path().join("main.go")).unwrap();
    let link = format!("{} -Wl,-rpath,{}", shown(runtime()), shown(&standins.dir));
    let mut compiler = Command::new("go");
    compiler.args(["build", "-o"]).arg(&program).arg("main.go").current_dir(folder.path());
    compiler.env("CGO_LDFLAGS", link).env("CGO_LDFLAGS_ALLOW", ".*").env("GOFLAGS", "-mod=mod");
    compiler.env("GOCACHE", fixtures::cached("go-cache"));
    compile::run(&mut compiler);
    assert_as_unharmed_as_without(tier, &program, &["20"]);
}

#[bpf_test(tiers(session, multi), alone)]
fn greenlets_are_not_harmed(tier: &str) {
    // Debian's python3, which has greenlet
    let python = Path::new("/usr/bin/python3");
    assert_as_unharmed_as_without(
        tier,
        python,
        &[&shown(compile::source("greenlets.py")), &shown(runtime())],
    );
}
