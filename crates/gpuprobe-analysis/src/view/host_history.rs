//! The last fifteen minutes of a host, for the page of the daemon: curves of GPUs and processes, and a log of errors. Its
//! memory is bounded, however many processes there are.

use std::collections::{HashMap, HashSet, VecDeque};

use gpuprobe_event::Tgid;
use serde::Serialize;

use super::live_growth::LiveGrowth;
use super::rows::ProcessId;

use crate::live::snapshot::{ProcessSnapshot, Snapshot};

/// How long the curves are.
pub const LENGTH_SECONDS: f64 = 900.0;
/// The time between two points of a curve.
const STEP_SECONDS: f64 = 5.0;
/// The most points of a curve. There are fewer if snapshots are further apart.
const POINTS: usize = (LENGTH_SECONDS / STEP_SECONDS) as usize;
/// Processes with a curve; those with most live memory, if there are more.
const MOST_PROCESSES: usize = 256;
/// Entries of the log.
const MOST_ENTRIES: usize = 500;
/// XIDs among them. They are rare and serious, so failures never push them out.
const MOST_XIDS: usize = 100;
/// Entries that one snapshot may add: a process can fail in many ways at once.
const MOST_NEW_ENTRIES: usize = 50;

/// A GPU over time. The curves have the times of [`History::times`], and end with the same point.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuHistory {
    pub gpu: u8,
    pub busy_percent: VecDeque<Option<u32>>,
    pub used_bytes: VecDeque<Option<u64>>,
    pub watts: VecDeque<Option<u32>>,
    /// Points without a reading of the GPU, since the last one.
    #[serde(skip)]
    missed: usize,
}

/// A process over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessHistory {
    pub id: ProcessId,
    pub live_bytes: VecDeque<u64>,
    /// Launches since the point before.
    pub launches: VecDeque<u64>,
    #[serde(skip)]
    launches_before: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogEntry {
    pub unix_seconds: f64,
    #[serde(flatten)]
    pub event: LogEvent,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LogEvent {
    /// Calls failed.
    Failure { pid: u32, name: String, function: &'static str, error: &'static str, count: u64 },
    /// A GPU reported an error.
    Xid { gpu: u8, xid: u64, count: u64 },
    /// Records or calls were lost.
    Loss { cause: &'static str, count: u64 },
    /// More happened at the same time than the log has room for.
    More { entries: usize },
}

/// The curves and the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct History {
    /// The times of the points, in seconds since 1970, oldest first.
    pub times: VecDeque<f64>,
    pub gpus: Vec<GpuHistory>,
    pub processes: Vec<ProcessHistory>,
    /// Newest last.
    pub log: VecDeque<LogEntry>,
    /// What the log has counted so far.
    #[serde(skip)]
    counted: Counted,
    #[serde(skip)]
    growth: LiveGrowth,
}

type FailureKey = (u32, u64, &'static str, &'static str);

#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    failures: HashMap<FailureKey, u64>,
    xids: HashMap<(u8, u64), u64>,
    losses: HashMap<&'static str, u64>,
}

/// Adds a point and keeps the newest of them, at most so many.
fn push<T>(curve: &mut VecDeque<T>, point: T, most: usize) {
    curve.push_back(point);
    curve.drain(..curve.len().saturating_sub(most));
}

impl History {
    /// Adds what a snapshot shows.
    pub fn take(&mut self, snapshot: &Snapshot) {
        self.add_events(snapshot);
        let running = snapshot.processes.iter().filter(|p| p.exited_at_ns.is_none());
        let live = running.map(|p| ((p.pid.0, p.instance), live_bytes(p)));
        self.growth.take(snapshot.unix_seconds, live);
        let is_due = self.times.back().is_none_or(|last| {
            // a clock that was set back is no reason to wait
            snapshot.unix_seconds >= last + STEP_SECONDS || snapshot.unix_seconds < *last
        });
        if is_due {
            self.add_time(snapshot.unix_seconds);
            self.add_gpus(snapshot);
            self.add_processes(snapshot);
        }
    }

    /// How live memory grew.
    pub fn growth(&self) -> &LiveGrowth {
        &self.growth
    }

    /// Adds the time of a point, and drops those that are too old, or from before the clock was set back.
    fn add_time(&mut self, now: f64) {
        let is_outdated = |time: &f64| *time > now || *time <= now - LENGTH_SECONDS;
        let outdated = self.times.iter().rposition(is_outdated).map_or(0, |last| last + 1);
        self.times.drain(..outdated);
        push(&mut self.times, now, POINTS);
    }

