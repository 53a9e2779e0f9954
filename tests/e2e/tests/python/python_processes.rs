//! Python processes that exit, fork and execute: what they allocated is counted, and has its lines if they could still
//! be read.

use std::collections::BTreeSet;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, at_once, gpuprobe, shown, until};
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
    at_once(python::all(), |python| {
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
    });
}

/// Children of a Python process need no search for their interpreter, if it finds room in the table.
#[bpf_test(alone)]
fn forks_that_find_no_room_in_the_table_of_interpreters_are_counted_and_have_no_wrong_lines() {
    const ROOM: u64 = 8;
    const WAITING: u64 = 12;
    let (room, waiting) = (ROOM.to_string(), WAITING.to_string());
    let python = python::newest();
    let (mut program, pid) = python.waiting(&[], "many_forks.py", &[&waiting]);
    let (target, library) = (pid.to_string(), shown(python::runtime().with_file_name("libcuda.so.1")));
    let daemon = Daemon::with(&["-d", &target, "-p", &library, "--memleak", "--max-processes", &room]);
    let sites = |metrics: &Metrics, pid| metrics.by("gpuprobe_memory_site_live_bytes", pid, "site");
    let is_line = |name: &String| name.contains(".py:");
    let has_parent = |metrics: &Metrics| {
        sites(metrics, pid).keys().any(|name| name.starts_with("of_parent (many_forks.py:"))
    };
    program.go_on();
    assert_eq!(program.json()["ready"], true);
    // the daemon may learn from this allocation that there is such a process
    daemon.until(PATIENCE, "the first allocation", |metrics| !sites(metrics, pid).is_empty());
    program.go_on();
    assert_eq!(PythonLedger::of(&program.json()).pid, pid);
    let metrics = daemon.until(PATIENCE, "the parent has its line", has_parent);
    assert_eq!(metrics.lost(LossCause::UnreadPython.as_str()), 0);

    program.go_on();
    let child = PythonLedger::of(&program.json());
    let metrics = daemon.until(PATIENCE, "the child's memory", |metrics| {
        sites(metrics, child.pid).values().sum::<u64>() == child.sum().1
    });
    let names = sites(&metrics, child.pid);
    assert!(!names.keys().any(is_line), "{names:?}");
    // once by BPF at the fork, and again by user space when it has found the interpreter
    let refused = WAITING + 1 - (ROOM - 1);
    let lost = metrics.lost(LossCause::UnreadPython.as_str());
    assert!((refused..=2 * refused).contains(&lost), "{lost} of {refused}");
    assert!(has_parent(&metrics), "the parent keeps its line");
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}
