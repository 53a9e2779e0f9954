//! Others that use CUPTI in the same process, and agents that are loaded twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use gpuprobe_e2e::cupti_ledger::{CuptiLedger, assert_submissions};
use gpuprobe_e2e::process::{PATIENCE, shown, until};
use gpuprobe_e2e::recording::number;
use gpuprobe_e2e::{Recording, Talk, bpf_test, compile, fixtures, stalled_fs};
use gpuprobe_event::agent::Collection;
use gpuprobe_standin::Cuda;

use crate::work::{Work, agent, collections, options, record};

const KERNELS: u64 = 10;
/// Longer than the agent waits between two deliveries.
const DELIVERED: Duration = Duration::from_millis(800);

#[bpf_test(tiers)]
fn gpuprobe_lets_go_when_the_program_uses_cupti_itself(tier: &str) {
    let folder = fixtures::folder();
    let standins = fixtures::standins(Cuda::Cuda12).dir;
    let (program, ledger) = (folder.path().join("cupti_user"), folder.path().join("ledger.jsonl"));
    stalled_fs::compile("cupti_user.c", &program);
    let mut command = Command::new("env");
    command.arg(format!("CUDA_INJECTION64_PATH={}", agent().display()));
    command.arg(format!("STANDIN_CUPTI_LEDGER={}", ledger.display()));
    command.arg(format!("LD_LIBRARY_PATH={}", standins.display()));
    command.arg(&program).args(["libcuda.so.1", "libcupti.so.12"].map(|name| standins.join(name)));
    let mut program = Talk::start(&mut command);
    let trace = folder.path().join("trace.jsonl");
    let mut recorder = record(&program, &options(tier, "--gpu-time"), &trace);
    let collecting = || (CuptiLedger::read(&ledger).enabled().len() == crate::work::KINDS).then_some(());
    until(PATIENCE, "CUPTI collects", collecting);
    program.go_on();
    until(PATIENCE, "launches", || (CuptiLedger::read(&ledger).records.len() == 50).then_some(()));
    sleep(DELIVERED);

    program.go_on();
    assert_eq!(program.line(), "launched", "{}", program.stderr());
    until(PATIENCE, "gpuprobe lets go", || recorder.stderr().contains("uses CUPTI itself now").then_some(()));
    sleep(DELIVERED);
    let (status, printed) = program.finish();
    assert_eq!(status, 0, "{}", program.stderr());
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());

    let (trace, ledger) = (Recording::read(&trace), CuptiLedger::read(&ledger));
    assert_eq!(collections(&trace), [Collection::Collecting, Collection::LetGo]);
    assert!(ledger.enabled().contains(&KERNELS), "what the program enabled stays enabled");
    assert_eq!(number(&printed["records"]), 2 * number(&printed["launches"]), "the program's own records");
    let missing = ledger.assert_contains(&trace);
    assert_eq!((trace.executions.len(), missing), (50, 100));
}

/// Copies the agent's file: the Linux kernel sees another file.
fn copy(folder: &Path, name: &str) -> PathBuf {
    let folder = folder.join(name);
    fs::create_dir(&folder).unwrap();
    let copy = folder.join(agent().file_name().unwrap());
    fs::copy(agent(), &copy).unwrap();
    copy
}

/// Records a program with two agents until it exits.
fn assert_collected_once(work: &Work, mut program: Talk) {
    let trace = work.at("trace.jsonl");
    let mut recorder = record(&program, &["--gpu-time=nodes"], &trace);
    work.until_collecting(true);
    until(PATIENCE, "its functions are probed", || {
        recorder.stderr().contains("gpuprobe: tracing").then_some(())
    });
    work.finish(&mut program);
    assert_eq!(recorder.end(), 0, "{}", recorder.stderr());
    let trace = Recording::read(&trace);
    trace.assert_ended();
    assert_eq!(collections(&trace), [Collection::Collecting]);
    assert_eq!(work.ledger().assert_equal(&trace), 270 + 30 * 4);
    assert_eq!(assert_submissions(&trace), 0, "calls without executions");
    let enabled = work.ledger().changes.iter().filter(|(is_enabled, _)| *is_enabled).count();
    assert_eq!(enabled, crate::work::KINDS, "only one of them enables CUPTI");
}

const ARGS: [&str; 5] = ["--threads", "1", "--operations", "300", "--wait"];

#[bpf_test]
fn one_of_two_agents_collects() {
    let work = Work::new(&ARGS);
    let twice = work.at("twice.so");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&twice).arg(compile::source("agent_twice.c"));
    compile::run(cc.arg("-ldl"));
    let agents = ["first", "second"].map(|name| shown(copy(work.folder(), name)));
    let work = work.env("FIRST_AGENT", &agents[0]).env("SECOND_AGENT", &agents[1]);
    let program = work.start_with_agent(&twice);
    assert_collected_once(&work, program);
}

#[bpf_test]
fn an_agent_that_nothing_initialized_does_not_hide_the_other() {
    let work = Work::new(&ARGS);
    let other = shown(copy(work.folder(), "preloaded"));
    let work = work.env("LD_PRELOAD", &other);
    let program = work.start();
    assert_collected_once(&work, program);
}
