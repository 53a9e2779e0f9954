//! Copies in the metrics of a daemon and in a recording, compared with the ledger of a program that calls every copy
//! function.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{Run, finish, shown};
use gpuprobe_e2e::recording::{Counts, Recording, counts_of, pid_of};
use gpuprobe_e2e::tracing::Private;
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Api, Call, Class, Function, catalogue};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// Time for a fresh snapshot on a slow machine.
const FRESH: Duration = Duration::from_secs(20);

const BYTES: &str = "gpuprobe_copy_bytes_total";
const COPIES: &str = "gpuprobe_copies_total";
const HOST: &str = "gpuprobe_copy_host_bytes_total";

type Labels = BTreeMap<String, String>;

/// Sums by two of their labels, without zeros.
fn by(samples: impl Iterator<Item = (Labels, u64)>, labels: [&str; 2]) -> Counts {
    let mut sums = Counts::new();
    for (l, n) in samples.filter(|(_, n)| *n > 0) {
        *sums.entry(format!("{}/{}", l[labels[0]], l[labels[1]])).or_default() += n;
    }
    sums
}

fn without_zero(counts: &Value) -> Counts {
    counts_of(counts).into_iter().filter(|(_, n)| *n > 0).collect()
}

/// A program that calls every function of one library which copies or fills.
struct Workload {
    cuda: Cuda,
    api: Api,
}

impl Workload {
    const DRIVER: Self = Self { cuda: Cuda::Cuda12, api: Api::Driver };

    fn runtime(cuda: Cuda) -> Self {
        Self { cuda, api: Api::Runtime }
    }

    fn name(&self) -> &'static str {
        if self.api == Api::Driver { "copies" } else { "copies_runtime" }
    }

    fn functions(&self) -> BTreeSet<String> {
        let version = if self.api == Api::Driver { "13.4" } else { self.cuda.version() };
        let moves = |f: &&Function| matches!(f.class, Class::Memcpy | Class::Memset);
        catalogue().exports(self.api, version).filter(moves).map(|f| f.name.to_owned()).collect()
    }

    /// Compares the figures of a daemon, which probes only the CUDA driver, while the program runs and after its
    /// exit.
    fn is_counted(&self, tier: &str) {
        println!("{} of {}, {tier}", self.name(), self.cuda.version());
        let private = Private::new(self.name(), self.cuda);
        let library = shown(private.folder.path().join("libcuda.so.1"));
        let options = ["--attach", tier, "--bandwidth-util", "-p", &library, "--max-exited", "1"];
        let daemon = Daemon::displaying(0, &options);
        let mut talk = Talk::start(Command::new(&private.program).arg("--wait"));
        let ledger = talk.json();
        let called: BTreeSet<_> = counts_of(&ledger["calls"]).into_keys().collect();
        assert_eq!(called, self.functions(), "the program calls all of them");
        let pid = pid_of(&ledger);
        let all: u64 = counts_of(&ledger["copies"]).values().sum();
        let seen = |m: &Metrics| m.by(COPIES, pid, "kind").values().sum::<u64>() >= all;
        let metrics = daemon.until(FRESH, "all copies", seen);
        assert_ledger(&metrics, &ledger);
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
        // with the next process of this name
        assert_eq!(finish(&mut Command::new(&private.program)).status, 0);
        daemon.until_equal(FRESH, |metrics, found| {
            let of_name = |name| metrics.samples(name).filter(|(l, _)| l["process"] == self.name());
            let twice = without_zero(&ledger["bytes"]).into_iter().map(|(kind, n)| (kind, 2 * n)).collect();
            found.compare("bytes of both", &by(of_name(BYTES), ["kind", "mode"]), &twice);
        });
    }
}

fn assert_ledger(metrics: &Metrics, ledger: &Value) {
    let pid = pid_of(ledger);
    let of_pid = |name| metrics.samples(name).filter(|(labels, _)| labels["pid"] == pid.to_string());
    assert_eq!(by(of_pid(BYTES), ["kind", "mode"]), without_zero(&ledger["bytes"]), "bytes");
    assert_eq!(by(of_pid(COPIES), ["kind", "mode"]), without_zero(&ledger["copies"]), "copies");
    let mut host = without_zero(&ledger["host"]);
    host.retain(|kind, _| !kind.ends_with("/none"));
    assert_eq!(by(of_pid(HOST), ["kind", "memory"]), host, "by host memory");
    for cause in ["gpu_ops_full", "unread_gpu_op"] {
        assert_eq!(metrics.lost(cause), 0, "{cause}");
    }
    let timed = metrics.values("gpuprobe_copy_seconds_total").filter(|(l, _)| l["pid"] == pid.to_string());
    for (labels, seconds) in timed {
        assert_eq!(labels["mode"], "sync", "the time of a call that does not wait says nothing");
        assert!(seconds.parse::<f64>().unwrap() > 0.0, "{labels:?}");
    }
}

#[bpf_test(tiers, alone)]
fn every_copy_function_of_the_driver_is_counted_by_direction_mode_and_host_memory(tier: &str) {
    Workload::DRIVER.is_counted(tier);
}

// only the CUDA driver is probed, so on perf, where its probes take seconds, the test above is enough
#[bpf_test(tiers(session, multi), alone)]
fn every_copy_function_of_the_runtime_is_counted_once_by_what_it_calls(tier: &str) {
    let cuda = if tier == "multi" { Cuda::Cuda12 } else { Cuda::Cuda13 };
    Workload::runtime(cuda).is_counted(tier);
}

