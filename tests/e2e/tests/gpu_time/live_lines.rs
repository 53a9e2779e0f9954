//! `gpuprobe trace --gpu-time`: a line for each execution.

use std::collections::BTreeMap;

use gpuprobe_e2e::cupti_ledger::{FUNCTIONS, Record};
use gpuprobe_e2e::process::{PATIENCE, until};
use gpuprobe_e2e::{Tracing, bpf_test};
use gpuprobe_event::ExecutionKind;

use crate::work::Work;

/// The beginning of the line of an execution, without its times.
fn line(pid: u32, record: &Record) -> String {
    let execution = &record.execution;
    let what = match &execution.kind {
        ExecutionKind::Kernel { name, grid: [gx, gy, gz], block: [bx, by, bz], .. } => {
            let name = name.as_deref().unwrap();
            format!("{name}<<<[{gx},{gy},{gz}], [{bx},{by},{bz}]>>>")
        }
        ExecutionKind::Copy { direction, bytes } => format!("copy {} {}", direction.as_str(), size(*bytes)),
        ExecutionKind::Memset { bytes } => format!("memset {}", size(*bytes)),
        ExecutionKind::Graph => panic!("nodes are recorded in a process that runs already"),
    };
    format!("gpu_work {pid} GPU {} stream {}: {what}", execution.gpu, execution.stream)
}

fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{:.1} KiB", bytes as f64 / 1024.0) }
}

fn counts(lines: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    lines.for_each(|line| *counts.entry(line).or_default() += 1);
    counts
}

#[bpf_test]
fn every_execution_is_a_line_when_the_gpu_has_done_it() {
    let work = Work::new(&["--threads", "1", "--operations", "200", "--wait"]);
    let mut program = work.start();
    let pid = program.pid();
    let shown_pid = pid.to_string();
    let functions = FUNCTIONS.iter().flat_map(|function| ["-e", function]);
    let options = ["-d", &shown_pid, "--no-time", "--gpu-time"].into_iter().chain(functions);
    let trace = Tracing::start(&options.collect::<Vec<_>>());
    work.until_collecting(true);
    until(PATIENCE, "its functions are probed", || {
        trace.messages().contains("gpuprobe: tracing").then_some(())
    });
    work.finish(&mut program);
    let traced = trace.end();
    assert_eq!(traced.status, 0, "{}", traced.stderr);

    let (ledger, head) = (work.ledger(), format!("gpu_work {pid} GPU "));
    let shown: Vec<_> = traced.stdout.lines().filter(|line| line.starts_with(&head)).collect();
    let without_times = shown.iter().map(|line| line.split_once(" took ").unwrap().0.to_owned());
    let executed = counts(ledger.records.iter().map(|record| line(pid, record)));
    assert_eq!(counts(without_times), executed, "{}{}", traced.stdout, traced.stderr);
    assert_eq!(shown.len(), 180 + 20 * 4);
    assert!(shown.iter().all(|line| line.contains(", queued ")), "the calls of all are known");
    let states: Vec<_> =
        traced.stdout.lines().filter(|line| line.ends_with("GPU times are collected")).collect();
    assert_eq!(states, [format!("gpu_work {pid}: GPU times are collected")]);
}
