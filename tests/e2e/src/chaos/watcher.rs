//! The daemon that stays for the whole test, read again and again.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Chaos;
use super::books::{Entry, Sums};
use super::table::Resources;
use crate::kernel::children_of;
use crate::metrics::{Daemon, Metrics};
use crate::process::{PATIENCE, resident_kilobytes};
use crate::recording::Counts;

const CALLS: &str = "gpuprobe_calls_total";
const LIVE: &str = "gpuprobe_memory_live_bytes";
/// Between two scrapes.
const EVERY: Duration = Duration::from_millis(700);
/// What happened before a scrape by this much is in it: the daemon reads its counters every 0.2 s, and has to get to it.
const FRESH: Duration = Duration::from_millis(1500);

/// What a daemon said at a moment.
#[derive(Debug)]
pub struct Look {
    at: Instant,
    calls: HashMap<(String, u32), Counts>,
    live: HashMap<(String, u32), u64>,
    pub lost: BTreeMap<String, u64>,
}

impl Look {
    /// Of a scrape that began at this moment.
    pub fn of(metrics: &Metrics, at: Instant) -> Self {
        let key = |labels: &BTreeMap<String, String>| {
            Some((labels.get("process")?.clone(), labels.get("pid")?.parse().ok()?))
        };
        let mut look = Self { at, calls: HashMap::new(), live: HashMap::new(), lost: BTreeMap::new() };
        for (labels, n) in metrics.samples(CALLS) {
            if let Some(key) = key(&labels) {
                *look.calls.entry(key).or_default().entry(labels["function"].clone()).or_default() += n;
            }
        }
        for (labels, n) in metrics.samples(LIVE) {
            if let Some(key) = key(&labels) {
                *look.live.entry(key).or_default() += n;
            }
        }
        for (labels, n) in metrics.samples("gpuprobe_events_lost_total") {
            look.lost.insert(labels["cause"].clone(), n);
        }
        look
    }

    /// The calls of a process; none where nothing was seen of it.
    pub fn calls(&self, entry: &Entry) -> Counts {
        self.calls.get(&(entry.name.clone(), entry.pid)).cloned().unwrap_or_default()
    }

    /// The bytes that it holds.
    pub fn live(&self, name: &str, pid: u32) -> u64 {
        self.live.get(&(name.to_owned(), pid)).copied().unwrap_or_default()
    }

    /// Processes that are shown with live memory.
    pub fn holders(&self) -> impl Iterator<Item = &(String, u32)> {
        self.live.iter().filter(|(_, bytes)| **bytes > 0).map(|(key, _)| key)
    }

    /// Processes that had mapped a library before it was probed.
    pub fn late(&self) -> u64 {
        ["late_attach", "gone_before_attach"].iter().filter_map(|cause| self.lost.get(*cause)).sum()
    }
}

/// The daemon, and what it said last.
#[derive(Debug)]
pub struct Watcher {
    daemon: Mutex<Daemon>,
    last: Mutex<Option<Arc<Look>>>,
}

impl Watcher {
    /// Of this daemon.
    pub fn new(daemon: Daemon) -> Self {
        Self { daemon: Mutex::new(daemon), last: Mutex::new(None) }
    }

    /// The daemon itself.
    pub fn daemon(&self) -> std::sync::MutexGuard<'_, Daemon> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads it until the end of the test.
    pub fn follow(&self, is_over: impl Fn() -> bool) {
        while !is_over() {
            self.look();
            sleep(EVERY);
        }
    }

    /// Reads it now.
    pub fn look(&self) -> Arc<Look> {
        let look = {
            let daemon = self.daemon();
            let at = Instant::now();
            Arc::new(Look::of(&daemon.scrape(), at))
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&look));
        look
    }

    /// What it says once everything that happened until now is in it.
    pub fn after(&self, moment: Instant) -> Arc<Look> {
        let begun = Instant::now();
        loop {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(look) = last.filter(|look| look.at >= moment + FRESH) {
                return look;
            }
            // who reads it has stopped at the end
            if begun.elapsed() > FRESH + 4 * EVERY {
                return self.look();
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it says that a process holds this much. What it said last where it never does.
    pub fn until_live(&self, entry: &Entry, limit: Duration) -> Result<(), u64> {
        let begun = Instant::now();
        loop {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let live = last.as_ref().map_or(0, |look| look.live(&entry.name, entry.pid));
            if live == entry.live_bytes {
                return Ok(());
            }
            if begun.elapsed() > limit {
                return Err(live);
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// What it takes: the least of some looks, because a scrape takes memory for a moment.
    pub fn resources(&self) -> Resources {
        let pid = self.daemon().talk.pid();
        let descriptors =
            |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) as u64;
        let look = |_| {
            sleep(Duration::from_millis(50));
            resident_kilobytes(pid)
        };
        let resident_kilobytes = (0..20).map(look).min().unwrap_or_default();
        // the process that holds the links is its child
        let all = [pid].into_iter().chain(children_of(pid));
        Resources { resident_kilobytes, descriptors: all.map(descriptors).sum() }
    }
}

/// Waits until the sums by name are those in the books; notes every difference that stays.
pub fn compare_sums(chaos: &Chaos, is_exact: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        let metrics = chaos.watcher.daemon().scrape();
        let sum = |name: &str, process: &str| -> u64 {
            ["gpuprobe_memory_", "gpuprobe_ended_memory_"]
                .iter()
                .flat_map(|prefix| {
                    metrics.of_name(&format!("{prefix}{name}"), process, "process").into_values()
                })
                .sum()
        };
        let mut differences = Vec::new();
        for (name, books) in chaos.books.by_name().into_iter().filter(|(name, _)| is_exact(name)) {
            let told = Sums {
                calls: metrics.calls_of_name(&name),
                allocated_bytes: sum("allocated_bytes_total", &name),
                freed_bytes: sum("freed_bytes_total", &name),
            };
            if told != books {
                differences.push(format!("sums of {name}: counted {told:?}, in the books {books:?}"));
            }
        }
        if differences.is_empty() {
            return;
        }
        if begun.elapsed() > PATIENCE {
            differences.into_iter().for_each(|difference| chaos.wrong(difference));
            return;
        }
        sleep(EVERY);
    }
}
