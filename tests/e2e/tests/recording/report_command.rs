//! `gpuprobe report` of a recording prints the same summary as the run.

use gpuprobe_e2e::process::{finish, gpuprobe, shown};
use gpuprobe_e2e::{Run, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

const BEGIN: &str = "=== TRACE SUMMARY ===";

/// The summary that `run` printed: the last line contains the path of the trace.
fn printed_summary(stderr: &str) -> &str {
    let begin = stderr.find(BEGIN).unwrap_or_else(|| panic!("no summary: {stderr}"));
    let end = stderr.rfind("trace: ").unwrap_or_else(|| panic!("no trace: {stderr}"));
    &stderr[begin..end]
}

#[bpf_test]
fn a_report_prints_what_run_printed() {
    let standins = fixtures::standins(Cuda::Cuda12);
    let folder = fixtures::folder();
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

#[bpf_test]
fn a_command_without_cuda_is_reported_before_any_figure() {
    let outcome = Run::new("true").outcome();
    let stderr = &outcome.finished.stderr;
    let line =
        "warning: the command loaded no GPU library; `gpuprobe doctor` reports what can be probed here";
    assert!(stderr.find(line).is_some_and(|at| at < stderr.find(BEGIN).unwrap()), "{stderr}");
}