    fn add_gpus(&mut self, snapshot: &Snapshot) {
        let points = self.times.len();
        let states = &snapshot.gpu_states.gpus;
        // NVML may fail for a while: a GPU is forgotten when nothing of its curves is left
        for gpu in &mut self.gpus {
            if states.iter().all(|state| state.gpu != gpu.gpu) {
                push(&mut gpu.busy_percent, None, points);
                push(&mut gpu.used_bytes, None, points);
                push(&mut gpu.watts, None, points);
                gpu.missed += 1;
            }
        }
        self.gpus.retain(|gpu| gpu.missed < points);
        for state in states {
            let at = self.gpus.iter().position(|gpu| gpu.gpu == state.gpu).unwrap_or_else(|| {
                self.gpus.push(GpuHistory { gpu: state.gpu, ..GpuHistory::default() });
                self.gpus.len() - 1
            });
            let (gpu, state) = (&mut self.gpus[at], &state.state);
            gpu.missed = 0;
            push(&mut gpu.busy_percent, state.busy_percent, points);
            push(&mut gpu.used_bytes, state.memory.as_ref().map(|memory| memory.used_bytes), points);
            push(&mut gpu.watts, state.power_mw.map(|mw| mw / 1000), points);
        }
        self.gpus.sort_unstable_by_key(|gpu| gpu.gpu);
    }

    fn add_processes(&mut self, snapshot: &Snapshot) {
        let points = self.times.len();
        let mut running: Vec<&ProcessSnapshot> =
            snapshot.processes.iter().map(AsRef::as_ref).filter(|p| p.exited_at_ns.is_none()).collect();
        if running.len() > MOST_PROCESSES {
            running.sort_by_key(|process| std::cmp::Reverse(live_bytes(process)));
            running.truncate(MOST_PROCESSES);
        }
        let ids: HashSet<(Tgid, u64)> = running.iter().map(|p| (p.pid, p.instance)).collect();
        self.processes.retain(|process| ids.contains(&(Tgid(process.id.pid), process.id.instance)));
        let known: HashMap<ProcessId, usize> =
            self.processes.iter().enumerate().map(|(at, process)| (process.id, at)).collect();
        for process in running {
            let id = ProcessId { host: 0, pid: process.pid.0, instance: process.instance };
            let launches = launches(process);
            let at = known.get(&id).copied().unwrap_or_else(|| {
                self.processes.push(ProcessHistory {
                    id,
                    live_bytes: VecDeque::new(),
                    launches: VecDeque::new(),
                    launches_before: launches,
                });
                self.processes.len() - 1
            });
            let history = &mut self.processes[at];
            push(&mut history.live_bytes, live_bytes(process), points);
            let before = std::mem::replace(&mut history.launches_before, launches);
            push(&mut history.launches, launches.saturating_sub(before), points);
        }
    }

    fn add_events(&mut self, snapshot: &Snapshot) {
        let mut events = self.new_xids(snapshot);
        let mut failures = HashMap::new();
        for process in &snapshot.processes {
            for failure in &process.failures {
                let key = (process.pid.0, process.instance, failure.function, failure.error);
                let before = self.counted.failures.get(&key).copied().unwrap_or(0);
                failures.insert(key, failure.count);
                if let count @ 1.. = failure.count.saturating_sub(before) {
                    let (pid, name) = (process.pid.0, process.name.clone());
                    let &crate::function_counts::Failure { function, error, .. } = failure;
                    events.push(LogEvent::Failure { pid, name, function, error, count });
                }
            }
        }
        self.counted.failures = failures;
        for loss in &snapshot.losses {
            let cause = loss.cause.as_str();
            let before = self.counted.losses.insert(cause, loss.count).unwrap_or(0);
            if let count @ 1.. = loss.count.saturating_sub(before) {
                events.push(LogEvent::Loss { cause, count });
            }
        }
        if events.len() > MOST_NEW_ENTRIES {
            let entries = events.len() - MOST_NEW_ENTRIES;
            events.truncate(MOST_NEW_ENTRIES);
            events.push(LogEvent::More { entries });
        }
        for event in events {
            self.make_room(&event);
            self.log.push_back(LogEntry { unix_seconds: snapshot.unix_seconds, event });
        }
    }

