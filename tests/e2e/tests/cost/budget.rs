//! The budget for the cost of probes in a process: a function that is called too often is suspended, which is
//! reported everywhere, and resumed later; live memory stays exact.

use std::fs;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::tracing::Private;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use serde_json::Value;

const HOT: &str = "cuMemcpyHtoD_v2";

fn times_suspended(metrics: &Metrics) -> u64 {
    let mut all = metrics.samples("gpuprobe_function_skipped_total");
    all.find(|(labels, _)| labels["function"] == HOT).map_or(0, |(_, times)| times)
}

fn are_suspended(metrics: &Metrics, functions: u64) -> bool {
    metrics.text.contains(&format!("\ngpuprobe_functions_skipped {functions}\n"))
}

fn calls(metrics: &Metrics, pid: u32, function: &str) -> u64 {
    metrics.by("gpuprobe_calls_total", pid, "function").get(function).copied().unwrap_or(0)
}

/// A daemon that has probed the libraries of a program that waits for a line.
fn watched(private: &Private, options: &[&str]) -> (Daemon, Talk, u32) {
    let library = shown(private.folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&[options, &["-p", &library]].concat());
    let mut program = Talk::start(&mut Command::new(&private.program));
    let pid = pid_of(&program.json());
    (daemon, program, pid)
}

// on perf the daemon has a hundred probes, and removing each takes a tenth of a second
#[bpf_test(tiers(session, multi), alone)]
fn a_hot_function_is_suspended_reported_and_resumed_while_memory_stays_exact(tier: &str) {
    let private = Private::new("spurt", Cuda::Cuda12);
    let (mut daemon, mut program, pid) = watched(&private, &["--budget", "2%", "--attach", tier]);
    program.go_on();
    daemon.until(PATIENCE, "it is left out", |m| times_suspended(m) > 0 && are_suspended(m, 1));
    let json = snapshot(&daemon);
    let reported = &json["budget"]["unprobed"][0];
    assert_eq!((&json["budget"]["share"], &reported["function"]), (&0.02.into(), &HOT.into()), "{reported}");
    let note = format!("{HOT} is not counted for ");
    until(PATIENCE, &note, || daemon.talk.stderr().contains(&note).then_some(()));
    let line = format!("{HOT}: not counted ");
    let displayed = || daemon.talk.printed().iter().any(|l| l.starts_with(&line)).then_some(());
    until(PATIENCE, &line, displayed);

    program.go_on();
    program.json();
    let back = daemon.until(PATIENCE, "it comes back", |m| are_suspended(m, 0));
    let before = calls(&back, pid, HOT);
    daemon.until(PATIENCE, "it is counted again", |m| calls(m, pid, HOT) > before + 100);

    program.go_on();
    let ledger = program.json();
    let made = counts_of(&ledger["calls"]);
    let metrics = daemon.until_equal(PATIENCE, |metrics, found| {
        for function in ["cuMemAlloc_v2", "cuMemFree_v2"] {
            found.compare(function, &calls(metrics, pid, function), &made[function]);
        }
        let allocated = metrics.of("gpuprobe_memory_allocated_bytes_total", pid);
        found.compare("allocated", &allocated, &Some(number(&ledger["allocated_bytes"])));
        let live: u64 = metrics.by("gpuprobe_memory_live_bytes", pid, "kind").into_values().sum();
        found.compare("live", &live, &number(&ledger["live_bytes"]));
    });
    let counted = calls(&metrics, pid, HOT);
    assert!(counted < made[HOT], "{tier}: a lower bound: {counted} of {}", made[HOT]);
    assert_eq!(metrics.lost("over_budget"), times_suspended(&metrics), "{tier}");
    assert!(metrics.lost("unmatched_return") < 10, "{tier}: {}", metrics.lost("unmatched_return"));
    assert_eq!(metrics.lost("abandoned"), 0, "{tier}: calls that were open have returned");
    program.go_on();
    assert_eq!(program.end(), 0);
}

#[bpf_test(alone)]
fn without_a_budget_every_call_is_counted() {
    let private = Private::new("spurt", Cuda::Cuda12);
    let (daemon, mut program, pid) = watched(&private, &[]);
    program.go_on();
    // as long as it would take to suspend it
    daemon.until(PATIENCE, "a million calls", |m| calls(m, pid, HOT) > 1_000_000);
    program.go_on();
    program.json();
    program.go_on();
    let made = counts_of(&program.json()["calls"]);
    let metrics =
        daemon.until_equal(PATIENCE, |m, found| found.compare(HOT, &calls(m, pid, HOT), &made[HOT]));
    assert!(!metrics.text.contains("gpuprobe_function_skipped"), "nothing is said of a budget");
    assert_eq!(metrics.lost("over_budget"), 0);
    program.go_on();
    assert_eq!(program.end(), 0);
}

