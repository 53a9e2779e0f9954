//! Python processes that exit, fork and execute: what they allocated is counted, and has its lines if they could still
//! be read.

use std::collections::BTreeSet;

use gpuprobe_e2e::process::{PATIENCE, gpuprobe, shown, until};
use gpuprobe_e2e::python::{self, PythonLedger};
use gpuprobe_e2e::{Recording, Talk, bpf_test, fixtures};
use gpuprobe_event::LossCause;
use nix::sys::signal::Signal;

/// A recording of a process that waits.
fn recording(pid: u32, trace: &str) -> Talk {
    let pid = pid.to_string();
    let mut talk = Talk::start(&mut gpuprobe(&["record", "-d", &pid, "-e", "cudaMalloc", "-o", trace]));
    until(PATIENCE, "the probes are in", || {
        assert!(!talk.has_exited(), "{}", talk.stderr());
        talk.stderr().contains("gpuprobe: tracing").then_some(())
    });
    talk
}

/// The recorder does not run while the program does.
#[bpf_test(alone)]
fn a_process_that_exits_before_its_names_are_read_is_counted() {
    let folder = fixtures::folder();
    let trace = folder.path().join("trace.jsonl");
    for python in python::all() {
        let (mut program, pid) = python.waiting(&[], "short_process.py", &["exit"]);
        let mut record = recording(pid, &shown(&trace));
        record.stop();
        program.go_on();
        let ledger = PythonLedger::of(&program.json());
        assert_eq!(program.end(), 0, "{}", program.stderr());
        record.signal(Signal::SIGCONT);
        assert_eq!(record.end(), 0, "{}", record.stderr());

        let recorded = Recording::read(&trace);
        let traced = python::traced(&recorded, pid);
        let sum: u64 = traced.iter().map(|call| call.bytes).sum();
        assert_eq!((traced.len() as u64, sum), ledger.sum(), "3.{}", python.minor);
        let frames: usize = ledger.allocations.iter().map(|row| row.stack.len()).sum();
        let unread = recorded.assert_ended().lost.get(LossCause::UnreadPython.as_str()).copied();
        assert_eq!(unread, Some(frames as u64), "3.{}", python.minor);
        for (call, row) in traced.iter().zip(&ledger.allocations) {
            let unknown = call.stack.iter().filter(|frame| *frame == python::UNKNOWN).count();
            assert_eq!((python::lines(&call.stack), unknown), (vec![], row.stack.len()), "{:#?}", call.stack);
        }
    }
}

/// The program is run by gpuprobe, which knows its interpreter before its first call.
#[bpf_test(tiers(best), alone)]
fn forked_and_executed_interpreters_have_lines(tier: &str) {
    for python in python::all() {
        for how in ["fork", "exec"] {
            let processes = if how == "fork" { 2 } else { 1 };
            let (printed, trace) = python::recorded(&python.run(tier, "short_process.py", &[how]), processes);
            let ledgers: Vec<_> = printed.iter().map(PythonLedger::of).collect();
            let pids: BTreeSet<u32> = ledgers.iter().map(|ledger| ledger.pid).collect();
            assert_eq!(pids.len(), processes);
            for ledger in &ledgers {
                let traced = python::traced(&trace, ledger.pid);
                assert_eq!(python::by_stack(&traced), ledger.by_stack(), "3.{}, {how}", python.minor);
            }
        }
    }
}