    fn new_xids(&mut self, snapshot: &Snapshot) -> Vec<LogEvent> {
        let mut events = Vec::new();
        for xid in &snapshot.gpu_states.xids {
            let before = self.counted.xids.insert((xid.gpu, xid.xid), xid.count).unwrap_or(0);
            if let count @ 1.. = xid.count.saturating_sub(before) {
                events.push(LogEvent::Xid { gpu: xid.gpu, xid: xid.xid, count });
            }
        }
        events
    }

    /// Drops the oldest entry if there is no room for this one. XIDs take the place of XIDs only once there are many.
    fn make_room(&mut self, event: &LogEvent) {
        let is_xid = |event: &LogEvent| matches!(event, LogEvent::Xid { .. });
        let xids = self.log.iter().filter(|entry| is_xid(&entry.event)).count();
        let drops_xid = is_xid(event) && xids >= MOST_XIDS;
        if drops_xid || self.log.len() >= MOST_ENTRIES {
            let oldest = self.log.iter().position(|entry| is_xid(&entry.event) == drops_xid);
            oldest.and_then(|at| self.log.remove(at));
        }
    }
}

fn live_bytes(process: &ProcessSnapshot) -> u64 {
    process.memory.live.iter().fold(0, |sum, live| sum.saturating_add(live.amount.bytes))
}

