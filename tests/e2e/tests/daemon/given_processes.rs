//! A daemon that observes given processes leaves the files of others alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown, until};
use gpuprobe_e2e::recording::pid_of;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// A program with libraries of its own that waits.
fn waiting() -> (tempfile::TempDir, Talk, u32) {
    let folder = fixtures::folder();
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", "paced"]);
    let (program, pid) = started(&folder);
    (folder, program, pid)
}

fn started(folder: &tempfile::TempDir) -> (Talk, u32) {
    let mut program = Talk::start(Command::new(folder.path().join("paced")).args(["1000", "10000"]));
    let pid = pid_of(&program.json());
    (program, pid)
}

/// The code of a library as a process has it, breakpoints included.
fn code(pid: u32, library: &str) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_else(|e| panic!("{e}"));
    let line = maps.lines().find(|line| line.ends_with(library) && line.contains(" r-xp "));
    let (range, _) =
        line.and_then(|line| line.split_once(' ')).unwrap_or_else(|| panic!("{library}: {maps}"));
    let (from, to) = range.split_once('-').unwrap_or_else(|| panic!("{range}"));
    let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap_or_else(|e| panic!("{e}")));
    let mut code = vec![0; (to - from) as usize];
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap_or_else(|e| panic!("{e}"));
    memory.read_exact_at(&mut code, from).unwrap_or_else(|e| panic!("{e}"));
    code
}

#[bpf_test(alone)]
fn files_that_only_other_processes_use_are_not_probed() {
    let [(folder, mut observed, pid), (other_folder, mut other, other_pid)] = [waiting(), waiting()];
    let library = |folder: &tempfile::TempDir| shown(folder.path().join("libcuda.so.1"));
    let (ours, others) = (library(&folder), library(&other_folder));
    let (before, other_before) = (code(pid, &ours), code(other_pid, &others));
    let daemon = Daemon::rescanning(&["-d", &pid.to_string()]);
    assert_ne!(code(pid, &ours), before, "the observed program has breakpoints");
    observed.go_on();
    let calls = |metrics: &Metrics| metrics.by("gpuprobe_calls_total", pid, "function").values().sum::<u64>();
    daemon.until(PATIENCE, "all calls", |metrics| calls(metrics) == 1000);
    assert_eq!(code(other_pid, &others), other_before, "the other program has none");
    other.go_on();
    assert_eq!((observed.end(), other.end()), (0, 0));
}

#[bpf_test(alone)]
fn files_that_given_processes_no_longer_use_are_released() {
    let (folder, mut observed, pid) = waiting();
    let (mut other, _) = started(&folder);
    let daemon = Daemon::rescanning(&["-v", "-d", &pid.to_string()]);
    observed.go_on();
    assert_eq!(observed.end(), 0);
    let library = shown(folder.path().join("libcuda.so.1"));
    folder.close().unwrap_or_else(|e| panic!("{e}"));
    let line = format!("{library}: detached, no longer used");
    until(PATIENCE, "the deleted library is released", || daemon.talk.stderr().contains(&line).then_some(()));
    other.go_on();
    assert_eq!(other.end(), 0, "it used the library all the time");
}
