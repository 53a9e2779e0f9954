//! Calls at full speed: what is spooled and decoded later, and calls that wait so that none is lost.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gpuprobe_e2e::process::{PATIENCE, finish, gpuprobe, shown, until};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Recording, Talk, bpf_test, fixtures};
use gpuprobe_event::{LossCause, ProcessChange};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

const CALL: &str = "cuMemcpyHtoD_v2";
const THREADS: u64 = 4;

/// A program that will make these calls when it gets a line, and the recording of it.
struct Recorded {
    program: Talk,
    record: Talk,
    calls: u64,
}

impl Recorded {
    fn start(calls: u64, options: &[&str], trace: &Path) -> Self {
        let mut command = std::process::Command::new(fixtures::standins(Cuda::Cuda12).workload("paced"));
        let mut program = Talk::start(command.args([calls.to_string(), "0".into(), THREADS.to_string()]));
        let pid = pid_of(&program.json()).to_string();
        let output = shown(trace);
        let words = [&["record", "-d", &pid, "-e", CALL, "-o", &output], options].concat();
        let mut record = Talk::start(&mut gpuprobe(&words));
        until(PATIENCE, "the probes are in", || {
            assert!(!record.has_exited(), "{}", record.stderr());
            record.stderr().contains("gpuprobe: tracing").then_some(())
        });
        Self { program, record, calls }
    }

    /// Lets the program make its calls and exit.
    fn call(&mut self) {
        let (status, printed) = self.program.finish();
        assert_eq!(status, 0);
        println!("{} calls in {} s", self.calls, printed["seconds"]);
    }

    /// The number of calls that were received, and of those that were lost for this reason and for others.
    fn end(&mut self, trace: &Path, cause: LossCause) -> (Recording, u64, u64) {
        assert_eq!(self.record.end(), 0, "{}", self.record.stderr());
        let recording = Recording::read(trace);
        let lost = &recording.assert_ended().lost;
        let of_cause = lost.get(cause.as_str()).copied().unwrap_or(0);
        let all: u64 = lost.values().sum();
        println!("{} received, {lost:?} lost", recording.calls.len());
        assert_eq!(recording.calls.len() as u64 + all, self.calls, "received and lost");
        (recording, of_cause, all)
    }
}

#[bpf_test(alone)]
fn calls_that_come_too_fast_are_decoded_later_and_in_order() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    // less than half of the calls fit into the ring
    let mut recorded = Recorded::start(800_000, &[], &trace);
    recorded.call();
    let (recording, _, lost) = recorded.end(&trace, LossCause::RingFull);
    assert!(lost * 20 <= recorded.calls, "{lost} lost");
    let mut last_of = HashMap::new();
    for call in &recording.calls {
        let before = last_of.insert(call.tid, call.start_ns);
        assert!(before < Some(call.start_ns), "thread {}: {before:?} before {}", call.tid.0, call.start_ns);
    }
    assert_eq!(last_of.len() as u64, THREADS);
    let exit = recording.processes.iter().find(|process| process.change == ProcessChange::Exit).unwrap();
    assert!(last_of.values().all(|last| *last < exit.at_ns));
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["trace.jsonl"], "the spool leaves no file");
}

#[bpf_test(alone)]
fn a_second_signal_discards_what_is_not_decoded_and_counts_it() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let mut recorded = Recorded::start(1_200_000, &["-q"], &trace);
    recorded.call();
    recorded.record.signal(Signal::SIGINT);
    until(PATIENCE, "it decodes the rest", || {
        recorded.record.stderr().contains("not decoded yet; Ctrl-C discards them").then_some(())
    });
    let begun = Instant::now();
    recorded.record.signal(Signal::SIGINT);
    let (_, discarded, _) = recorded.end(&trace, LossCause::Discarded);
    assert!(discarded > 0, "nothing was discarded, so this tests nothing: make more calls");
    println!("ended after {:?}", begun.elapsed());
}

#[bpf_test(tiers(session, multi), alone)]
fn no_call_is_lost_if_calls_wait(tier: &str) {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    // far too small: without waiting most calls would be lost
    let options = ["--lossless", "--attach", tier, "--buffer", "1M", "--max-size", "none"];
    let mut recorded = Recorded::start(200_000, &options, &trace);
    recorded.call();
    let (_, _, lost) = recorded.end(&trace, LossCause::RingFull);
    assert_eq!(lost, 0);
}

#[bpf_test(alone)]
fn calls_do_not_wait_for_a_reader_that_does_not_read() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let mut recorded = Recorded::start(200_000, &["--lossless", "--buffer", "1M"], &trace);
    recorded.record.stop();
    let begun = Instant::now();
    recorded.call();
    let took = begun.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(20)).contains(&took), "{took:?}");
    recorded.record.signal(Signal::SIGCONT);
    let (_, in_ring, _) = recorded.end(&trace, LossCause::RingFull);
    assert!(in_ring > 0, "nothing was lost, so nothing had to wait");
}

#[bpf_test(alone)]
fn a_program_goes_on_when_gpuprobe_is_killed_while_its_calls_wait() {
    let folder = fixtures::folder();
    let mut recorded =
        Recorded::start(200_000, &["--lossless", "--buffer", "1M"], &folder.path().join("trace.jsonl"));
    recorded.record.stop();
    let begun = Instant::now();
    recorded.program.go_on();
    std::thread::sleep(Duration::from_millis(300));
    recorded.record.signal(Signal::SIGKILL);
    recorded.program.json();
    assert_eq!(recorded.program.end(), 0);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(recorded.record.end(), 137);
}

#[bpf_test]
fn a_recording_without_losses_is_refused_where_calls_cannot_wait() {
    let refused = |options: &[&str]| {
        let said = finish(&mut gpuprobe(&[&["run", "--lossless"], options, &["--", "true"]].concat()));
        assert_eq!(said.status, 1, "{}", said.stderr);
        said.stderr
    };
    let by_perf = refused(&["--attach", "perf"]);
    assert!(
        by_perf.contains("calls can wait only from Linux 6.6 on") && by_perf.lines().count() == 1,
        "{by_perf}"
    );
    assert!(refused(&["--driver"]).contains("leave out --driver"));
}
