//! Fifty programs that are started, killed, forked, executed, stopped and recorded, while their libraries are
//! replaced, a disk is filled, and daemons start and stop. No program may die or print something else; the figures of
//! a daemon are exact, or what is missing is counted; its memory and its descriptors do not grow.
//!
//!     GPUPROBE_CHAOS_SECONDS=600 GPUPROBE_CHAOS_SEED=7 cargo test --workspace --test long chaos:: -- --nocapture

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuprobe_e2e::chaos::daemons::{record_to_disk, replace_libraries, restart_daemons};
use gpuprobe_e2e::chaos::disk::Disk;
use gpuprobe_e2e::chaos::programs::{Commanded, Expected, Running, Slot};
use gpuprobe_e2e::chaos::table::{Count, Resources};
use gpuprobe_e2e::chaos::watcher::{Watcher, compare_shifting, compare_sums};
use gpuprobe_e2e::chaos::{Chaos, PROGRAMS, Plan, SHIFTING_NAME, Stage};
use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::{bpf_test, needs};
use nix::sys::signal::Signal;

/// The maximum growth of the daemon from the middle to the end: two snapshots are stored as text while they are
/// served.
const MOST_GROWTH_KILOBYTES: u64 = 8 << 10;
/// The maximum size of the counters of one process: 100 kB were seen, with 417 processes. The daemon keeps those of
/// exited processes, up to `--max-exited`, so its memory grows until there are as many.
const KILOBYTES_PER_PROCESS: u64 = 192;
/// The maximum growth of descriptors, for helper processes that are started on demand, and for each library of other
/// programs probed meanwhile. One leaked descriptor per replaced library would be more.
const MORE_DESCRIPTORS: u64 = 8;
/// The name of the program that is run under `run`.
const COMMANDED: &str = "chrun";
/// The prefixes of the names of all programs of this test.
const OUR_NAMES: [&str; 3] = ["chx", SHIFTING_NAME, COMMANDED];

#[bpf_test(alone)]
fn programs_and_figures_survive_chaos() {
    let (plan, stage) = (Plan::from_environment(), Stage::build());
    println!("chaos: GPUPROBE_CHAOS_SEED={} GPUPROBE_CHAOS_SECONDS={}", plan.seed, plan.duration.as_secs());
    let Some(disk) = Disk::mount(stage.subfolder("small")) else {
        needs::missing("bpf", "no small disk can be mounted");
        return;
    };
    let command = stage.program(&stage.steady(), "ledger", COMMANDED);
    let expected = Expected::of(&command);
    let library = shown(stage.library());
    let daemon = Daemon::displaying(
        3600,
        &["--max-series-processes", "4096", "--max-exited", "384", "--rescan", "2", "-p", &library],
    );
    stage.show_shifting();
    let chaos = Chaos::new(plan, stage, Watcher::new(daemon));
    chaos.totals.note_resources("start", chaos.resources());
    let commanded = Commanded { chaos: &chaos, expected: &expected, name: COMMANDED, program: command };
    let running = Running::default();
    disturb(&chaos, &commanded, &disk, &running);
    settle(&chaos);
    chaos.totals.print(plan.seed, plan.duration.as_secs());
    let (faults, first) = chaos.totals.faults();
    assert_eq!(faults, 0, "{}", first.join("\n"));
}

/// Runs all threads until the end.
fn disturb(chaos: &Chaos, commanded: &Commanded<'_>, disk: &Disk, running: &Running) {
    let is_done = AtomicBool::new(false);
    // before anything is forked: a child would have the programs open for writing until its exec
    let slots: Vec<_> = (0..PROGRAMS).map(|n| Slot::new(chaos, commanded.expected, running, n)).collect();
    thread::scope(|all| {
        let follower = all.spawn(|| chaos.watcher.follow(|| is_done.load(Ordering::Relaxed)));
        thread::scope(|scope| {
            for mut slot in slots {
                scope.spawn(move || stops_on_panic(chaos, || slot.run()));
            }
            scope.spawn(|| stops_on_panic(chaos, || replace_libraries(chaos)));
            scope.spawn(|| stops_on_panic(chaos, || restart_daemons(chaos)));
            scope.spawn(|| stops_on_panic(chaos, || record_to_disk(chaos, commanded, disk, running)));
            chaos.rest(chaos.plan.duration / 2);
            chaos.totals.note_resources("middle", chaos.resources());
        });
        is_done.store(true, Ordering::Relaxed);
        follower.join().unwrap_or_else(|_| chaos.wrong("the daemon cannot be read any more".to_owned()));
    });
}

/// A thread that panics ends the test, and its message is a fault.
fn stops_on_panic(chaos: &Chaos, body: impl FnOnce()) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    if let Err(reason) = outcome {
        let text = reason.downcast_ref::<String>().cloned();
        chaos.wrong(text.unwrap_or_else(|| "a thread of the test panicked".to_owned()));
        chaos.stop();
    }
}

/// Checks after all programs have exited.
fn settle(chaos: &Chaos) {
    compare_sums(chaos, Slot::is_exact);
    compare_shifting(chaos);
    let counted: u64 = chaos.ledgers.by_name().values().flat_map(|sums| sums.calls.values()).sum();
    chaos.totals.add(Count::CallsCounted, counted);
    let look = chaos.watcher.after(Instant::now());
    let is_ours = |name: &str| OUR_NAMES.iter().any(|ours| name.starts_with(ours));
    let with_memory: Vec<_> = look.with_live_memory().filter(|(name, _)| is_ours(name)).collect();
    if !with_memory.is_empty() {
        chaos.wrong(format!("programs that have ended are shown with live memory: {with_memory:?}"));
    }
    let (short, late) = (chaos.totals.get(Count::ProgramsShort), look.late());
    if short > late {
        chaos.wrong(format!("{short} programs had calls before their probes, and {late} are counted"));
    }
    chaos.totals.note_lost(look.lost.clone());
    compare_resources(chaos);
    let mut daemon = chaos.watcher.daemon();
    daemon.talk.signal(Signal::SIGTERM);
    let status = daemon.talk.end();
    if status != 0 {
        chaos.wrong(format!("the daemon ended with {status}: {}", daemon.talk.stderr()));
    }
}

/// Checks the growth of memory since the middle of the test, and of descriptors since the start.
fn compare_resources(chaos: &Chaos) {
    let (start, middle) = (chaos.totals.resources("start"), chaos.totals.resources("middle"));
    let most =
        |now: Resources| start.descriptors + MORE_DESCRIPTORS * (1 + now.others.saturating_sub(start.others));
    let most_kilobytes = |now: Resources| {
        let more = now.processes.saturating_sub(middle.processes);
        middle.resident_kilobytes + MOST_GROWTH_KILOBYTES + more * KILOBYTES_PER_PROCESS
    };
    let begun = Instant::now();
    // replaced libraries are released at the next rescan
    let end = loop {
        let now = chaos.resources();
        let is_flat = now.descriptors <= most(now) && now.resident_kilobytes <= most_kilobytes(now);
        if is_flat || begun.elapsed() > PATIENCE {
            break now;
        }
        thread::sleep(Duration::from_millis(500));
    };
    chaos.totals.note_resources("end", end);
    if end.descriptors > most(end) {
        chaos
            .wrong(format!("{} descriptors at the start, {} at the end", start.descriptors, end.descriptors));
    }
    if end.resident_kilobytes > most_kilobytes(end) {
        chaos.wrong(format!(
            "{} kB with {} processes in the middle, {} kB with {} at the end",
            middle.resident_kilobytes, middle.processes, end.resident_kilobytes, end.processes
        ));
    }
}
