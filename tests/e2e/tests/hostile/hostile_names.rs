//! CUDA kernels with names of ten kilobytes, with quotes, line ends, escape sequences and invalid UTF-8, in every
//! output: the format stays valid, no control character reaches a terminal, and every launch is counted.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, shown, until};
use gpuprobe_e2e::recording::{Counts, Recording, number, pid_of};
use gpuprobe_e2e::terminal::assert_harmless;
use gpuprobe_e2e::tracing::{Private, waiting};
use gpuprobe_e2e::{Run, bpf_test, fixtures};
use gpuprobe_event::Class;
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// Stored bytes of a name.
const MOST_KEPT: usize = 4096;
/// Maximum bytes of a label: the shown bytes of a name, each of which may be replaced by a longer character.
const MOST_SHOWN: usize = 3 * 200;

/// The names, as bytes, and the number of launches of each.
fn kernels(ledger: &Value) -> Vec<(Vec<u8>, u64)> {
    let byte = |hex: &[u8]| u8::from_str_radix(str::from_utf8(hex).unwrap(), 16).unwrap();
    let name = |hex: &str| hex.as_bytes().chunks(2).map(byte).collect();
    let all = ledger["kernels"].as_array().unwrap().iter();
    all.map(|k| (name(k["name"].as_str().unwrap()), number(&k["launches"]))).collect()
}

fn launches(kernels: &[(Vec<u8>, u64)]) -> u64 {
    kernels.iter().map(|(_, n)| n).sum()
}

/// Whether a trace may contain this text for a name.
fn is_reported_as(name: &[u8], reported: &str) -> bool {
    if name.starts_with(b"_Z") {
        // a mangled name whose full text would not fit in memory
        return reported.len() == MOST_KEPT && reported.starts_with("f(A<int, int>, B00<A<int, int>");
    }
    if name.len() < MOST_KEPT {
        return reported == String::from_utf8_lossy(name);
    }
    reported.len() <= MOST_KEPT
        && reported.contains("KKK...~")
        && name.starts_with(&reported.as_bytes()[..4000])
}

/// Checks that a trace names every CUDA kernel, and has each of its launches once.
fn assert_named(trace: &Recording, ledger: &Value) {
    trace.assert_whole();
    let mut reported = Counts::new();
    let outermost = |c: &&gpuprobe_event::Call| c.class == Class::Launch && c.parent.is_none();
    for call in trace.of(pid_of(ledger)).filter(outermost) {
        let name = call.effect.kernel().unwrap_or_else(|| panic!("no name: {call:?}"));
        *reported.entry(name.to_string()).or_default() += 1;
    }
    let kernels = kernels(ledger);
    for (name, launches) in &kernels {
        let found: Vec<_> = reported.iter().filter(|(reported, _)| is_reported_as(name, reported)).collect();
        let [(_, count)] = found[..] else { panic!("{} as {found:?}", String::from_utf8_lossy(name)) };
        assert_eq!(count, launches, "{}", String::from_utf8_lossy(name));
    }
    assert_eq!(reported.len(), kernels.len(), "{:?}", reported.keys());
}

/// Checks that another JSON parser accepts every line.
fn assert_json(file: &Path) {
    let read = finish(Command::new("jq").args(["-c", ".type"]).arg(file));
    assert_eq!(read.status, 0, "{}", read.stderr);
    let lines = std::fs::read_to_string(file).unwrap().lines().count();
    assert_eq!(read.stdout.lines().count(), lines, "objects and lines");
}

#[bpf_test]
fn a_recording_and_its_summary_survive_every_name() {
    let program = fixtures::standins(Cuda::Cuda12).workload("names");
    for args in [&["--runtime"][..], &[]] {
        let folder = fixtures::folder();
        let trace = folder.path().join("trace.jsonl");
        let run = finish(&mut Run::new(&program).args(args).command(&trace));
        assert_eq!(run.status, 0, "{}", run.stderr);
        assert_json(&trace);
        assert_named(&Recording::read(&trace), run.json().last().unwrap());
        assert_harmless(&run.stderr);
        let (ours, printed): (Vec<&str>, Vec<&str>) = run.stdout.lines().partition(|l| !l.starts_with('{'));
        assert_eq!(printed.len(), 2, "what the program printed");
        assert_harmless(&ours.join("\n"));
    }
}

