//! Many short processes under one daemon: all counted, and nothing of them stays.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{finish, shown, until};
use gpuprobe_e2e::recording::counts_of;
use gpuprobe_e2e::{needs, places};
use gpuprobe_event::{Api, Class, catalogue};
use gpuprobe_standin::Cuda;
use nix::sys::signal::Signal;
use serde_json::Value;

const PROCESSES: u64 = 1000;
const CALLS: &str = "gpuprobe_calls_total";
/// What counters of a thousand ended processes, kept for five minutes, may take.
const FIRST_THOUSAND_KIB: u64 = 48 << 10;
/// What another thousand may add.
const SECOND_THOUSAND_KIB: u64 = 20 << 10;

/// Everything that was lost, but for what is about the programs of others.
fn lost(metrics: &Metrics) -> u64 {
    let others = ["late_attach", "gone_before_attach"];
    let losses = metrics.samples("gpuprobe_events_lost_total");
    losses.filter(|(l, _)| !others.contains(&l["cause"].as_str())).map(|(_, n)| n).sum()
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or_else(|| panic!("no VmRSS: {status}"))
}

fn links_of(pid: u32) -> BTreeSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten();
    let link = |text: String| text.lines().find_map(|l| l.strip_prefix("link_id:")?.trim().parse().ok());
    entries.filter_map(|entry| link(fs::read_to_string(entry.ok()?.path()).ok()?)).collect()
}

/// The links that the kernel has, by its own tool; nothing where that is not there.
fn links() -> Option<BTreeSet<u64>> {
    let output = Command::new("bpftool").args(["-j", "link"]).output().ok()?;
    let links: Vec<Value> = serde_json::from_slice(&output.stdout).ok()?;
    Some(links.iter().filter_map(|l| l["id"].as_u64()).collect())
}

/// How many of the calls that a program printed are counted by a daemon.
fn counted(printed: &Value) -> u64 {
    use Class::{Alloc, Context, Free, Launch, Memcpy, Module, Sync};
    let is_counted = |name: &str| {
        let f = catalogue().lookup(Api::Driver, None, name).unwrap_or_else(|| panic!("{name}"));
        !f.hot && matches!(f.class, Alloc | Free | Memcpy | Launch | Sync | Context | Module)
    };
    counts_of(&printed["calls"]).iter().filter(|(name, _)| is_counted(name)).map(|(_, n)| n).sum()
}

fn calls(metrics: &Metrics) -> u64 {
    metrics.samples(CALLS).filter(|(l, _)| l["process"] == "driver_only").map(|(_, n)| n).sum()
}

#[test]
fn a_thousand_short_processes_are_counted_exactly_and_leave_nothing() {
    if !needs::bpf() {
        return;
    }
    let folder = places::folder();
    places::copies(&places::standins(Cuda::Cuda12), folder.path(), &["libcuda.so.1", "driver_only"]);
    let mut daemon = Daemon::start(&folder.path().join("libcuda.so.1"));
    let pid = daemon.talk.pid();
    // one, so that what is made once is made
    let program = shown(folder.path().join("driver_only"));
    let each = counted(&finish(&mut Command::new(&program)).json()[0]);
    assert!(each > 5);
    daemon.until(Duration::from_secs(5), "the first", |m| calls(m) == each);
    let (files, held) = (open_files(pid), links_of(pid));
    assert!(!held.is_empty(), "links");

    let mut resident = vec![rss_kib(pid)];
    for thousand in 1..=2 {
        let script =
            format!("i=0; while [ $i -lt {PROCESSES} ]; do {program} >/dev/null || exit 1; i=$((i+1)); done");
        let start = Instant::now();
        let finished = finish(Command::new("sh").args(["-c", &script]));
        assert_eq!(finished.status, 0, "{}", finished.stderr);
        let expected = (1 + thousand * PROCESSES) * each;
        let all = |m: &Metrics| calls(m) + lost(m) >= expected;
        let metrics = daemon.until(Duration::from_secs(10), "all calls", all);
        // counters of ended processes are kept for five minutes: a table that is full says so, to the call
        assert_eq!(calls(&metrics) + lost(&metrics), expected, "calls, with those told as lost");
        assert!(
            thousand > 1 || lost(&metrics) == 0,
            "the first thousand are all counted: {}",
            lost(&metrics)
        );
        println!(
            "{PROCESSES} processes in {:?}, {} KiB, {} lost",
            start.elapsed(),
            rss_kib(pid),
            lost(&metrics)
        );
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        // the connection of a scrape, or a file that is being read, may be among them for a moment
        let flat = || (open_files(pid) <= files).then_some(());
        until(Duration::from_secs(5), &format!("open files are at most {files} again"), flat);
        assert_eq!(links_of(pid), held, "links");
        resident.push(rss_kib(pid));
    }
    assert!(resident[1] - resident[0] < FIRST_THOUSAND_KIB, "{resident:?}");
    assert!(resident[2].saturating_sub(resident[1]) < SECOND_THOUSAND_KIB, "{resident:?}");

    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    match links() {
        Some(links) => assert!(links.is_disjoint(&held), "left behind: {held:?} of {links:?}"),
        None => _ = needs::missing("bpftool", "there is no bpftool to look for links with"),
    }
}
