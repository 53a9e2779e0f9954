//! The metrics of the daemon while programs run and after they exit, compared with their ledgers.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use gpuprobe_e2e::metrics::{Daemon, Differences, Metrics};
use gpuprobe_e2e::process::{PATIENCE, shown, until};
use gpuprobe_e2e::recording::{counts_of, number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures, tiers};
use gpuprobe_event::{Api, Class, LossCause, catalogue};
use gpuprobe_standin::{Built, Cuda};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIVE: &str = "gpuprobe_memory_live_bytes";
const LIVE_ALLOCATIONS: &str = "gpuprobe_memory_live_allocations";
const CALLS: &str = "gpuprobe_calls_total";

/// The classes that a daemon counts by default, and with `--memleak`.
const ALL: [Class; 6] = [Class::Alloc, Class::Free, Class::Memcpy, Class::Memset, Class::Launch, Class::Sync];
const MEMORY: [Class; 2] = [Class::Alloc, Class::Free];

/// Stand-ins that no other test uses, and a daemon that watches them.
fn watched(workload: &str) -> (tempfile::TempDir, Daemon, Command) {
    watched_with(&[], workload)
}

fn watched_with(options: &[&str], workload: &str) -> (tempfile::TempDir, Daemon, Command) {
    let folder = fixtures::folder();
    let built: Built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", workload]);
    let library = shown(folder.path().join("libcuda.so.1"));
    let daemon = Daemon::with(&[options, &["--addresses", "-p", &library]].concat());
    let command = Command::new(folder.path().join(workload));
    (folder, daemon, command)
}

/// The CUDA driver calls that a daemon counts.
fn counted(ledger: &Value, classes: &[Class]) -> BTreeMap<String, u64> {
    let mut calls = counts_of(&ledger["driver_calls"]);
    calls.retain(|name, _| {
        let f = catalogue().lookup(Api::Driver, None, name).unwrap_or_else(|| panic!("{name}"));
        !f.hot && classes.contains(&f.class)
    });
    calls
}

fn memory(ledger: &Value, field: &str) -> BTreeMap<String, u64> {
    let kinds = ledger["memory"].as_object().unwrap();
    kinds.iter().map(|(kind, m)| (kind.clone(), number(&m[field]))).collect()
}

fn sum_of(ledger: &Value, field: &str) -> u64 {
    memory(ledger, field).values().sum()
}

/// Kinds without any allocation need not be there.
fn of_kinds(metrics: &Metrics, name: &str, pid: u32) -> BTreeMap<String, u64> {
    let mut values = metrics.by(name, pid, "kind");
    values.retain(|kind, n| *n > 0 || ["device", "managed", "pinned", "pool"].contains(&kind.as_str()));
    values
}

fn compare_counters(metrics: &Metrics, ledger: &Value, classes: &[Class], found: &mut Differences) {
    let pid = pid_of(ledger);
    found.compare("calls", &metrics.by(CALLS, pid, "function"), &counted(ledger, classes));
    for (name, field) in [
        ("gpuprobe_memory_allocated_bytes_total", "allocated_bytes"),
        ("gpuprobe_memory_freed_bytes_total", "freed_bytes"),
    ] {
        found.compare(name, &metrics.of(name, pid), &Some(sum_of(ledger, field)));
    }
    let alone = metrics.pids(CALLS) == [pid];
    for (labels, lost) in metrics.samples("gpuprobe_events_lost_total") {
        // a daemon watches the whole host, so these may come from the programs of other tests
        let cause = labels["cause"].as_str();
        let about_others = ["late_attach", "exited_before_attach"].contains(&cause)
            || (!alone && cause == "unmatched_return");
        // threads at full speed may send more stacks than fit in the ring: that loses call sites, not figures
        let about_call_sites =
            [LossCause::LostStack, LossCause::ShortenedStack].map(LossCause::as_str).contains(&cause);
        assert!(lost == 0 || about_others || about_call_sites, "{labels:?}: {lost}");
    }
}

