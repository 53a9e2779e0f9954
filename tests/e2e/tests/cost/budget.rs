//! The budget for the cost of probes in a process: a function that is called too often is sampled, which is reported
//! everywhere; live memory stays exact.

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

/// The value of a metric of the hot function.
fn of_hot(metrics: &Metrics, name: &str) -> u64 {
    let mut all = metrics.samples(name);
    all.find(|(labels, _)| labels["function"] == HOT).map_or(0, |(_, value)| value)
}

fn are_sampled(metrics: &Metrics, functions: u64) -> bool {
    metrics.text.contains(&format!("\ngpuprobe_functions_sampled {functions}\n"))
}

fn calls(metrics: &Metrics, pid: u32, function: &str) -> u64 {
    metrics.by("gpuprobe_calls_total", pid, "function").get(function).copied().unwrap_or(0)
}

/// A daemon that has probed the libraries of a program that waits for a line.
fn watched(private: &Private, options: &[&str], words: &[&str]) -> (Daemon, Talk, u32) {
    let library = shown(private.folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&[options, &["-p", &library]].concat());
    let mut program = Talk::start(Command::new(&private.program).args(words));
    let pid = pid_of(&program.json());
    (daemon, program, pid)
}

/// The last line of `rates`, after those of its ledger.
fn ledger_of(program: &mut Talk) -> Value {
    loop {
        let line = program.json();
        if line["cpu_seconds"].is_number() {
            return line;
        }
    }
}

#[bpf_test(tiers, alone)]
fn a_hot_function_is_sampled_and_estimated_within_its_stated_error_while_memory_stays_exact(tier: &str) {
    let private = Private::new("rates", Cuda::Cuda12);
    // on perf a stratum takes seconds, and few of them say little
    let seconds = if tier == "perf" { "20" } else { "8" };
    let (mut daemon, mut program, pid) =
        watched(&private, &["--budget", "1%", "--attach", tier], &["steady", seconds]);
    program.go_on();
    daemon.until(PATIENCE, "it is sampled", |m| {
        are_sampled(m, 1) && of_hot(m, "gpuprobe_calls_estimated_total") > 0
    });
    let json = snapshot(&daemon);
    let sampled = &json["budget"]["sampled"][0];
    assert_eq!((&json["budget"]["share"], &sampled["function"]), (&0.01.into(), &HOT.into()), "{sampled}");
    assert!(sampled["ratio"].as_f64().unwrap() < 1.0, "{sampled}");
    // the first readings include the time before it was sampled
    let share = until(PATIENCE, "the budget is kept", || {
        let share = snapshot(&daemon)["budget"]["processes"][0]["share"].as_f64()?;
        (share > 0.0 && share < 0.015).then_some(share)
    });
    let note = format!("{HOT} is sampled, now 1/");
    until(PATIENCE, &note, || daemon.talk.stderr().contains(&note).then_some(()));
    let line = format!("{HOT}: probed ");
    let displayed = || daemon.talk.printed().iter().any(|l| l.starts_with(&line)).then_some(());
    until(PATIENCE, &line, displayed);
    until(PATIENCE, "a mark", || {
        daemon.talk.printed().iter().any(|l| l.starts_with(&format!("\t{HOT}: ~"))).then_some(())
    });

    let ledger = ledger_of(&mut program);
    let made = counts_of(&ledger["calls"]);
    let metrics = daemon.until_equal(PATIENCE, |metrics, found| {
        found.compare("cuMemAlloc_v2", &calls(metrics, pid, "cuMemAlloc_v2"), &made["cuMemAlloc_v2"]);
        let allocated = metrics.of("gpuprobe_memory_allocated_bytes_total", pid);
        found.compare("allocated", &allocated, &Some(number(&ledger["allocated_bytes"])));
        let live: u64 = metrics.by("gpuprobe_memory_live_bytes", pid, "kind").into_values().sum();
        found.compare("live", &live, &number(&ledger["allocated_bytes"]));
    });
    let made = made[HOT];
    let error = |metrics: &Metrics| of_hot(metrics, "gpuprobe_calls_standard_error");
    // four standard errors: a test must not fail in one of twenty runs. The stratum after the end shows that the rate
    // has changed.
    let what = format!("a number of calls near {made}, not {}", calls(&metrics, pid, HOT));
    let is_near = |m: &Metrics| calls(m, pid, HOT).abs_diff(made) <= 4 * error(m);
    let metrics = daemon.until(PATIENCE, &what, is_near);
    let (found, error) = (calls(&metrics, pid, HOT), error(&metrics));
    let estimated = of_hot(&metrics, "gpuprobe_calls_estimated_total");
    let said =
        format!("{tier}: {found} of {made}, standard error {error}, {estimated} estimated, share {share}");
    assert!(error > 0 && error < made / 3 && found.abs_diff(made) < made / 3 && estimated < found, "{said}");
    assert!(metrics.lost("unmatched_return") < 10, "{tier}: {}", metrics.lost("unmatched_return"));
    assert_eq!(metrics.lost("abandoned"), 0, "{tier}: calls that were open have returned");
    program.go_on();
    assert_eq!(program.end(), 0);
}

