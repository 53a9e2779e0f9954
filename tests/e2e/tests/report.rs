//! A recording has all that the summary of its run showed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::{Run, needs, places};
use gpuprobe_standin::Cuda;

const BEGIN: &str = "=== TRACE SUMMARY ===";

/// What `run` printed as its summary: the last line says where the trace is.
fn printed_summary(stderr: &str) -> &str {
    let begin = stderr.find(BEGIN).unwrap_or_else(|| panic!("no summary: {stderr}"));
    let end = stderr.rfind("trace: ").unwrap_or_else(|| panic!("no trace: {stderr}"));
    &stderr[begin..end]
}

#[test]
fn a_report_prints_what_run_printed() {
    if !needs::bpf() {
        return;
    }
    let standins = places::standins(Cuda::Cuda12);
    let folder = places::folder();
    let programs: [(&str, &[&str]); 3] = [
        ("demo", &[]),
        ("ledger", &["--calls", "2000", "--threads", "4"]),
        ("torture", &["--operations", "800", "--threads", "2"]),
    ];
    for (name, args) in programs {
        let trace = folder.path().join(format!("{name}.jsonl"));
        let outcome = Run::new(standins.workload(name)).args(args).outcome_in(&trace);
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        let printed = printed_summary(&outcome.finished.stderr);
        let report = finish(&mut gpuprobe(&["report", &shown(&trace)]));
        assert_eq!((report.status, report.stdout.as_str()), (0, printed), "{name}: {}", report.stderr);
        assert!(printed.contains("memory live at the end, by call site"), "{printed}");
    }
    let page = folder.path().join("demo.html");
    let trace = shown(folder.path().join("demo.jsonl"));
    assert_eq!(finish(&mut gpuprobe(&["report", &trace, "--html", &shown(&page)])).status, 0);
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["7.6 MiB at the end", "Memory live at the end, by call site", "main (demo.c:"] {
        assert!(page.contains(part), "no `{part}` in the page");
    }
}

#[test]
fn a_command_without_cuda_is_told_so_before_any_figure() {
    if !needs::bpf() {
        return;
    }
    let outcome = Run::new("true").outcome();
    let stderr = &outcome.finished.stderr;
    let line =
        "warning: the command loaded no CUDA library; `gpuprobe doctor` reports what can be probed here";
    assert!(stderr.find(line).is_some_and(|at| at < stderr.find(BEGIN).unwrap()), "{stderr}");
}
