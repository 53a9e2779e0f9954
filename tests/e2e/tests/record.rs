//! Recordings of what already runs, and the forms that a recording can have.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Recording, Run, Talk, needs, places};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

/// A program that has made half of its calls and waits.
fn half_done(calls: &str) -> (Talk, Value) {
    let mut command = Command::new(places::standins(Cuda::Cuda12).workload("ledger"));
    let mut talk = Talk::start(command.args(["--threads", "4", "--calls", calls, "--pauses", "1"]));
    let half = talk.json();
    assert_eq!(number(&half["snapshot"]), 1);
    (talk, half)
}

/// A recording that has begun.
fn recording(options: &[&str], trace: &Path) -> Talk {
    let output = shown(trace);
    let words = [&["record"], options, &["-e", "*", "-o", &output]].concat();
    let mut talk = Talk::start(&mut gpuprobe(&words));
    until(PATIENCE, "the probes are in", || {
        assert!(!talk.has_ended(), "{}", talk.stderr());
        talk.stderr().contains("gpuprobe: tracing").then_some(())
    });
    talk
}

/// What was called between two snapshots.
fn between(half: &Value, whole: &Value) -> Counts {
    let (before, mut after) = (counts_of(&half["calls"]), counts_of(&whole["calls"]));
    before.iter().for_each(|(name, n)| *after.get_mut(name).unwrap() -= n);
    after.retain(|_, n| *n > 0);
    after
}

#[test]
fn what_runs_is_recorded_until_it_ends_or_somebody_says_so() {
    if !needs::bpf() {
        return;
    }
    let folder = places::folder();
    for (name, ends_itself) in [("ends.jsonl", true), ("told.jsonl", false)] {
        let trace = folder.path().join(name);
        let (mut program, half) = half_done("4000");
        let pid = pid_of(&half);
        let mut record = recording(&["-d", &pid.to_string()], &trace);
        if !ends_itself {
            // Ctrl-C, before the program goes on
            record.signal(Signal::SIGINT);
            assert_eq!(record.end(), 0, "{}", record.stderr());
        }
        program.go_on();
        let whole = program.json();
        assert_eq!(program.end(), 0);
        if ends_itself {
            assert_eq!(record.end(), 0, "{}", record.stderr());
        }
        let recorded = Recording::read(&trace);
        recorded.assert_ended();
        let expected = if ends_itself { between(&half, &whole) } else { Counts::new() };
        assert_eq!(recorded.counts(pid, Api::Runtime), expected, "{name}");
        assert!(record.stderr().contains("=== TRACE SUMMARY ==="), "{}", record.stderr());
    }
}

#[test]
fn a_compressed_recording_says_the_same_and_is_readable_when_its_recorder_is_killed() {
    if !needs::bpf() {
        return;
    }
    let folder = places::folder();
    let at = |name: &str| folder.path().join(name);
    let ledger = Run::new(places::standins(Cuda::Cuda12).workload("ledger")).options(&["-e", "*"]);
    let ledger = ledger.args(&["--threads", "2", "--calls", "2000", "--pauses", "1"]);
    let mut talk = Talk::start(&mut ledger.command(&at("whole.jsonl.zst")));
    talk.json();
    talk.go_on();
    let books = talk.json();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    let report = |trace: &str| finish(&mut gpuprobe(&["report", &shown(at(trace))]));
    let whole = report("whole.jsonl.zst");
    let calls = format!("Total CUDA API calls: {}", number(&books["total_calls"]));
    assert!(whole.status == 0 && whole.stdout.contains(&calls), "{}{}", whole.stdout, whole.stderr);

    let mut talk = Talk::start(&mut ledger.command(&at("cut.jsonl.zst")));
    talk.json();
    // what is older than a second is on disk
    until(PATIENCE, "something is written", || {
        (fs::metadata(at("cut.jsonl.zst")).unwrap().len() > 1000).then_some(())
    });
    talk.signal(Signal::SIGKILL);
    assert_eq!(talk.end(), 137);
    talk.go_on();
    talk.json();
    let cut = report("cut.jsonl.zst");
    assert!(cut.status == 0 && cut.stderr.contains("the trace has no end"), "{}", cut.stderr);
    assert!(!cut.stdout.contains("Total CUDA API calls: 0"), "{}", cut.stdout);
}

#[test]
fn a_recording_keeps_to_its_size_and_tells_what_it_left_out() {
    if !needs::bpf() {
        return;
    }
    let folder = places::folder();
    let trace = folder.path().join("trace.jsonl");
    let ledger = Run::new(places::standins(Cuda::Cuda12).workload("ledger"));
    let ledger = ledger.options(&["-e", "*", "--phases", "--max-size", "512K"]);
    let mut talk = Talk::start(&mut ledger.args(&["--threads", "2", "--calls", "3000"]).command(&trace));
    let books = talk.json();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    assert!(talk.stderr().contains("segment_removed"), "{}", talk.stderr());
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(files.len() > 1 && bytes <= 512 << 10 && !trace.exists(), "{bytes} in {files:?}");
    // each of them can be read by itself, and the last has the end
    let last = files.iter().map(|file| Recording::read(file)).find(|segment| {
        segment.end.as_ref().is_some_and(|end| end.next.is_none() && end.exit_status == Some(0))
    });
    assert!(last.is_some_and(|last| last.of(pid_of(&books)).count() > 0));
}
