//! The daemon that runs during the whole test, scraped repeatedly.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::ledgers::{Entry, Sums};
use super::table::{Count, Resources};
use super::{Chaos, SHIFTING_NAME};
use crate::linux::children_of;
use crate::metrics::Daemon;
use crate::process::{PATIENCE, resident_kilobytes, shown};
use crate::recording::{Counts, number, pid_of};
use crate::sampled::{list, text};

const CALLS: &str = "gpuprobe_calls_total";
const LIVE: &str = "gpuprobe_memory_live_bytes";
/// The time between two scrapes.
const EVERY: Duration = Duration::from_millis(700);
/// Events this long before a scrape are in it: the daemon reads its counters every 0.2 s, plus a delay on a busy
/// machine.
const FRESH: Duration = Duration::from_millis(1500);

/// A process that was not shown for this long and is shown again is another process: pids are reused after many
/// thousands of processes.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What a daemon served at one moment.
#[derive(Debug)]
pub struct Look {
    at: Instant,
    calls: HashMap<(String, u32), Counts>,
    live: HashMap<(String, u32), u64>,
    pub lost: BTreeMap<String, u64>,
}

impl Look {
    /// What the daemon serves from this moment on. Calls are those of its snapshot, which has every process, also those
    /// without metrics of their own.
    pub fn of(daemon: &Daemon, at: Instant) -> Self {
        let (metrics, snapshot) = (daemon.scrape(), daemon.json("/api/snapshot"));
        let key = |labels: &BTreeMap<String, String>| {
            Some((labels.get("process")?.clone(), labels.get("pid")?.parse().ok()?))
        };
        let mut look = Self { at, calls: HashMap::new(), live: HashMap::new(), lost: BTreeMap::new() };
        for process in list(&snapshot["snapshot"]["processes"]) {
            let calls = look.calls.entry((text(&process["name"]).to_owned(), pid_of(process))).or_default();
            for function in list(&process["functions"]) {
                *calls.entry(text(&function["function"]).to_owned()).or_default() +=
                    number(&function["calls"]);
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

    /// The calls of a process; empty if the daemon has not seen it.
    pub fn calls(&self, entry: &Entry) -> Counts {
        self.calls.get(&(entry.name.clone(), entry.pid)).cloned().unwrap_or_default()
    }

    /// The live bytes of a process.
    pub fn live(&self, name: &str, pid: u32) -> u64 {
        self.live.get(&(name.to_owned(), pid)).copied().unwrap_or_default()
    }

    /// Processes that are shown with live memory.
    pub fn with_live_memory(&self) -> impl Iterator<Item = &(String, u32)> {
        self.live.iter().filter(|(_, bytes)| **bytes > 0).map(|(key, _)| key)
    }

    /// Processes that had mapped a library before it was probed, and mappings that the Linux kernel could not report.
    pub fn late(&self) -> u64 {
        ["late_attach", "exited_before_attach", "lost_mapping"]
            .iter()
            .filter_map(|cause| self.lost.get(*cause))
            .sum()
    }
}

/// The daemon and its last scrape.
#[derive(Debug)]
pub struct Watcher {
    daemon: Mutex<Daemon>,
    last: Mutex<Option<Arc<Look>>>,
    /// The last figures of each process whose libraries are replaced: processes that exited long ago are no longer
    /// shown. Several processes may have had the same pid, one after the other.
    seen: Mutex<HashMap<(String, u32), Vec<Life>>>,
}

/// The figures of one process, with the times of the first and last scrape that showed it.
#[derive(Clone, Debug)]
struct Life {
    first: Instant,
    last: Instant,
    calls: Counts,
}

impl Watcher {
    pub fn new(daemon: Daemon) -> Self {
        Self { daemon: Mutex::new(daemon), last: Mutex::default(), seen: Mutex::default() }
    }

    pub fn daemon(&self) -> std::sync::MutexGuard<'_, Daemon> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scrapes it until the end of the test.
    pub fn follow(&self, is_finished: impl Fn() -> bool) {
        while !is_finished() {
            self.look();
            sleep(EVERY);
        }
    }

    /// Scrapes it now.
    pub fn look(&self) -> Arc<Look> {
        let look = {
            let daemon = self.daemon();
            let at = Instant::now();
            Arc::new(Look::of(&daemon, at))
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&look));
        self.remember(&look);
        look
    }

    fn remember(&self, look: &Look) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, calls) in look.calls.iter().filter(|((name, _), _)| is_shifting(name)) {
            let lives = seen.entry(key.clone()).or_default();
            match lives.last_mut().filter(|life| look.at < life.last + FORGOTTEN) {
                Some(life) => (life.last, life.calls) = (look.at, calls.clone()),
                None => lives.push(Life { first: look.at, last: look.at, calls: calls.clone() }),
            }
        }
    }

