//! Processes that fork, execute another program or are killed, and a gpuprobe that is killed.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use gpuprobe_e2e::cupti_ledger::{CuptiLedger, assert_submissions};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::stalled_fs;
use gpuprobe_e2e::{Recording, Run, bpf_test, fixtures};
use gpuprobe_event::ProcessChange;
use gpuprobe_event::agent::Collection;
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

use crate::work::{Work, assert_recorded, collections, options, record};

#[bpf_test]
fn a_child_has_no_agent_and_its_parent_goes_on() {
    let work = Work::new(&["--threads", "1", "--operations", "500", "--pause", "200", "--fork"]);
    let outcome = work.run(&["--gpu-time=nodes"]);
    outcome.trace.assert_whole();
    assert_eq!(collections(&outcome.trace), [Collection::Collecting]);
    assert_eq!(work.ledger().assert_equal(&outcome.trace), 450 + 50 * 4);
    assert_eq!(assert_submissions(&outcome.trace), 0, "calls without executions");
}

#[bpf_test]
fn a_program_that_another_one_executes_has_an_agent_of_its_own() {
    let folder = fixtures::folder();
    let at = |name: &str| shown(folder.path().join(name));
    let standins = fixtures::standins(Cuda::Cuda12).dir;
    let library = shown(standins.join("libcuda.so.1"));
    stalled_fs::compile("exec_later.c", Path::new(&at("exec_later")));
    let work = shown(standins.join("gpu_work"));
    let outcome = Run::new(at("exec_later"))
        .options(&["--gpu-time=nodes"])
        .args(&[&library, &work, "--threads", "1", "--operations", "300"])
        .env("LD_LIBRARY_PATH", &standins)
        .env("STANDIN_CUPTI_LEDGER", at("first"))
        .env("OTHER_LEDGER", at("second"))
        .outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    let (pid, mut trace) = (pid_of(&outcome.printed()), outcome.trace);
    trace.assert_whole();
    assert_eq!(collections(&trace), [Collection::Collecting; 2]);
    let execs = trace.processes.iter().filter(|it| it.tgid.0 == pid && it.change == ProcessChange::Exec);
    let last = execs.map(|it| it.at_ns).max().unwrap();
    let (first, second) = trace.executions.into_iter().partition(|it| it.start_ns < last);
    trace.executions = first;
    assert_eq!(CuptiLedger::read(Path::new(&at("first"))).assert_equal(&trace), 50);
    trace.executions = second;
    assert_eq!(CuptiLedger::read(Path::new(&at("second"))).assert_equal(&trace), 270 + 30 * 4);
}

#[bpf_test(tiers)]
fn a_killed_gpuprobe_leaves_no_collection_behind(tier: &str) {
    let work = Work::new(&["--threads", "1", "--pause", "500", "--until-line"]);
    let mut program = work.start();
    let mut killed = record(&program, &options(tier, "--gpu-time"), &work.at("killed.jsonl"));
    work.until_collecting(true);
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.end(), 128 + 9);
    work.until_collecting(false);
    let earlier = work.ledger().records.len();
    sleep(Duration::from_millis(300));
    assert_eq!(work.ledger().records.len(), earlier, "it still collects");

    let next = work.at("next.jsonl");
    let options = [options(tier, "--gpu-time"), vec!["--duration", "1s"]].concat();
    let mut recorder = record(&program, &options, &next);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    work.until_collecting(false);
    work.finish(&mut program);
    assert!(assert_recorded(&work.ledger().since(earlier), &Recording::read(&next)) > 100);
}

#[bpf_test]
fn a_killed_program_ends_its_recording() {
    let work = Work::new(&["--threads", "1", "--pause", "500", "--until-line"]);
    let (mut program, trace) = (work.start(), work.at("trace.jsonl"));
    let mut recorder = record(&program, &["--gpu-time"], &trace);
    work.until_collecting(true);
    sleep(Duration::from_millis(1500));
    program.signal(Signal::SIGKILL);
    assert_eq!(program.end(), 128 + 9);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    let trace = Recording::read(&trace);
    trace.assert_ended();
    assert_eq!(collections(&trace), [Collection::Collecting]);
    // what CUPTI had not delivered yet died with the program
    let missing = work.ledger().assert_contains(&trace);
    assert!(trace.executions.len() > missing, "{missing} are missing, {} are there", trace.executions.len());
    assert_submissions(&trace);
}