fn launches(process: &ProcessSnapshot) -> u64 {
    let kernels = process.gpu_ops.kernels.iter();
    kernels.fold(process.gpu_ops.graphs.launches, |sum, kernel| sum.saturating_add(kernel.totals.launches))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuprobe_event::gpu_state::GpuState;
    use gpuprobe_event::{Api, LossCause, MemoryAmount, Space};

    use super::*;
    use crate::function_counts::Failure;
    use crate::gpu_state::GpuErrors;
    use crate::live::gpu_state::IndexedGpu;
    use crate::process_info::ProcessInfo;
    use crate::snapshot::GpuMemory;
    use crate::stats::loss_counts::LossCount;

    fn process(pid: u32, bytes: u64, failures: u64) -> Arc<ProcessSnapshot> {
        let key = gpuprobe_event::counters::ProcessKey { tgid: Tgid(pid), instance: 7 };
        let mut process = ProcessSnapshot::new(key, &ProcessInfo::default(), &[], None);
        let amount = MemoryAmount { kind: Space::Device, allocations: 1, bytes };
        process.memory.live = vec![GpuMemory { gpu: None, amount }];
        if failures > 0 {
            let (function, error) = ("cuMemAlloc_v2", "CUDA_ERROR_OUT_OF_MEMORY");
            process.failures = vec![Failure { api: Api::Driver, function, error, count: failures }];
        }
        Arc::new(process)
    }

    fn at(unix_seconds: f64, processes: Vec<Arc<ProcessSnapshot>>) -> Snapshot {
        Snapshot { unix_seconds, processes, ..Snapshot::default() }
    }

    #[test]
    fn curves_have_a_point_every_five_seconds_for_fifteen_minutes() {
        let mut history = History::default();
        for second in 0..2000_u32 {
            history.take(&at(f64::from(second), vec![process(1, second.into(), 0)]));
        }
        assert_eq!((history.times.len(), history.processes[0].live_bytes.len()), (POINTS, POINTS));
        assert_eq!(history.times.back(), Some(&1995.0));
        assert_eq!(
            history.times.back().unwrap() - history.times.front().unwrap(),
            LENGTH_SECONDS - STEP_SECONDS
        );
        assert_eq!(history.processes[0].live_bytes.back(), Some(&1995));
        history.take(&at(3.0, Vec::new()));
        assert!(
            history.processes.is_empty(),
            "an exited process has no curve, also if the clock was set back"
        );
    }

    /// Snapshots may be further apart than points, and their time is no multiple of that between points.
    #[test]
    fn curves_cover_fifteen_minutes_whatever_the_time_between_snapshots_is() {
        for refresh in [0.5, 1.0, 3.0, 5.0, 7.0, 30.0, 60.0, 300.0, 1200.0] {
            let mut history = History::default();
            for number in 0..(3000.0 / refresh) as u32 + 1 {
                let mut snapshot = at(f64::from(number) * refresh, vec![process(1, number.into(), 0)]);
                snapshot.gpu_states.gpus = vec![IndexedGpu { gpu: 0, state: GpuState::default() }];
                history.take(&snapshot);
            }
            let points = history.times.len();
            let lengths = [
                history.processes[0].live_bytes.len(),
                history.processes[0].launches.len(),
                history.gpus[0].busy_percent.len(),
                history.gpus[0].used_bytes.len(),
                history.gpus[0].watts.len(),
            ];
            assert_eq!(lengths, [points; 5], "{refresh}");
            let span = history.times.back().unwrap() - history.times.front().unwrap();
            let step = span / (points - 1).max(1) as f64;
            assert!(points <= POINTS && span < LENGTH_SECONDS, "{refresh}: {points} points in {span} s");
            assert!(span + step >= LENGTH_SECONDS || refresh > LENGTH_SECONDS, "{refresh}: {span} s");
        }
    }

    #[test]
    fn a_clock_that_was_set_back_drops_later_points() {
        let mut history = History::default();
        for time in [100.0, 200.0, 300.0, 150.0, 160.0] {
            history.take(&at(time, vec![process(1, time as u64, 0)]));
        }
        assert_eq!(history.times, [150.0, 160.0]);
        assert_eq!(history.processes[0].live_bytes, [150, 160]);
    }

    #[test]
    fn processes_with_most_memory_have_curves() {
        let mut history = History::default();
        let many: Vec<_> = (0..1000).map(|pid| process(pid, pid.into(), 0)).collect();
        history.take(&at(1.0, many.clone()));
        history.take(&at(10.0, many));
        assert_eq!(history.processes.len(), MOST_PROCESSES);
        assert!(history.processes.iter().all(|process| process.id.pid >= 1000 - MOST_PROCESSES as u32));
        assert!(history.processes.iter().all(|process| process.live_bytes.len() == 2));
    }

    #[test]
    fn the_log_has_what_is_new_and_is_bounded() {
        let mut history = History::default();
        history.take(&at(1.0, vec![process(1, 0, 2)]));
        history.take(&at(2.0, vec![process(1, 0, 2)]));
        let mut third = at(3.0, vec![process(1, 0, 5)]);
        third.gpu_states.xids = vec![GpuErrors { gpu: 1, xid: 31, count: 1 }];
        third.losses = vec![LossCount { cause: LossCause::RingFull, count: 9 }];
        history.take(&third);
        let counts: Vec<u64> = history
            .log
            .iter()
            .map(|entry| match &entry.event {
                LogEvent::Failure { count, .. }
                | LogEvent::Xid { count, .. }
                | LogEvent::Loss { count, .. } => *count,
                LogEvent::More { .. } => 0,
            })
            .collect();
        assert_eq!(counts, [2, 1, 3, 9]);
        for second in 0..100 {
            let many = (0..100).map(|pid| process(pid, 0, second + 1)).collect();
            history.take(&at(10.0 + second as f64, many));
        }
        assert_eq!(history.log.len(), MOST_ENTRIES);
        let is_xid = |entry: &&LogEntry| matches!(entry.event, LogEvent::Xid { .. });
        assert_eq!(history.log.iter().filter(is_xid).count(), 1, "failures do not push it out");
        for count in 0..1000 {
            let mut snapshot = at(1000.0, Vec::new());
            snapshot.gpu_states.xids = vec![GpuErrors { gpu: 0, xid: 79, count: count + 1 }];
            history.take(&snapshot);
        }
        assert_eq!(history.log.iter().filter(is_xid).count(), MOST_XIDS);
        assert!(history.log.len() <= MOST_ENTRIES);
        let many = (0..100).map(|pid| process(pid, 0, 9999)).collect();
        history.take(&at(2000.0, many));
        assert_eq!(history.log.back().map(|entry| &entry.event), Some(&LogEvent::More { entries: 50 }));
    }

    #[test]
    fn a_reading_without_nvml_keeps_the_curves_of_gpus() {
        let mut history = History::default();
        let with_gpu = |seconds: usize| {
            let mut snapshot = at(seconds as f64, Vec::new());
            let state = GpuState { busy_percent: Some(7), ..GpuState::default() };
            snapshot.gpu_states.gpus = vec![IndexedGpu { gpu: 3, state }];
            snapshot
        };
        history.take(&with_gpu(10));
        history.take(&at(20.0, Vec::new()));
        history.take(&with_gpu(30));
        assert_eq!(history.gpus[0].busy_percent, [Some(7), None, Some(7)]);
        for point in 0..(LENGTH_SECONDS / 10.0) as usize {
            assert_eq!(history.gpus.len(), 1, "{point}");
            history.take(&at(40.0 + 10.0 * point as f64, Vec::new()));
        }
        assert!(history.gpus.is_empty(), "nothing of its curves is left");
    }
}