/// Waits until the metrics of a paused program equal its ledger.
fn assert_snapshot(daemon: &Daemon, ledger: &Value, classes: &[Class]) {
    let pid = pid_of(ledger);
    daemon.until_equal(PATIENCE, |metrics, found| {
        found.compare("live bytes", &of_kinds(metrics, LIVE, pid), &memory(ledger, "live_bytes"));
        let live = of_kinds(metrics, LIVE_ALLOCATIONS, pid);
        found.compare("live allocations", &live, &memory(ledger, "live"));
        compare_counters(metrics, ledger, classes, found);
    });
}

/// The same for an exited program: its gauges are removed, its counters stay.
fn assert_after_its_end(daemon: &Daemon, ledger: &Value, classes: &[Class]) {
    daemon.until_equal(PATIENCE, |metrics, found| {
        for name in [LIVE, LIVE_ALLOCATIONS] {
            found.compare(name, &metrics.by(name, pid_of(ledger), "kind"), &BTreeMap::new());
        }
        compare_counters(metrics, ledger, classes, found);
    });
}

#[bpf_test(tiers, alone)]
fn memory_and_calls_are_exact_while_a_program_runs_and_after_it_ends(tier: &str) {
    // on perf removing the probes of each function takes a fifth of a second
    let (options, classes): (&[&str], &[Class]) =
        if tier == "perf" { (&["--memleak"], &MEMORY) } else { (&[], &ALL) };
    let options = [options, &["--attach", tier]].concat();
    let pauses = if tier == tiers::best() { 3 } else { 1 };
    let mut daemon = assert_exact(&options, classes, pauses);
    let start = Instant::now();
    daemon.talk.signal(Signal::SIGTERM);
    assert_eq!(daemon.talk.end(), 0, "{}", daemon.talk.stderr());
    let limit = Duration::from_secs(if tier == "perf" { 60 } else { 5 });
    assert!(start.elapsed() < limit, "it took {:?} to end", start.elapsed());
}

/// Checks a daemon with these options, which counts these classes, from the first call of a ledger to its exit.
fn assert_exact(options: &[&str], classes: &[Class], pauses: u64) -> Daemon {
    let (_folder, mut daemon, mut command) = watched_with(options, "ledger");
    let words = ["--wait", "--pauses", &pauses.to_string(), "--threads", "8", "--calls", "40000"];
    let mut ledger = Talk::start(command.args(words));
    let pid = pid_of(&ledger.json());
    assert_eq!(daemon.scrape().by(LIVE, pid, "kind"), BTreeMap::new(), "nothing was called yet");
    for pause in 1..=pauses {
        ledger.go_on();
        let printed = ledger.json();
        assert_eq!(number(&printed["snapshot"]), pause);
        assert_snapshot(&daemon, &printed, classes);
        if pause == pauses {
            assert_display(&mut daemon, &printed, classes);
        }
    }
    ledger.go_on();
    let last = ledger.json();
    assert_eq!(ledger.end(), 0);
    assert_after_its_end(&daemon, &last, classes);
    daemon
}

/// One block of the classic display that began after this call.
fn block(daemon: &mut Daemon) -> Vec<String> {
    const RULE: &str = "========================";
    daemon.talk.printed();
    let mut lines = Vec::new();
    // the rest of an earlier block, then a complete one
    until(PATIENCE, "the display", || {
        lines.extend(daemon.talk.printed());
        let rules: Vec<_> = (0..lines.len()).filter(|i| lines[*i] == RULE).collect();
        let whole = rules.windows(2).rev().find(|w| w[1] - w[0] > 1)?;
        Some(lines[whole[0]..=whole[1]].to_vec())
    })
}