    /// The calls of all programs whose libraries are replaced, summed over processes.
    fn calls_seen(&self) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.values().flatten().flat_map(|life| life.calls.values()).sum()
    }

    /// The same, from the sums by name.
    fn calls_by_name(&self) -> u64 {
        let metrics = self.daemon().scrape();
        let names: BTreeSet<_> = metrics
            .samples(CALLS)
            .filter_map(|(mut labels, _)| labels.remove("process"))
            .filter(|name| is_shifting(name))
            .collect();
        names.iter().flat_map(|name| metrics.calls_of_name(name).into_values()).sum()
    }

    /// A scrape that contains everything that happened before this moment.
    pub fn after(&self, moment: Instant) -> Arc<Look> {
        let begun = Instant::now();
        loop {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(look) = last.filter(|look| look.at >= moment + FRESH) {
                return look;
            }
            // the thread that scrapes has stopped at the end
            if begun.elapsed() > FRESH + 4 * EVERY {
                return self.look();
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it shows these live bytes for a process. Otherwise returns the last value.
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

    /// Its resources: the minimum of some measurements, because a scrape takes memory temporarily.
    pub fn resources(&self, ours: &Path) -> Resources {
        let (pid, metrics) = {
            let daemon = self.daemon();
            (daemon.talk.pid(), daemon.scrape())
        };
        let ours = shown(ours);
        let others: BTreeSet<_> = metrics
            .samples("gpuprobe_probes")
            .filter_map(|(mut labels, _)| {
                labels.remove("library").filter(|library| !library.starts_with(&ours))
            })
            .collect();
        let processes: BTreeSet<_> = metrics
            .samples(CALLS)
            .filter_map(|(mut labels, _)| Some((labels.remove("process")?, labels.remove("pid")?)))
            .collect();
        let descriptors =
            |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) as u64;
        let look = |_| {
            sleep(Duration::from_millis(50));
            resident_kilobytes(pid)
        };
        let resident_kilobytes = (0..20).map(look).min().unwrap_or_default();
        // the attach helper, which owns the links, is its child
        let all = [pid].into_iter().chain(children_of(pid));
        Resources {
            resident_kilobytes,
            descriptors: all.map(descriptors).sum(),
            others: others.len() as u64,
            processes: processes.len() as u64,
        }
    }
}

/// Waits until the sums by name equal the ledgers, and counts every remaining difference as a fault.
pub fn compare_sums(chaos: &Chaos, is_exact: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        let metrics = chaos.watcher.daemon().scrape();
        let sum = |name: &str, process: &str| -> u64 {
            metrics.of_name(&format!("gpuprobe_memory_{name}"), process, "process").into_values().sum()
        };
        let mut differences = Vec::new();
        for (name, ledgers) in chaos.ledgers.by_name().into_iter().filter(|(name, _)| is_exact(name)) {
            let reported = Sums {
                calls: metrics.calls_of_name(&name),
                allocated_bytes: sum("allocated_bytes_total", &name),
                freed_bytes: sum("freed_bytes_total", &name),
            };
            if reported != ledgers {
                differences.push(format!("sums of {name}: counted {reported:?}, in the ledgers {ledgers:?}"));
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

fn is_shifting(name: &str) -> bool {
    name.starts_with(SHIFTING_NAME) && name != SHIFTING_NAME
}

/// Compares the figures of programs whose libraries were replaced with their ledgers: never more calls are counted
/// than they made, and a process with uncounted calls is counted as late.
pub fn compare_shifting(chaos: &Chaos) {
    let begun = Instant::now();
    // processes that exited just now must be in a scrape
    let (by_process, by_name) = loop {
        chaos.watcher.look();
        let sums = (chaos.watcher.calls_seen(), chaos.watcher.calls_by_name());
        if sums.0 == sums.1 || begun.elapsed() > PATIENCE {
            break sums;
        }
        sleep(EVERY);
    };
    if by_process != by_name {
        chaos.wrong(format!("{by_process} calls are counted by process, and {by_name} by name"));
    }
    let seen = chaos.watcher.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for group in chaos.ledgers.shifting() {
        let mut short = 0;
        for entry in &group {
            let lives = seen.get(&(entry.name.clone(), entry.pid));
            let is_it = |life: &&Life| life.first >= entry.begun && life.first < entry.ended + FORGOTTEN;
            let reported = lives.and_then(|lives| lives.iter().find(is_it)).map(|life| life.calls.clone());
            short += compare_one(chaos, entry, &reported.unwrap_or_default());
        }
        if let (1.., [first, ..]) = (short, group.as_slice()) {
            let lived = first.ended.duration_since(first.begun);
            println!(
                "chaos: {short} calls of {} {} are not counted; it lived {lived:?}",
                first.name, first.pid
            );
        }
        chaos.totals.add(Count::ProgramsShort, u64::from(short > 0));
    }
}

/// The number of calls of a process that are not counted.
fn compare_one(chaos: &Chaos, entry: &Entry, reported: &Counts) -> u64 {
    for (function, n) in reported {
        let made = entry.calls.get(function).copied().unwrap_or_default();
        if *n > made {
            chaos.wrong(format!("{n} calls of {function} are counted, and {made} were made: {entry:?}"));
        }
    }
    let (made, counted): (u64, u64) = (entry.calls.values().sum(), reported.values().sum());
    chaos.totals.add(Count::CallsCounted, counted);
    chaos.totals.add(Count::CallsShort, made.saturating_sub(counted));
    made.saturating_sub(counted)
}