#[bpf_test(alone)]
fn top_reads_whole_strata_so_that_rates_of_a_steady_program_are_steady() {
    const PER_SECOND: f64 = 40_000.0;
    let private = Private::new("rates", Cuda::Cuda12);
    let mut program = Talk::start(Command::new(&private.program).args(["steady", "30"]));
    let pid = pid_of(&program.json()).to_string();
    program.go_on();
    let options = ["top", "--json", "--budget", "2%", "-d", &pid, "-n", "8", "--nvml", "off"];
    let finished = finish(&mut gpuprobe(&options));
    assert_eq!(finished.status, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains(&format!("{HOT} is sampled, now 1/")), "{}", finished.stderr);
    let rate = |frame: &str| -> Option<f64> {
        let frame: Value = serde_json::from_str(frame).unwrap();
        frame["processes"][0]["copies_per_second"].as_f64()
    };
    // the first ones are partly from before it was attached and sampled
    let rates: Vec<f64> = finished.stdout.lines().filter_map(rate).skip(3).collect();
    assert!(rates.len() >= 4, "{}", finished.stdout);
    assert!(rates.iter().all(|rate| (rate / PER_SECOND - 1.0).abs() < 0.2), "{rates:?}");
}

#[bpf_test(alone)]
fn without_a_budget_every_call_is_counted() {
    let private = Private::new("spurt", Cuda::Cuda12);
    let (daemon, mut program, pid) = watched(&private, &[], &[]);
    program.go_on();
    // as long as it would take to sample it
    daemon.until(PATIENCE, "a million calls", |m| calls(m, pid, HOT) > 1_000_000);
    program.go_on();
    program.json();
    program.go_on();
    let made = counts_of(&program.json()["calls"]);
    let metrics =
        daemon.until_equal(PATIENCE, |m, found| found.compare(HOT, &calls(m, pid, HOT), &made[HOT]));
    assert!(!metrics.text.contains("gpuprobe_calls_estimated"), "nothing is said of a budget");
    assert_eq!(metrics.lost("over_budget"), 0);
    program.go_on();
    assert_eq!(program.end(), 0);
}

