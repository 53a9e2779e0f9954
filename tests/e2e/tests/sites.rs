//! Where memory comes from, while a program runs: what a daemon says of every place at every pause is what the program
//! has in its own books.

use gpuprobe_e2e::metrics::Daemon;
use gpuprobe_e2e::process::{PATIENCE, shown};
use gpuprobe_e2e::sites::{self, Books, Figures, OTHER, SITE, SITE_LIVE_ALLOCATIONS, SITE_LIVE_BYTES};
use gpuprobe_e2e::{Talk, alone, needs, places, tiers};
use gpuprobe_standin::Cuda;

/// How many places of a process have series of their own, at most.
const SERIES: usize = 10;

/// Stand-ins that nobody else uses, with one of the programs.
fn folder(program: &str) -> tempfile::TempDir {
    let folder = places::folder();
    let files = ["libcuda.so.1", "libcudart.so.12", program];
    places::copies(&places::standins(Cuda::Cuda12), folder.path(), &files);
    folder
}

/// A daemon that watches them, with as few functions as the tier wants.
fn daemon(folder: &tempfile::TempDir, tier: &str) -> Daemon {
    let features: &[&str] = if tier == "perf" { &["--memleak"] } else { &[] };
    let library = shown(folder.path().join("libcuda.so.1"));
    Daemon::with(&[features, &["--attach", tier, "-p", &library]].concat())
}

/// Calls this with the books of every pause, and at the end of the work, when everything is still held.
fn at_each_pause(program: &mut Talk, pauses: usize, file: &str, mut look: impl FnMut(&Books)) {
    for _ in 0..=pauses {
        program.go_on();
        look(&Books::of(&program.json(), file));
    }
    program.go_on();
    assert_eq!(program.end(), 0, "{}", program.stderr());
}

#[test]
fn what_each_place_holds_is_exact_in_the_metrics_of_a_daemon_on_every_tier() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    for tier in tiers::here() {
        for name in ["leaks", "leaks_driver"] {
            println!("{name}, {tier}");
            let folder = folder(name);
            let daemon = daemon(&folder, tier);
            let args = ["--rounds", "300", "--threads", "4", "--pauses", "3"];
            let (mut program, pid) = sites::waiting(&folder.path().join(name), &args);
            at_each_pause(&mut program, 3, "leaks.cpp", |books| {
                assert_eq!(books.pid, pid);
                let series = sites::assert_metrics(&daemon, books).by(SITE_LIVE_BYTES, pid, SITE);
                let held = series.values().filter(|bytes| **bytes > 0).count();
                assert_eq!(held, books.places.len(), "one series each: {series:?}");
            });
            daemon.until(PATIENCE, "its gauges are gone", |m| m.by(SITE_LIVE_BYTES, pid, SITE).is_empty());
        }
    }
}

#[test]
fn ten_thousand_ways_are_counted_and_the_largest_are_shown() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let folder = folder("leaks_many");
    let daemon = daemon(&folder, tiers::here()[0]);
    let args = ["--rounds", "4", "--threads", "1", "--pauses", "1"];
    let (mut program, pid) = sites::waiting(&folder.path().join("leaks_many"), &args);
    at_each_pause(&mut program, 1, "leaks_many.cpp", |books| {
        let total = |figure: fn(&Figures) -> u64| books.by_name(figure).values().sum::<u64>();
        let metrics = daemon.until_equal(PATIENCE, |metrics, found| {
            let sum = |metric| metrics.by(metric, pid, SITE).values().sum::<u64>();
            found.compare(SITE_LIVE_BYTES, &sum(SITE_LIVE_BYTES), &total(|f| f.live_bytes));
            found.compare(SITE_LIVE_ALLOCATIONS, &sum(SITE_LIVE_ALLOCATIONS), &total(|f| f.live));
        });
        let series = metrics.by(SITE_LIVE_BYTES, pid, SITE);
        assert!(series.len() <= SERIES + 1 && series.contains_key(OTHER), "{series:?}");
        let named = |site: &String| books.places.iter().any(|place| place.is_shown_as(site));
        let shown = series.keys().filter(|site| !["unknown", OTHER].contains(&site.as_str()));
        assert!(shown.clone().all(named) && shown.count() > 0, "{series:?}");
    });
}
