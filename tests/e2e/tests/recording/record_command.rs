//! Recordings of running processes, and the formats of a recording.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Recording, Run, Talk, bpf_test, fixtures, needs};
use gpuprobe_event::Api;
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

fn half_finished(calls: &str) -> (Talk, Value) {
    let mut command = Command::new(fixtures::standins(Cuda::Cuda12).workload("ledger"));
    let mut talk = Talk::start(command.args(["--threads", "4", "--calls", calls, "--pauses", "1"]));
    let half = talk.json();
    assert_eq!(number(&half["snapshot"]), 1);
    (talk, half)
}

/// A recording whose probes are attached.
fn recording(options: &[&str], trace: &Path) -> Talk {
    let output = shown(trace);
    let words = [&["record"], options, &["-e", "*", "-o", &output]].concat();
    let mut talk = Talk::start(&mut gpuprobe(&words));
    until(PATIENCE, "the probes are in", || {
        assert!(!talk.has_exited(), "{}", talk.stderr());
        talk.stderr().contains("gpuprobe: tracing").then_some(())
    });
    talk
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The calls between two snapshots.
fn between(half: &Value, whole: &Value) -> Counts {
    let (before, mut after) = (counts_of(&half["calls"]), counts_of(&whole["calls"]));
    before.iter().for_each(|(name, n)| *after.get_mut(name).unwrap() -= n);
    after.retain(|_, n| *n > 0);
    after
}

#[bpf_test]
fn a_running_process_is_recorded_until_it_exits_or_a_signal() {
    let folder = fixtures::folder();
    for (name, ends_itself) in [("ends.jsonl", true), ("stopped.jsonl", false)] {
        let trace = folder.path().join(name);
        let (mut program, half) = half_finished("4000");
        let pid = pid_of(&half);
        let mut record = recording(&["-d", &pid.to_string()], &trace);
        if !ends_itself {
            // Ctrl-C, before the program continues
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

#[bpf_test]
fn a_compressed_recording_is_equal_and_readable_when_its_recorder_is_killed() {
    let folder = fixtures::folder();
    let at = |name: &str| folder.path().join(name);
    let ledger = Run::new(fixtures::standins(Cuda::Cuda12).workload("ledger")).options(&["-e", "*"]);
    let ledger = ledger.args(&["--threads", "2", "--calls", "2000", "--pauses", "1"]);
    let mut talk = Talk::start(&mut ledger.command(&at("whole.jsonl.zst")));
    talk.json();
    talk.go_on();
    let snapshot = talk.json();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    let report = |trace: &str| finish(&mut gpuprobe(&["report", &shown(at(trace))]));
    let whole = report("whole.jsonl.zst");
    let calls = format!("Total CUDA API calls: {}", number(&snapshot["total_calls"]));
    assert!(whole.status == 0 && whole.stdout.contains(&calls), "{}{}", whole.stdout, whole.stderr);

    let mut talk = Talk::start(&mut ledger.command(&at("cut.jsonl.zst")));
    talk.json();
    // records older than a second are on disk
    until(PATIENCE, "something is written", || {
        (fs::metadata(at("cut.jsonl.zst")).unwrap().len() > 1000).then_some(())
    });
    talk.signal(Signal::SIGKILL);
    assert_eq!(talk.end(), 137);
    talk.go_on();
    talk.json();
    let cut = report("cut.jsonl.zst");
    assert!(cut.status == 0 && cut.stderr.contains("the trace has no last line"), "{}", cut.stderr);
    assert!(!cut.stdout.contains("Total CUDA API calls: 0"), "{}", cut.stdout);
}

#[bpf_test]
fn a_recording_keeps_its_size_limit_and_reports_what_it_dropped() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let ledger = Run::new(fixtures::standins(Cuda::Cuda12).workload("ledger"));
    let ledger = ledger.options(&["-e", "*", "--phases", "--max-size", "512K"]);
    let mut talk = Talk::start(&mut ledger.args(&["--threads", "2", "--calls", "3000"]).command(&trace));
    let snapshot = talk.json();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    assert!(talk.stderr().contains("segment_removed"), "{}", talk.stderr());
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let bytes: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(files.len() > 1 && bytes <= 512 << 10 && !trace.exists(), "{bytes} in {files:?}");
    // live memory at the start of a segment is known, so that live memory at the end is right
    let first = files.iter().min_by_key(|file| Recording::read(file).meta.segment).unwrap();
    let at_exit = |text: &str| text.lines().find(|line| line.contains("live at exit")).map(words);
    let report = finish(&mut gpuprobe(&["report", &shown(first)]));
    assert!(at_exit(&report.stdout).is_some(), "{}", report.stdout);
    assert_eq!(at_exit(&report.stdout), at_exit(&talk.stderr()));
    assert!(report.stderr.contains("the trace starts with its segment"), "{}", report.stderr);
    let script = format!("{} report - < {}", shown(fixtures::gpuprobe()), shown(first));
    let piped = finish(Command::new("sh").args(["-c", &script]));
    assert!(piped.status == 0 && piped.stderr.contains("which is not read"), "{}", piped.stderr);
    // each segment can be read by itself, and the last has the end line
    let last = files.iter().map(|file| Recording::read(file)).find(|segment| {
        segment.end.as_ref().is_some_and(|end| end.next.is_none() && end.exit_status == Some(0))
    });
    assert!(last.is_some_and(|last| last.of(pid_of(&snapshot)).count() > 0));
}

#[bpf_test]
fn a_recording_can_go_to_stdout() {
    let (mut program, half) = half_finished("200");
    let pid = pid_of(&half);
    let mut record = recording(&["-d", &pid.to_string()], Path::new("-"));
    program.go_on();
    let whole = program.json();
    assert_eq!((program.end(), record.end()), (0, 0), "{}", record.stderr());
    let mut text = String::new();
    while !text.contains("\"type\":\"end\"") {
        text += &(record.line() + "\n");
    }
    let recorded = Recording::of_lines(text.as_bytes(), "stdout");
    recorded.assert_ended();
    assert_eq!(recorded.counts(pid, Api::Runtime), between(&half, &whole));
}

#[bpf_test]
fn a_trace_stops_before_it_fills_the_disk_and_counts_what_is_missing() {
    const FORMS: [(&str, &str); 3] =
        [("plain.jsonl", ""), ("packed.jsonl.zst", ""), ("cut.jsonl", "--max-size 512K --segment-size 64K")];
    let folder = fixtures::folder();
    let (small, outside) = (folder.path().join("small"), folder.path().join("kept"));
    [&small, &outside].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let ledger = shown(fixtures::standins(Cuda::Cuda12).workload("ledger"));
    let (gpuprobe_path, small, outside_path) = (shown(fixtures::gpuprobe()), shown(&small), shown(&outside));
    let one = |(name, options): (&str, &str)| {
        format!(
            "{gpuprobe_path} run -e '*' {options} -o {small}/{name} -- {ledger} --calls 20000 2> {outside_path}/{name}.said; \
             echo $? > {outside_path}/{name}.status; df --output=avail {small} | tail -1 > {outside_path}/{name}.free; cp {small}/* {outside_path}; rm {small}/*; "
        )
    };
    let mount = format!("mount -t tmpfs -o size=512k none {small} || exit 99; ");
    let script = mount + &FORMS.map(one).concat();
    let finished = finish(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    if finished.status == 99 {
        needs::missing("bpf", &format!("no small disk can be mounted: {}", finished.stderr));
        return;
    }
    assert_eq!(finished.json().len(), FORMS.len(), "the commands were not disturbed: {}", finished.stdout);
    for (name, options) in FORMS {
        let [said, free, status] = ["said", "free", "status"]
            .map(|kind| fs::read_to_string(outside.join(format!("{name}.{kind}"))).unwrap());
        assert_eq!(status.trim(), "0", "{name}: {said}");
        assert!(free.trim().parse::<u64>().unwrap() > 0, "{name}: {free} KiB are free");
        let rotates = !options.is_empty();
        let cause = if rotates { "segment_removed" } else { "disk_full" };
        assert!(said.contains(cause), "{name}: {said}");
        let stopped = said.lines().filter(|line| line.contains("stops here: only")).count();
        assert_eq!(stopped, usize::from(!rotates), "{name}: {said}");
        let first = if rotates { first_segment(&outside, "cut") } else { outside.join(name) };
        let report = finish(&mut gpuprobe(&["report", &shown(first)]));
        assert_eq!(report.status, 0, "{name}: {}", report.stderr);
        assert!(!report.stderr.contains("no last line"), "{name}: {}", report.stderr);
        let (inside, all) = (calls_in(&report.stdout), calls_in(&said));
        assert!(inside > 100 && inside < all, "{name}: {inside} of {all}");
    }
}

/// The remaining segment with the lowest number.
fn first_segment(folder: &Path, stem: &str) -> std::path::PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let is_segment = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with(stem) && name.ends_with(".jsonl")
    };
    files.filter(is_segment).min_by_key(|file| Recording::read(file).meta.segment).unwrap()
}

/// All calls, including inner calls.
fn calls_in(summary: &str) -> u64 {
    let line = summary.lines().find(|line| line.contains(" inside them in "));
    let numbers =
        line.into_iter().flat_map(str::split_whitespace).filter_map(|word| word.parse::<u64>().ok());
    numbers.take(2).sum()
}
