//! Call sites of allocations while a program runs: what a daemon and `gpuprobe memory` report at every pause equals
//! the ledger of the program.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, gpuprobe, shown};
use gpuprobe_e2e::site_ledger::{
    self, Figures, OTHER, SITE, SITE_LIVE_ALLOCATIONS, SITE_LIVE_BYTES, SiteLedger, Watching,
};
use gpuprobe_e2e::{Talk, bpf_test, fixtures, tiers};
use gpuprobe_standin::Cuda;

/// The maximum of call sites of a process with series of their own.
const SERIES: usize = 10;

/// Stand-ins that no other test uses, with one of the programs.
fn folder(program: &str) -> tempfile::TempDir {
    let folder = fixtures::folder();
    let files = ["libcuda.so.1", "libcudart.so.12", program];
    fixtures::copies(&fixtures::standins(Cuda::Cuda12), folder.path(), &files);
    folder
}

/// A daemon that watches them, with few functions on the tiers where each is expensive.
fn daemon(folder: &tempfile::TempDir, tier: &str) -> Daemon {
    let features: &[&str] = if tier == "perf" { &["--memleak"] } else { &[] };
    let library = shown(folder.path().join("libcuda.so.1"));
    Daemon::with(&[features, &["--attach", tier, "-p", &library]].concat())
}

/// The programs to run on a tier. The one that uses only the CUDA driver runs on one tier, to save time.
fn programs(tier: &str) -> &'static [&'static str] {
    if tier == tiers::best() { &["leaks", "leaks_driver"] } else { &["leaks"] }
}

/// Calls this with the ledger of every pause, and at the end, when everything is still live.
fn at_each_pause(program: &mut Talk, pauses: usize, file: &str, mut look: impl FnMut(&SiteLedger)) {
    for _ in 0..=pauses {
        program.go_on();
        look(&SiteLedger::of(&program.json(), file));
    }
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

#[bpf_test(tiers, alone)]
fn live_bytes_by_call_site_are_exact_in_the_metrics_of_a_daemon(tier: &str) {
    for name in programs(tier) {
        println!("{name}, {tier}");
        let folder = folder(name);
        let daemon = daemon(&folder, tier);
        let args = ["--rounds", "300", "--threads", "4", "--pauses", "3"];
        let (mut program, pid) = site_ledger::waiting(&folder.path().join(name), &args);
        at_each_pause(&mut program, 3, "leaks.cpp", |ledger| {
            assert_eq!(ledger.pid, pid);
            let series = site_ledger::assert_metrics(&daemon, ledger).by(SITE_LIVE_BYTES, pid, SITE);
            let with_live_bytes = series.values().filter(|bytes| **bytes > 0).count();
            assert_eq!(with_live_bytes, ledger.sites.len(), "one series each: {series:?}");
        });
        daemon.until(PATIENCE, "its gauges are removed", |m| m.by(SITE_LIVE_BYTES, pid, SITE).is_empty());
    }
}

#[bpf_test(tiers, alone)]
fn memory_reports_allocations_and_frees_of_each_call_site(tier: &str) {
    for name in programs(tier) {
        println!("{name}, {tier}");
        let folder = folder(name);
        let args = ["--rounds", "200", "--threads", "3", "--pauses", "2"];
        let (mut program, _) = site_ledger::waiting(&folder.path().join(name), &args);
        let mut watching = Watching::start(&["--attach", tier]);
        at_each_pause(&mut program, 2, "leaks.cpp", |ledger| drop(watching.assert_equal(ledger)));
    }
}

/// The stack is larger than the first copy of it, differs from call to call, and ends at an unmapped page. Two stacks
/// of one function differ a hundred frames away.
#[bpf_test(alone)]
fn deep_stacks_differ_by_their_outermost_function() {
    let folder = folder("leaks_deep");
    let args = ["--rounds", "150", "--threads", "4", "--pauses", "1"];
    let (mut program, pid) = site_ledger::waiting(&folder.path().join("leaks_deep"), &args);
    // until a stack is known, each allocation sends a copy of it; while a quarter of the ring buffer waits to be read, copies are
    // cut, and cut copies of these stacks are the same
    let mut watching = Watching::start(&["--buffer", "256"]);
    at_each_pause(&mut program, 1, "leaks_deep.cpp", |ledger| {
        let report = watching.assert_equal(ledger);
        let (reported, other) = site_ledger::reported(&report, pid);
        assert_eq!((reported.len(), other), (3, Figures::default()), "each call site once");
        let deepest = reported.iter().map(|site| site.stack.len()).max();
        assert!(deepest.is_some_and(|frames| frames > 100), "{deepest:?}");
    });
}

/// Another tracer has return probes in the runtime, between the program and the CUDA driver that the daemon watches.
#[bpf_test(alone)]
fn return_addresses_replaced_by_another_tracer_are_resolved() {
    let folder = folder("leaks");
    let daemon = daemon(&folder, tiers::best());
    let args = ["--rounds", "200", "--threads", "3", "--pauses", "1"];
    let (mut program, pid) = site_ledger::waiting(&folder.path().join("leaks"), &args);
    let mut other = gpuprobe(&["trace", "-d", &pid.to_string(), "-e", "cudaMalloc"]);
    let mut other = other.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(other.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("tracing"), "{said}");
    at_each_pause(&mut program, 1, "leaks.cpp", |ledger| drop(site_ledger::assert_metrics(&daemon, ledger)));
    assert!(other.wait().unwrap().success(), "it ends with the process");
}

#[bpf_test(alone)]
fn ten_thousand_stacks_are_counted_and_the_largest_are_shown() {
    let folder = folder("leaks_many");
    let daemon = daemon(&folder, tiers::best());
    let args = ["--rounds", "4", "--threads", "1", "--pauses", "1"];
    let (mut program, pid) = site_ledger::waiting(&folder.path().join("leaks_many"), &args);
    at_each_pause(&mut program, 1, "leaks_many.cpp", |ledger| {
        let total = |figure: fn(&Figures) -> u64| ledger.by_name(figure).values().sum::<u64>();
        daemon.until_equal(PATIENCE, |metrics, found| {
            let sum = |metric| metrics.by(metric, pid, SITE).values().sum::<u64>();
            found.compare(SITE_LIVE_BYTES, &sum(SITE_LIVE_BYTES), &total(|f| f.live_bytes));
            found.compare(SITE_LIVE_ALLOCATIONS, &sum(SITE_LIVE_ALLOCATIONS), &total(|f| f.live));
        });
        let shown = |site: &&String| !["unknown", OTHER].contains(&site.as_str());
        // stacks are symbolized one at a time
        let metrics = daemon.until(PATIENCE, "some have names", |metrics| {
            metrics.by(SITE_LIVE_BYTES, pid, SITE).keys().any(|site| shown(&site))
        });
        let series = metrics.by(SITE_LIVE_BYTES, pid, SITE);
        assert!(series.len() <= SERIES + 1 && series.contains_key(OTHER), "{series:?}");
        let named = |label: &String| ledger.sites.iter().any(|site| site.is_shown_as(label));
        assert!(series.keys().filter(shown).all(named), "{series:?}");
    });
}
