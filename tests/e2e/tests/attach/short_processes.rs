//! Short processes under the daemon: what a thousand of them leave behind, and what is seen of a single one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, resident_kilobytes, run_many, shown, until};
use gpuprobe_e2e::recording::{Counts, counts_of, number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures, linux, needs};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
/// The defaults of `--max-series-processes` and `--max-exited`.
const MOST_SHOWN: usize = 50 + 128;
/// The calls of `brief` that the daemon counts; the others are hot or not in a counted class.
const COUNTED: [&str; 4] = ["cuCtxCreate_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuCtxSynchronize"];

/// The library, and the program under a unique name: a daemon watches the whole host, where others may run the same
/// program.
fn brief(folder: &Path) -> (PathBuf, String) {
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder, &["libcuda.so.1", "brief"]);
    let name = format!("brief{}", std::process::id());
    let program = folder.join(&name);
    fs::rename(folder.join("brief"), &program).unwrap();
    (program, name)
}

/// The calls that must be counted for a process that printed this.
fn counted(printed: &Value) -> Counts {
    let mut calls = counts_of(&printed["calls"]);
    calls.retain(|name, _| COUNTED.contains(&name.as_str()));
    assert_eq!(calls.len(), COUNTED.len(), "{printed}");
    calls
}

fn times(counts: &Counts, times: usize) -> Counts {
    counts.iter().map(|(name, n)| (name.clone(), n * times as u64)).collect()
}