fn assert_display(daemon: &mut Daemon, ledger: &Value, classes: &[Class]) {
    let lines = block(daemon);
    let pid = pid_of(ledger);
    let value = |name: &str| {
        let line =
            lines.iter().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {lines:?}"));
        line.trim().parse::<u64>().unwrap()
    };
    let header = format!("process {pid}");
    // the container of the tests may follow
    let is_header = |l: &&String| l.split(" [").next() == Some(&header);
    let map = lines.iter().skip_while(|l| !is_header(l)).skip(1).take_while(|l| l.starts_with('\t'));
    let sizes: Vec<u64> = map
        .map(|l| l.split(": ").nth(1).and_then(|s| s.strip_suffix(" Bytes")?.parse().ok()).unwrap())
        .collect();
    assert_eq!(sizes.iter().sum::<u64>(), sum_of(ledger, "live_bytes"), "{lines:?}");
    let live = sizes.iter().filter(|s| **s > 0).count() as u64;
    assert_eq!(live, sum_of(ledger, "live"));
    // calls are displayed with all features, not with memory only
    let listed = if classes == ALL { counted(ledger, classes) } else { BTreeMap::new() };
    for (function, calls) in listed {
        let line = lines.iter().find(|l| l.starts_with(&format!("\t{function}: {calls} call")));
        assert!(line.is_some(), "{function}: {calls} in {lines:?}");
    }
    // the totals are sums over all processes: exact if this is the only one
    if daemon.scrape().pids(CALLS) == [pid] {
        assert_eq!(value("num_successful_mallocs:"), sum_of(ledger, "allocations"));
        assert_eq!(value("num_failed_mallocs:"), number(&ledger["failed_allocations"]));
        assert_eq!(value("num_successful_frees:"), sum_of(ledger, "frees"));
        assert_eq!(value("num_failed_frees:"), number(&ledger["failed_frees"]));
    }
}

#[bpf_test(alone)]
fn the_gauges_of_a_killed_process_end() {
    let (_folder, daemon, mut command) = watched("crash");
    let mut crash = Talk::start(&mut command);
    let printed = crash.json();
    let pid = pid_of(&printed);
    let is_live =
        |m: &Metrics| m.by(LIVE, pid, "kind").get("device") == Some(&number(&printed["live_bytes"]));
    let three = |m: &Metrics| m.by(LIVE_ALLOCATIONS, pid, "kind").get("device") == Some(&3);
    daemon.until(PATIENCE, "its live memory", |m| is_live(m) && three(m));
    crash.signal(Signal::SIGKILL);
    assert_eq!(crash.end(), 137);
    let metrics = daemon.until(PATIENCE, "the gauges are removed", |m| m.by(LIVE, pid, "kind").is_empty());
    assert_eq!(metrics.by(LIVE_ALLOCATIONS, pid, "kind"), BTreeMap::new());
    let calls = metrics.by(CALLS, pid, "function");
    assert_eq!(calls, [("cuMemAlloc_v2".to_owned(), 3)].into(), "its counters stay");
}

#[bpf_test(alone)]
fn the_probes_of_a_daemon_are_reported_and_an_earlier_process_is_seen() {
    let folder = fixtures::folder();
    fixtures::copies(
        &fixtures::standins(Cuda::Cuda12),
        folder.path(),
        &["libcuda.so.1", "libcudart.so.12", "ledger"],
    );
    // without a path the daemon finds the library in the process that has mapped it
    let mut command = Command::new(folder.path().join("ledger"));
    let mut ledger = Talk::start(command.args(["--pauses", "2", "--threads", "2", "--calls", "3000"]));
    let first = ledger.json();
    let daemon = Daemon::start(&fixtures::standins(Cuda::Cuda12).libcuda);
    let library = folder.path().join("libcuda.so.1");
    let attached = |m: &Metrics| {
        m.samples("gpuprobe_probes")
            .any(|(l, n)| n > 0 && l["library"] == library.to_string_lossy() && l["state"] == "attached")
    };
    daemon.until(PATIENCE, "the library of a running process is probed", attached);
    ledger.go_on();
    let second = ledger.json();
    let since =
        |name: &str| counted(&second, &ALL)[name] - counted(&first, &ALL).get(name).copied().unwrap_or(0);
    let pid = pid_of(&first);
    let launches = since("cuLaunchKernel");
    assert!(launches > 0);
    let allocations = since("cuMemAlloc_v2");
    daemon.until(PATIENCE, "the calls since", |m| {
        let calls = m.by(CALLS, pid, "function");
        [calls.get("cuLaunchKernel"), calls.get("cuMemAlloc_v2")] == [Some(&launches), Some(&allocations)]
    });
    ledger.go_on();
    assert_eq!(ledger.end(), 0);
}

