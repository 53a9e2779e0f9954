//! Programs that allocate and free while probes are attached to their library: nothing that they have freed is shown
//! as live, and each of them is counted as late.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::number;
use gpuprobe_e2e::stalled_fs::compile;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// On perf, attaching waits in the Linux kernel until the probes of exited daemons are removed.
const PROBED_WITHIN: Duration = Duration::from_secs(180);

const PROGRAMS: usize = 40;
/// Programs that run when the daemon starts: some allocate and free all the time, some do nothing.
const BUSY: usize = 8;
const IDLE: usize = 100;

/// A private copy of the library, and the program.
struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = fixtures::folder();
        fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1"]);
        compile("churn.c", &folder.path().join("churn"));
        Self { folder }
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libcuda.so.1")
    }

    fn start(&self, programs: usize, args: &[&str]) -> Vec<Talk> {
        let program = self.folder.path().join("churn");
        (0..programs).map(|_| Talk::start(Command::new(&program).arg(self.library()).args(args))).collect()
    }
}

/// The maximum of processes counted as late: ours, if the daemon has probed no other library of this machine.
fn most_late(daemon: &Daemon, fixture: &Fixture, programs: usize) -> u64 {
    let (said, ours) = (daemon.talk.stderr(), shown(fixture.folder.path()));
    let mut probed = said.lines().filter(|line| line.contains(" functions in "));
    if probed.all(|line| line.contains(&ours)) { programs as u64 } else { u64::MAX }
}

/// The totals that a program printed.
#[derive(Debug)]
struct ProgramTotals {
    pid: u32,
    allocs: u64,
}

fn wait_begun(all: &mut [Talk]) {
    for talk in all {
        assert_eq!(talk.line(), "begun", "{}", talk.stderr());
    }
}

/// Makes all of them free their memory and stop.
fn stop(all: &mut [Talk]) -> Vec<ProgramTotals> {
    all.iter_mut().for_each(Talk::go_on);
    stopped(all)
}

/// Waits until they stop, and reads their totals.
fn stopped(all: &mut [Talk]) -> Vec<ProgramTotals> {
    let stopped = all.iter_mut().map(|talk| {
        let printed = talk.json();
        assert_eq!(printed["allocs"], printed["frees"], "{printed}");
        ProgramTotals { pid: talk.pid(), allocs: number(&printed["allocs"]) }
    });
    stopped.collect()
}

fn attached(metrics: &Metrics, library: &Path) -> bool {
    let library = shown(library);
    metrics
        .samples("gpuprobe_probes")
        .any(|(l, n)| l["library"] == library && l["state"] == "attached" && n > 0)
}

/// Waits until all calls are shown, and checks that nothing is live. Returns the number of programs that were not
/// seen from the start.
fn assert_nothing_is_live(daemon: &Daemon, done: &[ProgramTotals], what: &str) -> u64 {
    let calls = |m: &Metrics, pid, function: &str| {
        m.by("gpuprobe_calls_total", pid, "function").get(function).copied().unwrap_or(0)
    };
    // four equal pages in a row: all calls are in them
    let sums = |m: &Metrics| -> Vec<u64> {
        done.iter().flat_map(|d| ["cuMemAlloc_v2", "cuMemFree_v2"].map(|f| calls(m, d.pid, f))).collect()
    };
    let (mut before, mut same) = (Vec::new(), 0);
    let metrics = gpuprobe_e2e::process::until(PATIENCE, "figures that stay", || {
        std::thread::sleep(Duration::from_millis(500));
        let metrics = daemon.scrape();
        let now = sums(&metrics);
        let stays = now == before && now.iter().any(|n| *n > 0);
        same = if stays { same + 1 } else { 0 };
        before = now;
        (same == 3).then_some(metrics)
    });
    let live: Vec<_> = done
        .iter()
        .map(|d| (d.pid, metrics.by("gpuprobe_memory_live_bytes", d.pid, "kind")))
        .filter(|(_, kinds)| kinds.values().any(|bytes| *bytes > 0))
        .collect();
    assert!(
        live.is_empty(),
        "{what}: {} of {} are shown with memory that they freed: {live:?}",
        live.len(),
        done.len()
    );
    done.iter().filter(|d| calls(&metrics, d.pid, "cuMemAlloc_v2") < d.allocs).count() as u64
}

