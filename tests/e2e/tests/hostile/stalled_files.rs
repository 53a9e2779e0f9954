//! A file system that stops answering, with a program that runs from it: no other process is blocked, every command
//! ends on request, and the file is named.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, at_once, gpuprobe, shown, until};
use gpuprobe_e2e::recording::number;
use gpuprobe_e2e::stalled_fs::{FileSystem, compile};
use gpuprobe_e2e::{Run, Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;

/// Anything that waits for the file system waits forever; other operations may take this long on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const SAID: &str = "its file system does not answer: skipped until it does";

/// A program that does not use that file system, with its own library.
fn elsewhere(folder: &Path) -> Talk {
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder, &["libcuda.so.1"]);
    compile("churn.c", &folder.join("churn"));
    let mut talk = Talk::start(Command::new(folder.join("churn")).arg(folder.join("libcuda.so.1")));
    assert_eq!(talk.line(), "begun", "{}", talk.stderr());
    talk
}

fn allocs(metrics: &Metrics, pid: u32) -> u64 {
    metrics.by("gpuprobe_calls_total", pid, "function").get("cuMemAlloc_v2").copied().unwrap_or(0)
}

/// Checks that calls of a program are still counted.
fn assert_counts_go_on(daemon: &Daemon, pid: u32) {
    for _ in 0..3 {
        let now = allocs(&daemon.scrape(), pid);
        daemon.until(SOON, "more calls are counted", |m| allocs(m, pid) > now);
    }
}

/// The children of a daemon with this word in their command line.
fn children(pid: u32, word: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let is_it = |child: &u32| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        status.lines().any(|l| l == format!("PPid:\t{pid}"))
            && String::from_utf8_lossy(&command).contains(word)
    };
    pids.filter(is_it).collect()
}

/// Checks that the daemon exits on a signal, and its attach helper too.
fn assert_ends(mut daemon: Daemon, within: Duration) {
    let helpers = children(daemon.talk.pid(), "__guard");
    assert_eq!(helpers.len(), 1);
    let begun = Instant::now();
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    assert!(begun.elapsed() < within, "{:?}", begun.elapsed());
    until(SOON, "the helper process ends", || {
        (!Path::new(&format!("/proc/{}", helpers[0])).exists()).then_some(())
    });
}

#[bpf_test(needs(fuse), alone)]
fn a_stalled_file_system_of_one_program_does_not_stop_a_daemon() {
    let mut stalled = FileSystem::mount();
    stalled.start_program();
    stalled.stall();
    let folder = fixtures::folder();
    let mut other = elsewhere(folder.path());
    let daemon = Daemon::with(&["-v", "--rescan", "1"]);
    stalled.wait_asked();
    assert_counts_go_on(&daemon, other.pid());
    let said = daemon.talk.stderr();
    let named: Vec<_> = said.lines().filter(|l| l.contains(SAID)).collect();
    assert_eq!(named.len(), 1, "the file system is named once: {said}");
    let churn = format!("gpuprobe: {}: ", stalled.file("churn").display());
    let library = format!("gpuprobe: {}: ", stalled.file("libcuda.so.1").display());
    assert!([&churn, &library].iter().any(|name| named[0].starts_with(*name)), "{named:?}");
    let skipped =
        |m: &Metrics| m.samples("gpuprobe_libraries_skipped_total").find(|(l, _)| l["reason"] == "stalled");
    assert!(skipped(&daemon.scrape()).is_some_and(|(_, n)| n >= 1), "{said}");
    // a later library is probed
    let later = fixtures::folder();
    let mut late = elsewhere(later.path());
    assert_counts_go_on(&daemon, late.pid());
    let starter = children(daemon.talk.pid(), "--starter");
    assert_eq!(children(starter[0], "__reader").len(), 2, "one that waits and one that reads");
    assert_ends(daemon, SOON);
    for talk in [&mut other, &mut late] {
        talk.go_on();
        talk.json();
    }
}

#[bpf_test(tiers, needs(fuse), alone)]
fn a_file_system_that_stalls_after_attach_blocks_no_process(tier: &str) {
    let mut stalled = FileSystem::mount();
    let daemon = Daemon::with(&["-v", "--rescan", "1", "--memleak", "--attach", tier]);
    let stuck = stalled.start_program();
    daemon.until(PATIENCE, "its calls are counted", |m| allocs(m, stuck) > 0);
    stalled.stall();
    stalled.wait_asked();
    assert_counts_go_on(&daemon, stuck);
    let folder = fixtures::folder();
    let mut other = elsewhere(folder.path());
    assert_counts_go_on(&daemon, other.pid());
    // the program is not affected
    let program = &mut stalled.programs[0];
    program.go_on();
    let printed = program.json();
    assert_eq!(printed["allocs"], printed["frees"]);
    assert!(number(&printed["allocs"]) > 0);
    other.go_on();
    // on perf, the Linux kernel takes a tenth of a second for each function
    assert_ends(daemon, if tier == "perf" { PATIENCE } else { SOON });
}

#[bpf_test(needs(fuse), alone)]
fn other_commands_work_and_end_with_a_stalled_file_system() {
    let mut stalled = FileSystem::mount();
    let stuck = stalled.start_program();
    stalled.stall();
    let (folder, pid) = (fixtures::folder(), stuck.to_string());
    let [first, second] = ["first.jsonl", "second.jsonl"].map(|name| shown(folder.path().join(name)));
    let commands: [&[&str]; 6] = [
        &["record", "--all", "-o", &first],
        &["record", "-o", &second, "-d", &pid],
        &["trace"],
        &["trace", "-d", &pid],
        &["memory", "--watch"],
        &["memory", "--watch", "-d", &pid],
    ];
    at_once(&commands, |command| {
        let begun = Instant::now();
        let mut talk = Talk::start(&mut gpuprobe(command));
        until(SOON, "it says what does not answer, or that it cannot", || {
            (talk.stderr().contains("does not answer") || talk.has_exited()).then_some(())
        });
        talk.signal(Signal::SIGINT);
        talk.end();
        assert!(begun.elapsed() < SOON, "{command:?}: {:?}", begun.elapsed());
        assert!(talk.stderr().contains("does not answer"), "{command:?}: {}", talk.stderr());
    });
    let built = fixtures::standins(Cuda::Cuda12);
    let outcome = Run::new(built.dir.join("brief")).outcome();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    assert!(outcome.finished.took < SOON, "{:?}", outcome.finished.took);
    assert_eq!(outcome.trace.assert_ended().skipped, Vec::<String>::new());
}