#[bpf_test(alone)]
fn children_and_executed_programs_have_names_and_their_gauges_end_with_them() {
    let (_folder, daemon, mut command) = watched("forker");
    let mut forker = Talk::start(command.arg("3"));
    assert_eq!(forker.end(), 0, "{}", forker.stderr());
    assert_family(&daemon, &mut forker);
}

#[bpf_test(alone)]
fn a_daemon_for_one_process_follows_its_children_and_no_others() {
    let folder = fixtures::folder();
    let built = fixtures::standins(Cuda::Cuda12);
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "forker", "constructor"]);
    let at = |name: &str| shown(folder.path().join(name));
    let mut shell = Talk::start(Command::new("sh").args(["-c", &format!("read line; {} 3", at("forker"))]));
    let pid = shell.pid().to_string();
    let daemon = Daemon::with(&["-d", &pid, "-p", &at("libcuda.so.1")]);
    let mut stranger = Talk::start(&mut Command::new(at("constructor")));
    let stranger_pid = pid_of(&stranger.json());
    assert_eq!(stranger.end(), 0);
    shell.go_on();
    assert_eq!(shell.end(), 0, "{}", shell.stderr());
    assert_family(&daemon, &mut shell);
    assert_eq!(daemon.scrape().by(CALLS, stranger_pid, "function"), BTreeMap::new(), "a stranger");
}

/// Checks the metrics of `forker 3` after all of its processes have exited.
fn assert_family(daemon: &Daemon, forker: &mut Talk) {
    let printed: Vec<Value> = (0..5).map(|_| forker.json()).collect();
    let mut calls: BTreeMap<u32, u64> = BTreeMap::new();
    for line in &printed {
        *calls.entry(pid_of(line)).or_default() += counts_of(&line["calls"]).values().sum::<u64>();
    }
    let all =
        |m: &Metrics| calls.iter().all(|(pid, n)| m.by(CALLS, *pid, "function").values().sum::<u64>() == *n);
    daemon.until(PATIENCE, "the calls of every process", all);
    let ours = |m: &Metrics| calls.keys().all(|pid| m.by(LIVE, *pid, "kind").is_empty());
    let metrics = daemon.until(PATIENCE, "no gauges are left", ours);
    for pid in calls.keys() {
        let named = metrics.samples(CALLS).filter(|(l, _)| l["pid"] == pid.to_string());
        let names: BTreeSet<_> = named.map(|(l, _)| l["process"].clone()).collect();
        // a program executed through /proc/self/exe is named after that
        assert!(names.iter().all(|n| n == "forker" || n == "exe"), "process {pid}: {names:?}");
    }
}

/// The metrics with series, without those about the host and gpuprobe itself.
fn families(metrics: &Metrics) -> BTreeSet<String> {
    const OF_ALL: [&str; 13] = [
        "calls_total",
        "call_seconds_total",
        "call_duration_seconds",
        "errors_total",
        "events_lost_total",
        "probes",
        "libraries_skipped_total",
        "build_info",
        "gpu_info",
        "nvml_up",
        "snapshot_timestamp_seconds",
        "http_requests_total",
        "http_connections_refused_total",
    ];
    let named = |line: &str| line.strip_prefix("# TYPE gpuprobe_")?.split(' ').next().map(str::to_owned);
    metrics.text.lines().filter_map(named).filter(|name| !OF_ALL.contains(&name.as_str())).collect()
}