#[bpf_test]
fn live_lines_and_live_json_survive_every_name() {
    for json in [false, true] {
        let private = Private::new("names", Cuda::Cuda12);
        let options: &[&str] = if json { &["--json"] } else { &["-e", "cuLaunchKernel", "-e", "cuModule*"] };
        let (mut program, trace) = private.attached(options, &[]);
        let (status, ledger) = program.finish();
        assert_eq!(status, 0, "{}", program.stderr());
        let traced = trace.end();
        if json {
            let file = private.folder.path().join("printed.jsonl");
            std::fs::write(&file, &traced.stdout).unwrap();
            assert_json(&file);
            assert_named(&traced.recording(), &ledger);
            continue;
        }
        let kernels = kernels(&ledger);
        // each name is looked up once
        traced.assert_lines(usize::try_from(launches(&kernels)).unwrap() + kernels.len());
        assert_harmless(&traced.stdout);
        for sign in ["quote\"s and back\\slash\\ ", "line\\nfeed\\ttab\\r", "\\u{1b}[2J", "bad\u{fffd}"] {
            assert!(traced.stdout.contains(sign), "{sign}");
        }
    }
}

/// The name and the labels of a sample. Checks that they are valid in both formats.
fn sample(line: &str) -> (&str, &str) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, rest) = line.split_at(end);
    assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
    let Some(labels) = rest.strip_prefix('{') else { return (name, "") };
    let (mut is_inside, mut is_escaped) = (false, false);
    for (at, c) in labels.char_indices() {
        match c {
            _ if is_escaped => {
                assert!(matches!(c, '\\' | '"' | 'n'), "{line}");
                is_escaped = false;
            }
            '\\' if is_inside => is_escaped = true,
            '"' => is_inside = !is_inside,
            '}' if !is_inside => {
                assert!(labels[at + 2..].parse::<f64>().is_ok(), "{line}");
                return (name, &labels[..at]);
            }
            _ => {}
        }
    }
    panic!("labels without an end: {line}")
}

/// Checks that a scrape can be parsed: each line is valid, each series occurs once, and nothing ends it early.
fn assert_readable(metrics: &Metrics) {
    let mut series = BTreeSet::new();
    for line in metrics.text.lines() {
        assert!(!line.chars().any(char::is_control), "{line:?}");
        if !line.starts_with("# ") {
            assert!(series.insert(sample(line)), "twice: {line}");
        }
    }
    assert!(metrics.text.ends_with('\n'));
}

#[bpf_test]
fn metrics_and_the_display_survive_every_name() {
    let private = Private::new("names", Cuda::Cuda12);
    let library = shown(private.folder.path().join("libcuda.so.1"));
    let mut daemon = Daemon::with(&["--cudatrace", "-p", &library]);
    let (mut program, _) = waiting(&private.program, &[], &["--wait"]);
    program.go_on();
    let ledger = program.json();
    let (kernels, pid) = (kernels(&ledger), pid_of(&ledger));
    const LAUNCHES: &str = "gpuprobe_kernel_launches_total";
    let all = |m: &Metrics| m.by(LAUNCHES, pid, "kernel").values().sum::<u64>() >= launches(&kernels);
    let metrics = daemon.until(PATIENCE, "all launches", all);
    let reported = metrics.by(LAUNCHES, pid, "kernel");
    assert!(reported.keys().all(|name| name.len() <= MOST_SHOWN), "{reported:?}");
    let mut counts: Vec<u64> = reported.values().copied().collect();
    counts.sort_unstable();
    let expected: Vec<u64> = kernels.iter().map(|(_, n)| *n).collect();
    assert_eq!(counts, expected, "two names that begin alike are two series: {reported:?}");
    for name in ["plain_kernel", "<script>alert('&amp;')</script>", "quote\"s and back\\slash\\"] {
        assert!(reported.contains_key(name), "{name}: {reported:?}");
    }
    assert_readable(&metrics);
    let open = daemon.scrape_as("application/openmetrics-text; version=1.0.0");
    assert!(open.text.ends_with("\n# EOF\n") && open.text.matches("# EOF").count() == 1);
    assert_readable(&open);
    assert_eq!(open.by(LAUNCHES, pid, "kernel"), reported);
    let mut displayed = Vec::new();
    until(PATIENCE, "the display names the process", || {
        displayed.extend(daemon.talk.printed());
        displayed.iter().any(|line| line.contains("names")).then_some(())
    });
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
    displayed.extend(daemon.talk.printed());
    assert_harmless(&displayed.join("\n"));
}
