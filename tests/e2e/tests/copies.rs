//! Copies, as a daemon counts them and as a recording tells them, against the books of a program that calls every function which copies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::shown;
use gpuprobe_e2e::recording::{Counts, counts_of, pid_of};
use gpuprobe_e2e::{Recording, Run, Talk, alone, needs, places, tiers};
use gpuprobe_event::{Api, Call, Class, catalogue};
use gpuprobe_standin::Cuda;
use serde_json::Value;

/// A fresh snapshot on a slow machine.
const FRESH: Duration = Duration::from_secs(20);

const BYTES: &str = "gpuprobe_copy_bytes_total";
const COPIES: &str = "gpuprobe_copies_total";
const HOST: &str = "gpuprobe_copy_host_bytes_total";

/// The values of a metric by two of its labels, without those that are 0.
fn by(metrics: &Metrics, name: &str, pid: u32, labels: [&str; 2]) -> BTreeMap<String, u64> {
    let of_pid = metrics.samples(name).filter(|(l, n)| l["pid"] == pid.to_string() && *n > 0);
    of_pid.map(|(l, n)| (format!("{}/{}", l[labels[0]], l[labels[1]]), n)).collect()
}

fn without_zero(counts: &Value) -> BTreeMap<String, u64> {
    counts_of(counts).into_iter().filter(|(_, n)| *n > 0).collect()
}

/// Every function of the driver that copies or fills.
fn all_functions() -> BTreeSet<String> {
    let moves =
        catalogue().exports(Api::Driver, "13.4").filter(|f| matches!(f.class, Class::Memcpy | Class::Memset));
    moves.map(|f| f.name.to_owned()).collect()
}

fn assert_books(metrics: &Metrics, books: &Value) {
    let pid = pid_of(books);
    assert_eq!(by(metrics, BYTES, pid, ["kind", "mode"]), without_zero(&books["bytes"]), "bytes");
    assert_eq!(by(metrics, COPIES, pid, ["kind", "mode"]), without_zero(&books["copies"]), "copies");
    let mut host = without_zero(&books["host"]);
    host.retain(|kind, _| !kind.ends_with("/none"));
    assert_eq!(by(metrics, HOST, pid, ["kind", "memory"]), host, "by host memory");
    for cause in ["work_full", "unread_work"] {
        assert_eq!(metrics.lost(cause), 0, "{cause}");
    }
    let timed = metrics.values("gpuprobe_copy_seconds_total").filter(|(l, _)| l["pid"] == pid.to_string());
    for (labels, seconds) in timed {
        assert_eq!(labels["mode"], "sync", "the time of a call that does not wait says nothing");
        assert!(seconds.parse::<f64>().unwrap() > 0.0, "{labels:?}");
    }
}

#[test]
fn every_copy_function_is_counted_by_direction_mode_and_host_memory_on_every_tier() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    for tier in tiers::here() {
        println!("{tier}");
        let folder = places::folder();
        let files = ["libcuda.so.1", "copies"];
        places::copies(&places::standins(Cuda::Cuda12), folder.path(), &files);
        let library = shown(folder.path().join("libcuda.so.1"));
        let daemon = Daemon::displaying(0, &["--attach", tier, "--bandwidth-util", "-p", &library]);
        let mut talk = Talk::start(Command::new(folder.path().join("copies")).arg("--wait"));
        let books = talk.json();
        let called: BTreeSet<_> = counts_of(&books["calls"]).into_keys().collect();
        assert_eq!(called, all_functions(), "the program calls all of them");
        let pid = pid_of(&books);
        let all: u64 = counts_of(&books["copies"]).values().sum();
        let seen = |m: &Metrics| m.by(COPIES, pid, "kind").values().sum::<u64>() >= all;
        let metrics = daemon.until(FRESH, "all copies", seen);
        assert_books(&metrics, &books);
        talk.go_on();
        assert_eq!(talk.end(), 0, "{}", talk.stderr());
        let gone = |m: &Metrics| m.by("gpuprobe_memory_live_bytes", pid, "kind").is_empty();
        assert_books(&daemon.until(FRESH, "the end", gone), &books);
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
    fn of_books(books: &Value) -> Self {
        let sums = ["copies", "bytes", "host"].map(|what| without_zero(&books[what]));
        let [copies, bytes, host] = sums;
        Self { copies, bytes, host }
    }

    fn add(&mut self, kind: &str, mode: &str, host: &str, (copies, bytes): (u64, u64)) {
        *self.copies.entry(format!("{kind}/{mode}")).or_default() += copies;
        *self.bytes.entry(format!("{kind}/{mode}")).or_default() += bytes;
        *self.host.entry(format!("{kind}/{host}")).or_default() += bytes;
    }

    /// By the lines of a recording.
    fn of_lines(trace: &Recording, pid: u32) -> Self {
        let mut sums = Self::default();
        let moves = |c: &&Call| matches!(c.class, Class::Memcpy | Class::Memset) && c.parent.is_none();
        for call in trace.of(pid).filter(moves).filter(|c| !c.failed()) {
            let effect = &call.effect;
            let mode = if effect.is_async == Some(true) { "async" } else { "sync" };
            for part in &effect.parts {
                let (kind, host) = (part.kind.as_deref().unwrap_or("unknown"), part.host.as_deref());
                sums.add(kind, mode, host.unwrap_or("none"), (part.copies, part.bytes));
            }
            if effect.parts.is_empty() {
                let fill = if call.class == Class::Memset { "memset" } else { "unknown" };
                let (kind, host) = (effect.kind.as_deref().unwrap_or(fill), effect.host.as_deref());
                sums.add(kind, mode, host.unwrap_or("none"), (1, effect.size.unwrap_or(0)));
            }
        }
        sums
    }

    /// By its summary.
    fn of_summary(trace: &Recording) -> Self {
        let mut sums = Self::default();
        for row in trace.work().copies.iter().filter(|row| row.copies > 0) {
            sums.add(row.direction.as_str(), row.mode(), row.host.as_str(), (row.copies, row.bytes));
        }
        sums
    }
}

#[test]
fn a_recording_tells_every_copy_by_direction_mode_and_host_memory() {
    if !needs::bpf() {
        return;
    }
    let built = places::standins(Cuda::Cuda12);
    for tier in tiers::here().iter().filter(|tier| **tier != "perf") {
        println!("{tier}");
        let outcome = Run::new(built.workload("copies")).options(&["--attach", tier]).outcome();
        let books = outcome.printed();
        assert_eq!(outcome.finished.status, 0, "{}", outcome.finished.stderr);
        outcome.trace.assert_whole();
        let expected = Sums::of_books(&books);
        assert_eq!(Sums::of_lines(&outcome.trace, pid_of(&books)), expected, "by its lines");
        assert_eq!(Sums::of_summary(&outcome.trace), expected, "in its summary");
    }
}