#[bpf_test(alone)]
fn one_feature_has_its_own_metrics_and_no_others() {
    let copies = ["copies_total", "copy_bytes_total", "copy_host_bytes_total", "copy_seconds_total"];
    let launches = [
        "kernel_launches_total",
        "kernel_launches_without_return_total",
        "stream_gap_longest_seconds",
        "stream_gap_seconds",
        "stream_gaps_total",
        "stream_idle_seconds_total",
    ];
    let memory = [
        "allocated_bytes_total",
        "freed_with_context_allocations_total",
        "freed_with_context_bytes_total",
        "freed_bytes_total",
    ]
    .iter()
    .chain(&["leak_suspects", "live_allocations", "live_bytes", "peak_bytes", "replaced_total"])
    .chain(&["site_live_allocations", "site_live_bytes", "sites_not_followed", "unknown_frees_total"]);
    let memory: Vec<String> = memory.map(|name| format!("memory_{name}")).collect();
    let memory: Vec<&str> = memory.iter().map(String::as_str).collect();
    let features = [
        ("--bandwidth-util", &copies[..], "copies_total"),
        ("--cudatrace", &launches, "kernel_launches_total"),
        ("--memleak", &memory, "memory_site_live_bytes"),
    ];
    for (option, expected, first) in features {
        let (_folder, daemon, mut command) = watched_with(&[option], "ledger");
        let mut ledger =
            Talk::start(command.args(["--wait", "--pauses", "1", "--threads", "1", "--calls", "3000"]));
        let pid = pid_of(&ledger.json());
        ledger.go_on();
        let classes = match option {
            "--bandwidth-util" => &[Class::Memcpy, Class::Memset][..],
            "--cudatrace" => &[Class::Launch],
            _ => &MEMORY,
        };
        let printed = ledger.json();
        daemon.until(PATIENCE, first, |m| m.text.contains(&format!("gpuprobe_{first}{{")));
        let all = |m: &Metrics| m.by(CALLS, pid, "function") == counted(&printed, classes);
        let metrics = daemon.until(PATIENCE, "its calls and no others", all);
        let expected: BTreeSet<String> = expected.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(families(&metrics), expected, "{option}");
        assert_eq!(ledger.finish().0, 0, "{}", ledger.stderr());
    }
}

#[bpf_test(tiers, alone)]
fn entry_counts_are_exact_and_have_no_times(tier: &str) {
    let globs = ["--calls-only", "cuLaunchKernel*", "--calls-only", "cuCtxGetDevice*"];
    let options = [&["--memleak", "--attach", tier][..], &globs].concat();
    let (_folder, daemon, mut command) = watched_with(&options, "ledger");
    let mut ledger = Talk::start(command.args(["--pauses", "1", "--threads", "4", "--calls", "20000"]));
    let printed = ledger.json();
    let pid = pid_of(&printed);
    let mut tallied = counts_of(&printed["driver_calls"]);
    tallied.retain(|name, _| name.starts_with("cuLaunchKernel") || name.starts_with("cuCtxGetDevice"));
    assert!(tallied.values().sum::<u64>() > 100, "{tallied:?}");
    let mut expected = counted(&printed, &MEMORY);
    let timed: BTreeSet<_> = expected.keys().cloned().collect();
    expected.extend(tallied);
    let all = |m: &Metrics| m.by(CALLS, pid, "function") == expected;
    let metrics = daemon.until(PATIENCE, "all calls", all);
    let times = metrics.values("gpuprobe_call_seconds_total").filter(|(l, _)| l["pid"] == pid.to_string());
    let with_times: BTreeSet<_> = times.map(|(labels, _)| labels["function"].clone()).collect();
    assert_eq!(with_times, timed, "{tier}");
    assert_eq!(ledger.finish().0, 0, "{}", ledger.stderr());
}