/// On perf only memory, because removing the probes of each function takes a tenth of a second.
fn daemon(tier: &str) -> Daemon {
    let features: &[&str] = if tier == "perf" { &["--memleak"] } else { &[] };
    Daemon::with(&[&["-v", "--attach", tier], features].concat())
}

#[bpf_test(tiers, alone)]
fn a_daemon_started_after_programs_shows_no_freed_memory_and_counts_each_as_late(tier: &str) {
    let fixture = Fixture::new();
    // each probe is set in every process before the next one, which takes a while
    let mut idle = fixture.start(IDLE, &["0"]);
    assert!(stopped(&mut idle).iter().all(|done| done.allocs == 0));
    let mut all = fixture.start(BUSY, &[]);
    wait_begun(&mut all);
    let daemon = daemon(tier);
    assert!(attached(&daemon.scrape(), &fixture.library()), "{tier}");
    let late = daemon.scrape().lost("late_attach");
    let most = most_late(&daemon, &fixture, BUSY + IDLE);
    let done = stop(&mut all);
    let missed = assert_nothing_is_live(&daemon, &done, tier);
    println!("{tier}: {missed} of {BUSY} were seen in part, {late} counted as late");
    assert_eq!(missed, BUSY as u64, "{tier}: all of them ran before");
    assert!(((BUSY + IDLE) as u64..=most).contains(&late), "{tier}: {late}");
}

#[bpf_test(tiers, alone)]
fn programs_that_start_together_on_a_new_library_show_no_freed_memory(tier: &str) {
    let fixture = Fixture::new();
    let daemon = daemon(tier);
    let before = daemon.scrape().lost("late_attach");
    let mut all = fixture.start(PROGRAMS, &[]);
    wait_begun(&mut all);
    daemon.until(PROBED_WITHIN, "the library is probed", |m| attached(m, &fixture.library()));
    let done = stop(&mut all);
    let missed = assert_nothing_is_live(&daemon, &done, tier);
    let late = daemon.scrape().lost("late_attach") - before;
    println!("{tier}: {missed} of {PROGRAMS} were seen in part, {late} counted as late");
    let most = most_late(&daemon, &fixture, PROGRAMS);
    assert!((missed..=most).contains(&late), "{tier}: {missed} seen in part, {late} late");
    assert!(late > 0, "{tier}: the first is always late");
}

#[bpf_test(tiers, alone)]
fn programs_that_allocate_and_free_once_during_attach_have_no_live_memory(tier: &str) {
    // a library is new to a daemon only once
    for _ in 0..if tier == "perf" { 1 } else { 3 } {
        let daemon = daemon(tier);
        let fixture = Fixture::new();
        let before = daemon.scrape().lost("late_attach");
        let mut all = fixture.start(PROGRAMS, &["1"]);
        wait_begun(&mut all);
        let done = stopped(&mut all);
        daemon.until(PROBED_WITHIN, "the library is probed", |m| attached(m, &fixture.library()));
        // a last one, whose calls must all be shown before anything is compared
        let mut last =
            Talk::start(Command::new(fixture.folder.path().join("churn")).arg(fixture.library()).arg("1"));
        wait_begun(std::slice::from_mut(&mut last));
        let last = stopped(std::slice::from_mut(&mut last));
        let missed =
            assert_nothing_is_live(&daemon, &[done, last].into_iter().flatten().collect::<Vec<_>>(), tier);
        let late = daemon.scrape().lost("late_attach") - before;
        println!("{tier}: {missed} of {PROGRAMS} were not seen, {late} counted as late");
        let most = most_late(&daemon, &fixture, PROGRAMS);
        assert!((missed..=most).contains(&late), "{tier}: {missed} not seen, {late} late");
    }
}
