//! Allocations and failures from every kind of Python function have the right lines, from the innermost to the outermost.

use std::time::Instant;

use gpuprobe_e2e::process::{PATIENCE, at_once, shown};
use gpuprobe_e2e::python::{self, Line, PythonLedger};
use gpuprobe_e2e::site_ledger::{self, Watching};
use gpuprobe_e2e::{Talk, Tracing, bpf_test};
use serde_json::Value;

/// What the interpreter's evaluation function is replaced by.
const EVALUATION: &str = "_PyEval_EvalFrameDefault";
/// The most Python frames of a stack.
const MOST_FRAMES: usize = 64;

#[bpf_test(tiers, alone)]
fn the_bytes_of_each_line_are_those_of_the_program(tier: &str) {
    at_once(&python::on_tier(tier), |python| {
        let (ledger, trace) = python.recorded(tier, "many_lines.py", &[]);
        trace.assert_whole();
        let traced = python::traced(&trace, ledger.pid);
        assert_eq!(python::by_stack(&traced), ledger.by_stack(), "3.{}", python.minor);
        // native and Python frames are in order: no evaluation is left over
        for call in &traced {
            let is_left = call.stack.iter().any(|frame| frame.starts_with(EVALUATION));
            assert!(!is_left, "3.{}: {:#?}", python.minor, call.stack);
        }
        assert_native_frames_between(&traced);
    });
}

/// The C function that calls a lambda is between the lambda and its caller, if the interpreter has the names of its
/// functions.
fn assert_native_frames_between(traced: &[python::Traced]) {
    let is_caller = |frame: &str| frame.starts_with("native_between (");
    for call in traced {
        let Some(reduce) = call.stack.iter().position(|frame| frame.starts_with("functools_reduce")) else {
            continue;
        };
        let lambda = call.stack.iter().position(|frame| frame.contains("<lambda> ("));
        let caller = call.stack.iter().position(|frame| is_caller(frame));
        assert!(lambda < Some(reduce) && Some(reduce) < caller, "{:#?}", call.stack);
    }
}

/// The process runs before gpuprobe starts.
#[bpf_test(tiers, alone)]
fn live_bytes_of_a_running_process_have_their_lines(tier: &str) {
    at_once(&python::on_tier(tier), |python| {
        let (program, pid) = python.waiting(&[], "many_lines.py", &[]);
        assert_live_lines(program, &["--attach", tier, "-d", &pid.to_string()]);
    });
}

#[bpf_test(alone)]
fn live_bytes_have_their_lines_when_the_host_is_watched() {
    for python in python::all() {
        assert_live_lines(python.waiting(&[], "many_lines.py", &[]).0, &[]);
    }
}

/// Watches a program that waits, with these options, until a report has the lines of its ledger.
fn assert_live_lines(mut program: Talk, options: &[&str]) {
    let mut watching = Watching::start(options);
    program.go_on();
    let ledger = PythonLedger::of(&program.json());
    let (start, expected) = (Instant::now(), ledger.by_own_lines());
    let report = watching.until("the lines of the ledger", |report| {
        let found = python::reported(report, ledger.pid);
        // rather shows what differs than that it took too long
        if start.elapsed() > PATIENCE / 2 {
            assert_eq!(found, expected);
        }
        (found == expected).then(|| report.clone())
    });
    site_ledger::assert_complete(&report);
    assert_labels(&report, ledger.pid);
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

/// Checks that each call site is named after the innermost line of the user's own code.
fn assert_labels(report: &Value, pid: u32) {
    for site in site_ledger::reported(report, pid).0 {
        let lines = python::own_lines(&python::lines(&site.stack));
        let Some(Line { function, file, line }) = lines.first() else { panic!("no lines: {site:?}") };
        let file = file.rsplit('/').next().unwrap();
        let label = site.name.strip_prefix(&format!("{function} (")).and_then(|rest| rest.split(')').next());
        let label = label.map(|place| place.strip_prefix("Python ").unwrap_or(place).to_owned());
        assert_eq!(label, Some(format!("{file}:{line}")), "{}", site.name);
    }
}

#[bpf_test(tiers, alone)]
fn failing_calls_have_the_lines_that_made_them(tier: &str) {
    let library = shown(python::runtime());
    at_once(&python::on_tier(tier), |python| {
        let (mut program, pid) = python.waiting(&["STANDIN_FAIL=cudaMalloc:2:3"], "failing_calls.py", &[]);
        let options = ["-p", &library, "-d", &pid.to_string(), "--attach", tier, "-e", "cudaMalloc"];
        let trace = Tracing::start(&[&options[..], &["--json", "--stack", "--errors-only"]].concat());
        program.go_on();
        let ledger = PythonLedger::of(&program.json());
        let failed: Vec<_> = ledger.allocations.iter().filter(|row| row.failed).collect();
        trace.until("the failures", |printed| {
            (printed.matches("cudaMalloc").count() >= failed.len()).then_some(())
        });
        program.go_on();
        assert_eq!(program.end(), 0, "{}", program.stderr());
        let recording = trace.end().recording();
        recording.assert_whole();
        let shown: Vec<Vec<Line>> =
            recording.of(pid).map(|call| python::lines(call.stack.as_deref().unwrap_or_default())).collect();
        let expected: Vec<Vec<Line>> = failed.iter().map(|row| row.stack.clone()).collect();
        assert_eq!(expected.len(), 4, "every third of 14 calls");
        assert_eq!(shown, expected, "3.{}", python.minor);
    });
}

#[bpf_test(tiers(best), alone)]
fn of_ten_thousand_frames_the_innermost_are_shown_and_the_cut_is_visible(tier: &str) {
    at_once(python::all(), |python| {
        let (ledger, trace) = python.recorded(tier, "deep_recursion.py", &[]);
        let traced = python::traced(&trace, ledger.pid);
        let [call] = &traced[..] else { panic!("{} allocations", traced.len()) };
        assert_eq!(call.bytes, ledger.sum().1);
        let lines = python::lines(&call.stack);
        assert_eq!(lines, ledger.allocations[0].stack[..lines.len()], "3.{}", python.minor);
        let outermost = call.stack.iter().rposition(|frame| frame.starts_with("recurse ("));
        let next = outermost.and_then(|at| call.stack.get(at + 1)).map(String::as_str);
        // up to 3.10 there are native frames between those of Python, more than are read of a trace
        let is_cut_here =
            python.minor < 11 && call.stack.last().is_some_and(|frame| frame.ends_with(" more)"));
        let is_cut = (lines.len(), next) == (MOST_FRAMES, Some(python::CUT));
        assert!(is_cut || is_cut_here, "3.{}: {} lines, {:#?}", python.minor, lines.len(), call.stack);
    });
}
