//! The ledgers that programs printed, by name and by process.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gpuprobe_event::{Api, Class, catalogue};
use serde_json::Value;

use crate::recording::{Counts, counts_of, inner_counts, number, pid_of};

/// The classes of functions that a daemon counts by default.
const COUNTED: [Class; 6] =
    [Class::Alloc, Class::Free, Class::Memcpy, Class::Memset, Class::Launch, Class::Sync];

/// The calls and memory of one process that a daemon counts.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub pid: u32,
    pub calls: Counts,
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
    pub live_bytes: u64,
    /// Before its start, and after its exit.
    pub begun: Instant,
    pub ended: Instant,
}

impl Entry {
    /// From a line that the workload `ledger` printed. The process lived from `begun` until now.
    pub fn of_ledger(name: &str, printed: &Value, begun: Instant) -> Self {
        let sum = |field: &str| {
            let kinds = printed["memory"].as_object().unwrap_or_else(|| panic!("no memory: {printed}"));
            kinds.values().map(|kind| number(&kind[field])).sum()
        };
        Self {
            name: name.to_owned(),
            pid: pid_of(printed),
            calls: counted(counts_of(&printed["driver_calls"])),
            allocated_bytes: sum("allocated_bytes"),
            freed_bytes: sum("freed_bytes"),
            live_bytes: sum("live_bytes"),
            begun,
            ended: Instant::now(),
        }
    }

    /// From a line that a process of the workload `forker` printed.
    pub fn of_forker(name: &str, printed: &Value, begun: Instant) -> Self {
        let calls = counts_of(&printed["calls"]);
        // all of its allocations have the same size
        let size = number(&printed["live_bytes"]) / number(&printed["live"]).max(1);
        let bytes = |function: &str| calls.get(function).copied().unwrap_or_default() * size;
        Self {
            name: name.to_owned(),
            pid: pid_of(printed),
            calls: counted(inner_counts(&calls)),
            allocated_bytes: bytes("cudaMalloc"),
            freed_bytes: bytes("cudaFree"),
            live_bytes: number(&printed["live_bytes"]),
            begun,
            ended: Instant::now(),
        }
    }
}

/// The CUDA driver calls that a daemon counts.
fn counted(mut calls: Counts) -> Counts {
    calls.retain(|name, n| {
        let function = catalogue().lookup(Api::Driver, None, name);
        *n > 0 && function.is_some_and(|f| !f.hot && COUNTED.contains(&f.class))
    });
    calls
}

/// Sums of all processes of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub calls: Counts,
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
}

/// The ledgers of all programs.
#[derive(Debug, Default)]
pub struct Ledgers {
    by_name: Mutex<BTreeMap<String, Sums>>,
    /// Processes that exited recently, for daemons that live shorter than the test.
    recent: Mutex<Vec<Entry>>,
    /// Processes whose libraries were replaced: each process that mapped them, with those that it forked.
    shifting: Mutex<Vec<Vec<Entry>>>,
}

impl Ledgers {
    /// Adds an exited process.
    pub fn add(&self, entry: &Entry) {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let sums = by_name.entry(entry.name.clone()).or_default();
        for (function, n) in &entry.calls {
            *sums.calls.entry(function.clone()).or_default() += n;
        }
        sums.allocated_bytes += entry.allocated_bytes;
        sums.freed_bytes += entry.freed_bytes;
        drop(by_name);
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).push(entry.clone());
    }

    /// Adds an exited process whose libraries were replaced, and those that it forked.
    pub fn add_shifting(&self, entries: Vec<Entry>) {
        self.shifting.lock().unwrap_or_else(PoisonError::into_inner).push(entries);
    }

    /// All processes whose libraries were replaced, in the order of their exits.
    pub fn shifting(&self) -> Vec<Vec<Entry>> {
        self.shifting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The sums by process name.
    pub fn by_name(&self) -> BTreeMap<String, Sums> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The processes that started and exited between two moments. Removes those that exited before.
    pub fn between(&self, begun: Instant, ended: Instant) -> Vec<Entry> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|entry| entry.ended >= begun);
        recent.iter().filter(|entry| entry.begun >= begun && entry.ended <= ended).cloned().collect()
    }
}
