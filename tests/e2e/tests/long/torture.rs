//! All families of memory, in random order, by sixteen threads: the metrics of a daemon at every pause equal the
//! ledger of the program.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::memory_ledger::{self, ALLOCATED, LIVE_ALLOCATIONS, LIVE_BYTES, UNKNOWN_FREES};
use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures, tiers};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

/// The gauges of a killed process must be removed after a second, plus one for a slow machine.
const GONE: Duration = Duration::from_secs(2);
/// The number of tries, because something else may keep the machine busy.
const TRIES: usize = 5;

const CUDA: &str = "libcuda.so.1";
const HIP: &str = "libamdhip64.so.7";

/// Stand-ins that no other test uses, with the torture of this library.
fn folder(library: &str) -> tempfile::TempDir {
    let folder = fixtures::folder();
    if library == HIP {
        fixtures::copies(&fixtures::hip(), folder.path(), &[HIP, "torture"]);
    } else {
        let files = [CUDA, "libcudart.so.12", "torture"];
        fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
    }
    folder
}

/// The torture with these arguments. It waits before its first call.
fn torture(folder: &tempfile::TempDir, args: &[&str]) -> (Talk, u32) {
    let mut command = Command::new(folder.path().join("torture"));
    let mut talk = Talk::start(command.arg("--wait").args(args));
    let pid = pid_of(&talk.json());
    (talk, pid)
}

/// The ledger at the next pause, and that of the child, if one was forked.
fn next(talk: &mut Talk) -> (Value, Option<Value>) {
    let first = talk.json();
    if first["ledger"] == "child" { (talk.json(), Some(first)) } else { (first, None) }
}

/// By the tier: the options of the daemon, and how long the torture is.
fn by_tier(tier: &str) -> (Vec<&str>, &'static str) {
    // on perf removing the probes of each function takes a tenth of a second
    let features: &[&str] = if tier == "perf" { &["--memleak"] } else { &[] };
    // the accounting in BPF is the same code on all tiers: only the best one has the full length
    let operations = if tier == tiers::best() { "500000" } else { "200000" };
    ([features, &["--attach", tier]].concat(), operations)
}

#[bpf_test(tiers, alone)]
fn every_figure_is_exact(tier: &str) {
    let (options, operations) = by_tier(tier);
    assert_exact(CUDA, &options, &["--operations", operations], 20);
}

#[bpf_test(tiers, alone)]
fn every_figure_of_hip_is_exact(tier: &str) {
    let (options, operations) = by_tier(tier);
    assert_exact(HIP, &options, &["--operations", operations], 20);
}

/// The effect of a call is visible to other threads before it returns: addresses, handles and contexts can be reused
/// at once. The stand-in of HIP knows its functions by the names of CUDA.
const DELAYS: &str = "cuMemFree_v2:20,cuMemFreeAsync:20,cuMemFreeHost:20,cuArrayDestroy:20,\
    cuMipmappedArrayDestroy:20,cuMemHostUnregister:20,cuMemRelease:20,cuMemUnmap:20,cuCtxDestroy_v2:200,\
    cuDevicePrimaryCtxRelease_v2:200";

#[bpf_test(alone)]
fn every_figure_is_exact_if_calls_return_late() {
    assert_exact(CUDA, &[], &["--operations", "200000", "--seed", "5", "--delay-after", DELAYS], 4);
}

#[bpf_test(alone)]
fn every_figure_of_hip_is_exact_if_calls_return_late() {
    assert_exact(HIP, &[], &["--operations", "200000", "--seed", "5", "--delay-after", DELAYS], 4);
}

fn assert_exact(library: &str, options: &[&str], args: &[&str], pauses: u64) {
    let folder = folder(library);
    let path = shown(folder.path().join(library));
    let mut daemon = Daemon::with(&[options, &["-p", &path]].concat());
    let pauses_given = pauses.to_string();
    // HIP has no contexts besides those of its devices, which end when a device is reset
    let without: &[&str] = if library == HIP { &["--without", "contexts,primary"] } else { &[] };
    let (mut talk, pid) = torture(&folder, &[&["--pauses", &pauses_given], without, args].concat());
    assert_eq!(daemon.scrape().by(LIVE_BYTES, pid, "kind"), BTreeMap::new(), "nothing was called yet");
    let mut children = 0;
    for pause in 1..=pauses {
        talk.go_on();
        let (ledger, child) = next(&mut talk);
        assert_eq!(number(&ledger["snapshot"]), pause);
        memory_ledger::assert_equal(&daemon, &ledger);
        if let Some(child) = child {
            memory_ledger::assert_equal(&daemon, &child);
            children += 1;
        }
    }
    assert_eq!(children, 1);
    talk.go_on();
    let last = talk.json();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
    assert_was_torture(&last, if library == HIP { pauses / 3 * 10 } else { 1000 });
    memory_ledger::assert_ended(&daemon, PATIENCE, &last);
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
}