#[bpf_test(tiers, alone)]
fn a_recording_suspends_functions_over_budget_and_reports_since_when(tier: &str) {
    let private = Private::new("spurt", Cuda::Cuda12);
    let mut program = Talk::start(&mut Command::new(&private.program));
    let pid = pid_of(&program.json());
    program.go_on();
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let options = ["--budget", "2%", "--duration", "2", "--attach", tier, "-e", HOT];
    let mut record = gpuprobe(&["record", "-d", &pid.to_string(), "-o", &shown(&trace)]);
    let finished = finish(record.args(options));
    assert_eq!(finished.status, 0, "{tier}: {}", finished.stderr);
    assert!(finished.stderr.contains(&format!("{HOT} is not counted for ")), "{}", finished.stderr);
    let trace = fs::read_to_string(&trace).unwrap();
    let end: Value = serde_json::from_str(trace.lines().next_back().unwrap()).unwrap();
    assert!(number(&end["lost"]["over_budget"]) > 0, "{end}");
    let lines = end["skipped"].as_array().unwrap().iter().filter_map(Value::as_str);
    let line = lines.into_iter().find(|line| line.starts_with(&format!("{HOT}: not counted "))).unwrap();
    assert!(line.ends_with("its figures are lower bounds"), "{line}");
    assert!(finished.stderr.contains(&format!("not watched: {line}")), "{}", finished.stderr);
    for _ in 0..3 {
        program.go_on();
    }
    assert_eq!(program.end(), 0);
}

/// The prediction of `doctor --cost` for a process; `None` if the process exited too early.
fn predicted(pid: u32) -> Option<Value> {
    let doctor = ["doctor", "--cost", "--json", "--duration", "1", "-d", &pid.to_string()];
    let finished = finish(&mut gpuprobe(&doctor));
    let report: Value = serde_json::from_str(&finished.stdout).ok()?;
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    report["processes"].as_array()?.first().cloned()
}

#[bpf_test(alone)]
fn doctor_predicts_the_cost_from_the_call_rate_of_a_program() {
    /// On a busy machine a program may not reach its rate, or exit before the prediction.
    const TRIES: u32 = 5;
    let private = Private::new("paced", Cuda::Cuda12);
    let mut seen = Vec::new();
    for seconds in 1..=TRIES {
        let calls = (5_000 * 4 * seconds).to_string();
        let mut program = Talk::start(Command::new(&private.program).args([&calls, "5000"]));
        let pid = pid_of(&program.json());
        if seconds == 1 {
            let waiting = predicted(pid).unwrap();
            assert_eq!((&waiting["name"], &waiting["calls_per_second"]), (&"paced".into(), &0.0.into()));
        }
        program.go_on();
        let reported = predicted(pid);
        let ledger = program.json();
        assert_eq!(program.end(), 0);
        let made = number(&ledger["calls"][HOT]) as f64 / ledger["seconds"].as_f64().unwrap();
        let Some(reported) = reported.filter(|reported| reported["functions"][0].is_object()) else {
            continue;
        };
        let function = &reported["functions"][0];
        assert_eq!(function["function"], HOT, "{reported}");
        let share = |mode: &str| function["shares"][mode].as_f64().unwrap();
        assert_eq!(share("memory"), 0.0, "no memory is made of copies");
        assert!(share("daemon") > 0.0 && share("trace") > 0.0, "{function}");
        let ratio = reported["calls_per_second"].as_f64().unwrap() / made;
        if (ratio - 1.0).abs() < 0.1 {
            return;
        }
        seen.push((made, reported));
    }
    panic!("calls a second in its ledger, and predicted: {seen:?}");
}

#[test]
fn an_invalid_budget_is_refused_in_one_line() {
    for wrong in ["0", "-1%", "200%", "abc", "2", ""] {
        for command in ["daemon", "run", "record"] {
            let finished = finish(&mut gpuprobe(&[command, "--budget", wrong]));
            assert_eq!(finished.status, 2, "{command} {wrong}: {}", finished.stderr);
            let first = finished.stderr.lines().next().unwrap_or_default();
            assert!(first.contains("--budget <PERCENT>") && first.contains("such as 2%"), "{wrong}: {first}");
        }
    }
}

fn snapshot(daemon: &Daemon) -> Value {
    let url = format!("http://{}/api/snapshot", daemon.address());
    let answer = finish(Command::new("curl").args(["-sS", &url]));
    let json: Value =
        serde_json::from_str(&answer.stdout).unwrap_or_else(|e| panic!("{e}: {}", answer.stdout));
    json["snapshot"].clone()
}
