//! Signals to gpuprobe and to its command.

use gpuprobe_e2e::process::{PATIENCE, until};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Recording, Run, Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

#[bpf_test]
fn signals_are_passed_on_to_the_command() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let script =
        "trap 'exit 5' TERM; trap 'exit 6' INT; trap 'exit 7' USR1; echo ready; while :; do sleep 0.02; done";
    // a shell cannot trap a signal that was ignored at its start, as SIGINT is in background jobs
    let shell = Run::new("env").args(&["--default-signal=TERM,INT,USR1", "sh", "-c", script]);
    for (signal, status) in [(Signal::SIGTERM, 5), (Signal::SIGINT, 6), (Signal::SIGUSR1, 7)] {
        let mut talk = Talk::start(&mut shell.command(&trace));
        assert_eq!(talk.line(), "ready");
        talk.signal(signal);
        assert_eq!(talk.end(), status, "{signal}: {}", talk.stderr());
        assert_eq!(Recording::read(&trace).assert_whole().exit_status, Some(status));
    }
}

#[bpf_test]
fn a_command_continues_when_gpuprobe_is_killed_and_the_trace_stays_readable() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    let ledger = Run::new(fixtures::standins(Cuda::Cuda12).workload("ledger")).options(&["-e", "*"]);
    let ledger = ledger.args(&["--threads", "4", "--calls", "20000", "--pauses", "1"]);
    let mut talk = Talk::start(&mut ledger.command(&trace));
    let half = talk.json();
    assert_eq!(number(&half["snapshot"]), 1);
    talk.signal(Signal::SIGKILL);
    assert_eq!(talk.end(), 137);
    // its standard input and output are those of gpuprobe
    talk.go_on();
    let whole = talk.json();
    assert_eq!((number(&whole["total_calls"]), pid_of(&whole)), (20_000, pid_of(&half)));
    let process = format!("/proc/{}", pid_of(&half));
    until(PATIENCE, "the command ends", || (!std::path::Path::new(&process).exists()).then_some(()));
    let cut = Recording::read(&trace);
    assert!(cut.end.is_none());
    assert!(cut.damaged <= 1, "one line may be cut: {}", cut.damaged);
    assert!(cut.calls.iter().all(|c| c.tgid.0 == pid_of(&half)));
}