/// The memory that stays in use: reading tables and answering a scrape take some megabytes temporarily.
fn settled_kilobytes(pid: u32) -> u64 {
    let look = |_| {
        sleep(Duration::from_millis(50));
        resident_kilobytes(pid)
    };
    (0..30).map(look).min().unwrap()
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// On `perf` it takes up to seconds to probe a library. Meanwhile other programs map more files than the rings hold.
#[bpf_test(tiers(perf), alone)]
fn no_mapping_is_lost_while_a_library_is_probed(tier: &str) {
    // each of them maps three files at least, and the ring of a CPU holds 800 mappings
    let programs = 2000 + 300 * available_parallelism().unwrap().get();
    let folder = fixtures::folder();
    brief(folder.path());
    let script = format!("for i in $(seq {programs}); do /bin/true; done");
    let mut others = Talk::start(Command::new("sh").args(["-c", &script]));
    let daemon = Daemon::with(&["--attach", tier, "-p", &shown(folder.path().join("libcuda.so.1"))]);
    daemon.until(MINUTE, "the library is probed", |m| {
        m.samples("gpuprobe_probes").any(|(labels, n)| labels["state"] == "attached" && n > 0)
    });
    assert_eq!(others.end(), 0);
    // the mappings of the last programs are taken before a later snapshot
    sleep(Duration::from_secs(1));
    assert_eq!(daemon.scrape().lost("lost_mapping"), 0);
}

#[bpf_test(alone)]
fn a_thousand_short_processes_in_a_minute_leave_nothing_behind() {
    const FIRST: usize = 200;
    const MORE: usize = 1000;
    const LARGEST_PAGE: usize = 3 << 20;
    const MOST_RESIDENT: u64 = 40 << 10;
    // two snapshots are stored as text while they are served
    const MOST_GROWTH: u64 = 8 << 10;
    let folder = fixtures::folder();
    let (program, name) = brief(folder.path());
    let mut daemon = Daemon::start(&folder.path().join("libcuda.so.1"));
    let pid = daemon.talk.pid();
    let printed = finish(&mut Command::new(&program)).json().remove(0);
    let each = counted(&printed);
    let after = |all: usize| {
        let expected = times(&each, all);
        // processes that exited just now may still have a series each
        let settled = |m: &Metrics| m.calls_of_name(&name) == expected && shown_of(m, &name) <= MOST_SHOWN;
        let metrics = daemon.until(PATIENCE, "every call of every process", settled);
        let (kilobytes, files) = (settled_kilobytes(pid), open_files(pid));
        println!("{all} processes: {kilobytes} kB, {files} files, {} bytes a page", metrics.text.len());
        (metrics, kilobytes, files)
    };
    run_many(&program, FIRST - 1);
    let (_, kilobytes, files) = after(FIRST);

    let begun = Instant::now();
    run_many(&program, MORE);
    assert!(begun.elapsed() < MINUTE, "{MORE} processes took {:?}", begun.elapsed());
    let (metrics, kilobytes_now, files_now) = after(FIRST + MORE);
    assert_eq!(files_now, files, "open files");
    assert!(kilobytes_now <= kilobytes + MOST_GROWTH, "from {kilobytes} to {kilobytes_now} kB");
    assert!(kilobytes_now < MOST_RESIDENT, "{kilobytes_now} kB");
    assert!(metrics.text.len() < LARGEST_PAGE, "a page of {} bytes", metrics.text.len());
    assert_all_accounted_for(&metrics, &name, FIRST + MORE);

    let (links, programs) = (linux::links_of(pid), linux::programs_of(pid));
    assert!(!links.is_empty() && !programs.is_empty(), "{links:?}, {programs:?}");
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    if linux::links().is_none() {
        needs::missing("bpf", "there is no bpftool to look for links with");
        return;
    }
    // the Linux kernel frees them after an RCU grace period
    until(PATIENCE, "no link is left", || linux::links()?.is_disjoint(&links).then_some(()));
    until(PATIENCE, "no program is left", || linux::programs()?.is_disjoint(&programs).then_some(()));
}

/// The number of processes of a name with series of their own.
fn shown_of(metrics: &Metrics, name: &str) -> usize {
    metrics.processes_of_name(name)
}

/// Checks that every process is either shown by itself or in the sums, and that nothing was lost.
fn assert_all_accounted_for(metrics: &Metrics, name: &str, all: usize) {
    let summed = metrics.of_name("gpuprobe_exited_processes_total", name, "process")[name];
    assert!(metrics.lost("forgotten_early") >= summed);
    let bytes = |metric: &str| metrics.of_name(metric, name, "process").get(name).copied().unwrap_or(0);
    assert_eq!(bytes("gpuprobe_memory_allocated_bytes_total"), 3000 * all as u64);
    for cause in ["counters_full", "processes_full", "live_full", "ring_full"] {
        assert_eq!(metrics.lost(cause), 0, "{cause}");
    }
}

/// A busy machine may delay a process; that run is then repeated.
const ATTEMPTS: usize = 20;

/// Runs it. Returns whether it was quick by its own clock: the first call within 50 ms, the end within 200 ms.
fn run_briefly(program: &Path) -> (Value, bool) {
    let printed = finish(&mut Command::new(program)).json().remove(0);
    let (first, last) = (number(&printed["first_call_us"]), number(&printed["last_call_us"]));
    println!("first call after {first} us, last after {last} us");
    (printed, first < 50_000 && last < 200_000)
}

/// Checks that all calls of a process were seen.
fn assert_seen(daemon: &Daemon, printed: &Value) {
    let pid = pid_of(printed);
    let seen = |m: &Metrics| !m.by("gpuprobe_calls_total", pid, "function").is_empty();
    let metrics = daemon.until(PATIENCE, "its calls", seen);
    assert_eq!(metrics.by("gpuprobe_calls_total", pid, "function"), counted(printed));
    assert_eq!(metrics.of("gpuprobe_memory_allocated_bytes_total", pid), Some(3000));
    assert_eq!(metrics.of("gpuprobe_memory_freed_bytes_total", pid), Some(1000));
}

#[bpf_test(alone)]
fn a_very_short_process_is_exact_if_its_library_was_known() {
    let folder = fixtures::folder();
    let (program, _) = brief(folder.path());
    let daemon = Daemon::start(&folder.path().join("libcuda.so.1"));
    let was_brief = (0..ATTEMPTS).any(|_| {
        let (printed, was_brief) = run_briefly(&program);
        assert_seen(&daemon, &printed);
        was_brief
    });
    assert!(was_brief, "this machine starts no process within 50 ms");
}

#[bpf_test(alone)]
fn a_very_short_process_whose_library_was_unknown_is_counted_as_missed() {
    let daemon = Daemon::with(&["-v"]);
    let was_brief = (0..ATTEMPTS).any(|_| {
        // no process has mapped this library before
        let folder = fixtures::folder();
        let (program, _) = brief(folder.path());
        let missed = |m: &Metrics| daemon.missed(m, folder.path());
        let before = missed(&daemon.scrape());
        let (_, was_brief) = run_briefly(&program);
        let metrics = daemon.until(PATIENCE, "it is counted as missed", |m| missed(m) > before);
        assert_eq!(missed(&metrics), before + 1);
        // the next one is seen, because its library is known from then on
        let library = shown(folder.path().join("libcuda.so.1").canonicalize().unwrap());
        let probed =
            |m: &Metrics| m.samples("gpuprobe_probes").any(|(l, n)| l["library"] == library && n > 0);
        daemon.until(PATIENCE, "the library is probed", probed);
        let (printed, _) = run_briefly(&program);
        assert_seen(&daemon, &printed);
        assert_eq!(missed(&daemon.scrape()), before + 1);
        was_brief
    });
    assert!(was_brief, "this machine starts no process within 50 ms");
}

/// Maps a library as code briefly, as a program that only checks for CUDA does, and continues.
const MAP_BRIEFLY: &str = "
import mmap, sys
with open(sys.argv[1], 'rb') as f:
    mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE).close()