/// Bytes by function and direction of calls whose direction is in the trace, and by function of all calls.
fn moved(trace: &Recording, pid: u32) -> (Counts, Counts) {
    let (mut reported, mut all) = (Counts::new(), Counts::new());
    let moves = |c: &&Call| matches!(c.class, Class::Memcpy | Class::Memset);
    for call in trace.of(pid).filter(moves) {
        if call.parent.is_some() {
            assert_eq!(call.effect.size(), None, "the outermost call carries the bytes: {call:?}");
            continue;
        }
        let bytes = call.effect.size().unwrap_or_else(|| panic!("no bytes: {call:?}"));
        *all.entry(call.name.to_string()).or_default() += bytes;
        let kind = call.effect.transfer().map(|transfer| transfer.direction);
        // a batch has several directions
        if let Some(kind) = kind.filter(|kind| *kind != CopyDirection::Unknown) {
            *reported.entry(format!("{}/{}", call.name, kind.as_str())).or_default() += bytes;
        }
    }
    (reported, all)
}

/// The ledger by function: the keys are a name and a direction.
fn by_function(moved: &Counts) -> Counts {
    let mut sums = Counts::new();
    for (name, bytes) in moved {
        *sums.entry(name.split('/').next().unwrap().to_owned()).or_default() += bytes;
    }
    sums
}

// daemons of other tests sum up exited processes by name
#[bpf_test(alone)]
fn a_recording_has_the_bytes_of_every_copy_function_once() {
    for workload in [Workload::DRIVER, Workload::runtime(Cuda::Cuda12), Workload::runtime(Cuda::Cuda13)] {
        println!("{} of {}", workload.name(), workload.cuda.version());
        let program = fixtures::standins(workload.cuda).workload(workload.name());
        let outcome = Run::new(program).options(&["-e", "*"]).outcome();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        outcome.trace.assert_whole();
        let ledger = outcome.printed();
        let printed = counts_of(&ledger["moved"]);
        let (reported, all) = moved(&outcome.trace, pid_of(&ledger));
        assert_eq!(all, by_function(&printed), "by function");
        for (name, bytes) in &reported {
            let reported_bytes = by_function(&reported)[name.split('/').next().unwrap()];
            let whole = reported_bytes == all[name.split('/').next().unwrap()];
            let known = printed.get(name).copied().unwrap_or(0);
            // if the arguments do not contain every direction, the others are not in the trace
            assert!(*bytes == known || (!whole && *bytes < known), "{name}: {bytes}, ledger {known}");
        }
    }
}

/// Copies and their bytes by direction and mode, and bytes by direction and host memory.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    copies: Counts,
    bytes: Counts,
    host: Counts,
}

impl Sums {
    fn of_ledger(ledger: &Value) -> Self {
        let sums = ["copies", "bytes", "host"].map(|what| without_zero(&ledger[what]));
        let [copies, bytes, host] = sums;
        Self { copies, bytes, host }
    }

    fn add(&mut self, kind: &str, mode: &str, host: &str, (copies, bytes): (u64, u64)) {
        *self.copies.entry(format!("{kind}/{mode}")).or_default() += copies;
        *self.bytes.entry(format!("{kind}/{mode}")).or_default() += bytes;
        *self.host.entry(format!("{kind}/{host}")).or_default() += bytes;
    }

    /// From the lines of a recording.
    fn of_lines(trace: &Recording, pid: u32) -> Self {
        let mut sums = Self::default();
        let moves = |c: &&Call| matches!(c.class, Class::Memcpy | Class::Memset) && c.parent.is_none();
        for call in trace.of(pid).filter(moves).filter(|c| !c.failed()) {
            let transfer = call.effect.transfer().unwrap_or_else(|| panic!("no copy: {call:?}"));
            let mode = if transfer.is_async { "async" } else { "sync" };
            for part in &transfer.parts {
                sums.add(part.direction.as_str(), mode, part.host.as_str(), (part.copies, part.bytes));
            }
            if transfer.parts.is_empty() {
                let (direction, host) = (transfer.direction.as_str(), transfer.host.as_str());
                sums.add(direction, mode, host, (1, transfer.bytes.unwrap_or(0)));
            }
        }
        sums
    }

    /// From the summary of a recording.
    fn of_summary(trace: &Recording) -> Self {
        let mut sums = Self::default();
        for row in trace.work().copies.iter().filter(|row| row.copies > 0) {
            sums.add(row.direction.as_str(), row.mode(), row.host.as_str(), (row.copies, row.bytes));
        }
        sums
    }
}

// daemons of other tests sum up exited processes by name
#[bpf_test(tiers(session, multi), alone)]
fn a_recording_has_every_copy_by_direction_mode_and_host_memory(tier: &str) {
    let built = fixtures::standins(Cuda::Cuda12);
    let outcome = Run::new(built.workload("copies")).options(&["--attach", tier]).outcome();
    let ledger = outcome.printed();
    assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
    outcome.trace.assert_whole();
    let expected = Sums::of_ledger(&ledger);
    assert_eq!(Sums::of_lines(&outcome.trace, pid_of(&ledger)), expected, "by its lines");
    assert_eq!(Sums::of_summary(&outcome.trace), expected, "in its summary");
}