/// Checks that the program used every kind of memory, and that more than a number of each ended with a context, so that
/// the comparison means something.
fn assert_was_torture(ledger: &Value, ended: u64) {
    for kind in ["device", "managed", "pinned", "pool", "vmm", "array"] {
        let sums = &ledger["memory"][kind];
        assert!(number(&sums["frees"]) > 1000, "{kind}: {sums}");
        assert!(kind == "vmm" || number(&sums["ended"]) > ended, "{kind}: {sums}");
    }
    for field in ["cross_thread_frees", "failed_frees", "unknown_frees", "null_frees", "failed_allocations"] {
        assert!(number(&ledger[field]) > 500, "{field}");
    }
}

#[bpf_test(alone)]
fn allocations_that_do_not_fit_in_a_small_table_are_counted() {
    const ROOM: u64 = 100;
    let folder = folder(CUDA);
    // without memory that is freed with a context or by other threads' handles: it is not in the table
    let without = ["--without", "contexts,primary,reset,vmm,fork"];
    let args = [&["--operations", "100000", "--pauses", "3"], &without[..]].concat();
    let (mut talk, pid) = torture(&folder, &args);
    let library = shown(folder.path().join(CUDA));
    let room = ROOM.to_string();
    // only this process: other programs would fill so small a table
    let daemon = Daemon::with(&["-d", &pid.to_string(), "-p", &library, "--max-allocations", &room]);
    for _ in 0..3 {
        talk.go_on();
        let ledger = talk.json();
        let live = number(&ledger["live"]);
        assert!(live > ROOM, "{live}");
        // each missing allocation did not fit, and is not one whose free was counted as unknown
        let missing = |m: &Metrics| {
            let reported: u64 = m.by(LIVE_ALLOCATIONS, pid, "kind").values().sum();
            let strangers = m.of(UNKNOWN_FREES, pid).unwrap_or_default();
            assert!(reported <= ROOM, "{reported}");
            [(live + strangers).saturating_sub(reported), m.lost("live_full")]
        };
        let wanted = Some(number(&ledger["allocated_bytes"]));
        daemon.until_equal(PATIENCE, |metrics, found| {
            found.compare(ALLOCATED, &metrics.of(ALLOCATED, pid), &wanted);
            let [missing, lost] = missing(metrics);
            found.compare("what is missing and what was lost", &lost, &missing);
        });
    }
    talk.go_on();
    talk.json();
    assert_eq!(talk.end(), 0, "{}", talk.stderr());
}

#[bpf_test(alone)]
fn the_gauges_of_a_killed_process_end_and_its_totals_stay() {
    let folder = folder(CUDA);
    let daemon = Daemon::start(&folder.path().join(CUDA));
    let took: Vec<Duration> = (0..TRIES)
        .map(|_| time_until_gone(&folder, &daemon))
        .scan(false, |done, took| (!std::mem::replace(done, took < GONE)).then_some(took))
        .collect();
    assert!(took.last().is_some_and(|took| *took < GONE), "the gauges were there for {took:?}");
}

/// The time until the gauges of a torture and its child are removed after the torture was killed.
fn time_until_gone(folder: &tempfile::TempDir, daemon: &Daemon) -> Duration {
    let (mut talk, _) = torture(folder, &["--operations", "50000", "--pauses", "1"]);
    talk.go_on();
    let (ledger, child) = next(&mut talk);
    memory_ledger::assert_equal(daemon, &ledger);
    assert!(number(&ledger["live_bytes"]) > 0, "{ledger}");
    let killed = Instant::now();
    talk.signal(Signal::SIGKILL);
    assert_eq!(talk.end(), 137);
    memory_ledger::assert_ended(daemon, PATIENCE, &ledger);
    // the child sees that its parent has exited, and exits as well
    memory_ledger::assert_ended(daemon, PATIENCE, &child.unwrap());
    killed.elapsed()
}