print('closed', flush=True)
sys.stdin.readline()
";

#[bpf_test(alone)]
fn a_library_mapped_briefly_is_counted_as_missed_and_known_for_the_next_process() {
    let folder = fixtures::folder();
    let (program, _) = brief(folder.path());
    let daemon = Daemon::with(&["-v"]);
    let missed = |m: &Metrics| daemon.missed(m, folder.path());
    let before = missed(&daemon.scrape());
    let library = shown(folder.path().join("libcuda.so.1"));
    let mut asks = Talk::start(Command::new("python3").args(["-c", MAP_BRIEFLY, &library]));
    assert_eq!(asks.line(), "closed", "{}", asks.stderr());
    daemon.until(PATIENCE, "it is counted as missed", |m| missed(m) == before + 1);
    let (printed, _) = run_briefly(&program);
    assert_seen(&daemon, &printed);
    assert_eq!(missed(&daemon.scrape()), before + 1);
}

#[bpf_test(alone)]
fn short_processes_of_a_container_are_seen_if_another_process_made_the_library_known() {
    const MANY: usize = 100;
    let (folder, mount) = (fixtures::folder(), fixtures::folder());
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["hoarder"]);
    let (_, name) = brief(folder.path());
    // which forgets, between them, that it has looked at this file
    let daemon = Daemon::rescanning(&["-v"]);
    let missed = |m: &Metrics| daemon.missed(m, mount.path());
    let (from, to) = (shown(folder.path()), shown(mount.path()));
    // their paths do not exist outside of the container, so their files cannot be opened after their exit
    let script = format!(
        "mount -t tmpfs tmpfs {to} && cp {from}/* {to} || exit; sleep 60 | {to}/hoarder 1 & read go_on; \
         for n in $(seq {MANY}); do {to}/{name} >/dev/null; sleep 0.02; done; echo done; read go_on"
    );
    let mut container = Talk::start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    container.json();
    let library = format!("{to}/libcuda.so.1");
    let probed = |m: &Metrics| m.samples("gpuprobe_probes").any(|(l, n)| l["library"] == library && n > 0);
    let before = missed(&daemon.until(PATIENCE, "it is probed", probed));
    container.go_on();
    assert_eq!(container.line(), "done", "{}", container.stderr());
    let allocations = |m: &Metrics| m.calls_of_name(&name).get("cuMemAlloc_v2").copied();
    let metrics = daemon.until(PATIENCE, "all their calls", |m| allocations(m) == Some(3 * MANY as u64));
    assert_eq!(missed(&metrics), before);
}
