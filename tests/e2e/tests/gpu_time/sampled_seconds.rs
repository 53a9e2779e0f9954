//! `daemon --gpu-time`: it collects for a few seconds of every minute.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpuprobe_e2e::bpf_test;
use gpuprobe_e2e::cupti_ledger::CuptiLedger;
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::PATIENCE;
use gpuprobe_event::ExecutionKind;
use serde_json::Value;

use crate::work::Work;

/// Long enough to attach to one process on a busy machine. Otherwise it would collect a minute later.
const SECONDS: f64 = 5.0;
/// A daemon and an agent may take this long to notice that the seconds are over.
const LATE: f64 = 2.0;

const KERNEL_SECONDS: &str = "gpuprobe_gpu_kernel_seconds_total";
const SAMPLED_SECONDS: &str = "gpuprobe_gpu_kernel_sampled_seconds_total";
const EXECUTIONS: &str = "gpuprobe_gpu_kernel_executions_total";

/// Microseconds by CUDA kernel.
fn kernel_micros(metrics: &Metrics) -> BTreeMap<String, u64> {
    let row = |(labels, value): (BTreeMap<String, String>, &str)| {
        (labels["kernel"].clone(), (value.parse::<f64>().unwrap() * 1e6).round() as u64)
    };
    metrics.values(KERNEL_SECONDS).map(row).collect()
}

/// The number of CUDA kernels in a ledger, and their microseconds by name.
fn kernels(ledger: &CuptiLedger) -> (u64, BTreeMap<String, u64>) {
    let (mut executions, mut nanos) = (0, BTreeMap::<String, u64>::new());
    for record in &ledger.records {
        if let ExecutionKind::Kernel { name: Some(name), .. } = &record.execution.kind {
            executions += 1;
            *nanos.entry(name.to_string()).or_default() += record.end_ns - record.start_ns;
        }
    }
    (executions, nanos.into_iter().map(|(name, ns)| (name, (ns + 500) / 1000)).collect())
}

/// Microseconds by CUDA kernel of one process in a snapshot.
fn micros_of(json: &Value, pid: u32) -> BTreeMap<String, u64> {
    let processes = json["snapshot"]["gpu_times"].as_array().unwrap();
    let process = processes.iter().find(|process| process["pid"] == pid).unwrap();
    let row = |kernel: &Value| {
        (kernel["kernel"].as_str().unwrap().to_owned(), (kernel["total_ns"].as_u64().unwrap() + 500) / 1000)
    };
    process["kernels"].as_array().unwrap().iter().map(row).collect()
}

fn only(metrics: &Metrics, name: &str) -> Option<f64> {
    let all: Vec<_> = metrics.values(name).map(|(_, value)| value.parse().unwrap()).collect();
    assert!(all.len() <= 1, "one GPU: {all:?}");
    all.first().copied()
}

#[bpf_test]
fn a_daemon_counts_what_was_executed_in_its_seconds() {
    let work = Work::new(&["--threads", "1", "--pause", "500", "--until-line"]);
    let refused = Work::new(&["--threads", "1", "--pause", "500", "--until-line"]).without_cupti();
    let (mut program, mut without_cupti) = (work.start(), refused.start());
    let pids = [program.pid(), without_cupti.pid()].map(|pid| pid.to_string());
    let seconds = SECONDS.to_string();
    let begin = Instant::now();
    let daemon = Daemon::with(&["-d", &pids[0], "-d", &pids[1], "--gpu-time", &seconds]);
    work.until_collecting(true);
    let first = begin.elapsed();
    work.until_collecting(false);
    let collected = begin.elapsed() - first;
    // what it submits after that is not in the ledger
    let (executions, micros) = kernels(&work.ledger());
    let metrics = daemon.until_equal(Duration::from_secs(20), |metrics, found| {
        found.compare("executions", &only(metrics, EXECUTIONS), &Some(executions as f64));
        found.compare("microseconds by kernel", &kernel_micros(metrics), &micros);
    });
    assert!(executions > 100, "hardly anything was collected: {executions}");
    assert_eq!(micros_of(&daemon.json("/api/snapshot"), program.pid()), micros, "of the process");

    let sampled = only(&metrics, SAMPLED_SECONDS).unwrap();
    let span = SECONDS + LATE;
    assert!(sampled <= span && (sampled - collected.as_secs_f64()).abs() < LATE, "{sampled}: {collected:?}");
    daemon.until(PATIENCE, "another scrape", |again| {
        assert_eq!(only(again, SAMPLED_SECONDS), Some(sampled), "it goes on counting");
        true
    });
    let said = daemon.talk.stderr();
    let refusals: Vec<_> = said.lines().filter(|line| line.contains("no GPU times of process")).collect();
    assert!(matches!(refusals[..], [only] if only.contains("there is no libcupti.so.12")), "{said}");
    work.finish(&mut program);
    refused.finish(&mut without_cupti);
}
