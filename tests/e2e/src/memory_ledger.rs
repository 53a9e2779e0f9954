//! Compares the memory ledger that the workloads `torture` and `rules` print with the metrics of a daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use gpuprobe_event::{Api, Class, LossCause, catalogue};
use serde_json::Value;

use crate::metrics::{Daemon, Differences, Metrics};
use crate::process::PATIENCE;
use crate::recording::{counts_of, number, pid_of};

/// By process and kind of memory.
pub const LIVE_BYTES: &str = "gpuprobe_memory_live_bytes";
/// By process and kind of memory.
pub const LIVE_ALLOCATIONS: &str = "gpuprobe_memory_live_allocations";
pub const ALLOCATED: &str = "gpuprobe_memory_allocated_bytes_total";
/// Frees of addresses that are not in the table.
pub const UNKNOWN_FREES: &str = "gpuprobe_memory_unknown_frees_total";

const CALLS: &str = "gpuprobe_calls_total";
const ERRORS: &str = "gpuprobe_errors_total";

/// Counters of a process, and the same in the ledger.
const COUNTERS: [(&str, &str); 4] = [
    (ALLOCATED, "allocated_bytes"),
    ("gpuprobe_memory_freed_bytes_total", "freed_bytes"),
    ("gpuprobe_memory_freed_with_context_bytes_total", "freed_with_context_bytes"),
    ("gpuprobe_memory_freed_with_context_allocations_total", "ended"),
];

/// Counters that must stay 0: they count a free that was not seen, or seen twice.
const NEVER: [&str; 2] = ["gpuprobe_memory_replaced_total", UNKNOWN_FREES];

/// Waits until the metrics of a daemon equal the ledger, and lists every difference if they do not in time. The
/// program must be paused.
pub fn assert_equal(daemon: &Daemon, ledger: &Value) -> Metrics {
    daemon.until_equal(PATIENCE, |metrics, wrong| {
        live(metrics, ledger, wrong);
        counters(metrics, ledger, wrong);
    })
}

/// The same for an exited process: nothing is live, and the counters stay.
pub fn assert_ended(daemon: &Daemon, limit: Duration, ledger: &Value) -> Metrics {
    daemon.until_equal(limit, |metrics, wrong| {
        for name in [LIVE_BYTES, LIVE_ALLOCATIONS] {
            wrong.compare(name, &metrics.by(name, pid_of(ledger), "kind"), &BTreeMap::new());
        }
        counters(metrics, ledger, wrong);
    })
}

fn of_kinds(kinds: &Value, field: &str) -> BTreeMap<String, u64> {
    let kinds = kinds.as_object().unwrap_or_else(|| panic!("no kinds: {kinds}"));
    kinds.iter().map(|(kind, m)| (kind.clone(), number(&m[field]))).filter(|(_, n)| *n > 0).collect()
}

fn live(metrics: &Metrics, ledger: &Value, wrong: &mut Differences) {
    let pid = pid_of(ledger);
    for (name, field) in [(LIVE_BYTES, "live_bytes"), (LIVE_ALLOCATIONS, "live")] {
        let mut got = metrics.by(name, pid, "kind");
        // kinds without live memory need not be there
        got.retain(|_, n| *n > 0);
        wrong.compare(name, &got, &of_kinds(&ledger["memory"], field));
        by_device(metrics, name, ledger, field, wrong);
    }
}

/// Compares by GPU too, if the metric has that label.
fn by_device(metrics: &Metrics, name: &str, ledger: &Value, field: &str, wrong: &mut Differences) {
    let pid = pid_of(ledger).to_string();
    let mut got: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (labels, n) in metrics.samples(name).filter(|(l, n)| l.get("pid") == Some(&pid) && *n > 0) {
        let Some(gpu) = labels.get("gpu") else { return };
        *got.entry(device_of(gpu)).or_default().entry(labels["kind"].clone()).or_default() += n;
    }
    if got.is_empty() {
        return;
    }
    let devices = ledger["devices"].as_object().unwrap_or_else(|| panic!("no devices: {ledger}"));
    let expected = devices.iter().map(|(device, kinds)| (device.clone(), of_kinds(kinds, field)));
    let expected: BTreeMap<_, _> = expected.filter(|(_, kinds)| !kinds.is_empty()).collect();
    wrong.compare(&format!("{name} by GPU"), &got, &expected);
}

/// The number of a stand-in's device from its label: the number itself, or the UUID, whose first byte contains it.
fn device_of(gpu: &str) -> String {
    let first = gpu.strip_prefix("GPU-").and_then(|uuid| u8::from_str_radix(uuid.get(..2)?, 16).ok());
    first.map_or_else(|| gpu.to_owned(), |byte| byte.wrapping_sub(0x11).to_string())
}

/// Whether every daemon that watches memory probes this function.
fn is_of_memory(function: &str) -> bool {
    let function = catalogue().lookup(Api::Driver, None, function);
    function.is_some_and(|f| {
        matches!(f.class, Class::Alloc | Class::Free | Class::HostRegister | Class::HostUnregister)
    })
}

fn counters(metrics: &Metrics, ledger: &Value, wrong: &mut Differences) {
    let pid = pid_of(ledger);
    for (name, field) in COUNTERS {
        wrong.compare(name, &metrics.of(name, pid), &Some(number(&ledger[field])));
    }
    for name in NEVER {
        wrong.compare(name, &metrics.of(name, pid), &Some(0));
    }
    for (name, field) in [(CALLS, "calls"), (ERRORS, "errors")] {
        let got = metrics.by(name, pid, "function");
        let seen = metrics.by(CALLS, pid, "function");
        for (function, n) in counts_of(&ledger[field]) {
            if is_of_memory(&function) || seen.contains_key(&function) {
                // functions that never failed have no series
                let reported = got.get(&function).copied().unwrap_or(0);
                wrong.compare(&format!("{name} {function}"), &reported, &n);
            }
        }
    }
    losses(metrics, pid, wrong);
}

/// A daemon watches the whole host, so some losses may come from the programs of other tests.
fn losses(metrics: &Metrics, pid: u32, wrong: &mut Differences) {
    let alone = metrics.pids(CALLS) == [pid];
    for (labels, lost) in metrics.samples("gpuprobe_events_lost_total") {
        let cause = labels["cause"].as_str();
        let about_others = ["late_attach", "exited_before_attach"].contains(&cause)
            || (!alone && ["unmatched_return", "forgotten_early"].contains(&cause));
        // Sixteen threads that create and destroy contexts at full speed may send more stacks than fit in the ring,
        // and need more rows of call sites than there are. That loses call sites, not figures.
        let about_call_sites = [LossCause::LostStack, LossCause::ShortenedStack, LossCause::SitesFull]
            .map(LossCause::as_str)
            .contains(&cause);
        if !about_others && !about_call_sites {
            wrong.compare(&format!("lost by {cause}"), &lost, &0);
        }
    }
}