// on perf a stratum takes about as long as the recording
#[bpf_test(tiers(session, multi), alone)]
fn a_recording_samples_functions_over_budget_and_its_report_says_so(tier: &str) {
    let private = Private::new("rates", Cuda::Cuda12);
    let mut program = Talk::start(Command::new(&private.program).args(["steady", "60"]));
    let pid = pid_of(&program.json());
    program.go_on();
    let folder = fixtures::folder();
    let trace = shown(folder.path().join("trace.jsonl"));
    let options = ["--budget", "1%", "--duration", "4", "--attach", tier, "-e", HOT];
    let mut record = gpuprobe(&["record", "-d", &pid.to_string(), "-o", &trace]);
    let finished = finish(record.args(options));
    assert_eq!(finished.status, 0, "{tier}: {}", finished.stderr);
    assert!(finished.stderr.contains(&format!("{HOT} is sampled, now 1/")), "{}", finished.stderr);
    let text = fs::read_to_string(&trace).unwrap();
    let end: Value = serde_json::from_str(text.lines().next_back().unwrap()).unwrap();
    let sampled = &end["sampled"][0];
    assert_eq!(sampled["function"], HOT, "{end}");
    assert!(number(&sampled["standard_error"]) > 0 && number(&sampled["estimated_calls"]) > 0, "{end}");
    let line = format!("sampled: {HOT}: probed a part of the time: its figures (~) are estimates");
    assert!(finished.stderr.contains(&line), "{}", finished.stderr);
    assert!(text.contains(",\"weight\":"), "recorded calls say how many they stand for");
    let replayed = finish(&mut gpuprobe(&["report", &trace]));
    let marked = |l: &str| l.trim_start().starts_with(HOT) && l.contains(" ~");
    assert!(replayed.stdout.contains(&line) && replayed.stdout.lines().any(marked), "{}", replayed.stdout);
    let json: Value =
        serde_json::from_str(&finish(&mut gpuprobe(&["report", "--json", &trace])).stdout).unwrap();
    let row = json["summary"]["functions"].as_array().unwrap().iter().find(|row| row["name"] == HOT).unwrap();
    let (calls, estimated) = (number(&row["calls"]), number(&row["estimated"]));
    // 40,000 calls a second for 4 seconds, less the time to attach
    assert!(estimated > 0 && estimated < calls && (60_000..=300_000).contains(&calls), "{tier}: {row}");
}

// on perf a stratum takes about as long as the trace
#[bpf_test(tiers(session, multi), alone)]
fn a_live_trace_samples_functions_over_budget_and_says_what_a_line_stands_for(tier: &str) {
    let private = Private::new("rates", Cuda::Cuda12);
    let mut program = Talk::start(Command::new(&private.program).args(["steady", "60"]));
    let pid = pid_of(&program.json()).to_string();
    program.go_on();
    let trace = |more: &[&str]| {
        let options = ["trace", "-d", &pid, "--budget", "1%", "--duration", "4", "--attach", tier, "-e", HOT];
        let finished = finish(&mut gpuprobe(&[&options, more].concat()));
        assert_eq!(finished.status, 0, "{tier}: {}", finished.stderr);
        assert!(finished.stderr.contains(&format!("{HOT} is sampled, now 1/")), "{}", finished.stderr);
        let line = format!("sampled: {HOT}: probed a part of the time: its figures (~) are estimates");
        assert!(finished.stderr.contains(&line), "{tier}: {}", finished.stderr);
        finished.stdout
    };
    let text = trace(&[]);
    let weight =
        |line: &str| line.split_once(" [1 of ~").and_then(|(_, n)| n.strip_suffix(']')?.parse().ok());
    let lines: Vec<u64> = text.lines().map(|line| weight(line).unwrap_or(1)).collect();
    // 40,000 calls a second for 4 seconds, less the time to attach
    let calls: u64 = lines.iter().sum();
    assert!((60_000..=300_000).contains(&calls), "{tier}: {calls}");
    assert!((lines.len() as u64) < calls / 2, "{tier}: {} lines for {calls} calls", lines.len());

    // all calls are received, but only failures are printed: there are none
    let json = trace(&["--json", "--errors-only"]);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["name"] != HOT), "{tier}: a call that did not fail");
    assert_eq!(lines.last().unwrap()["sampled"][0]["function"], HOT, "{json}");
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
        for command in ["daemon", "run", "record", "trace"] {
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
