//! Figures about what GPUs executed, from the events of a recording.

mod busy_union;
mod gpu_time_report;
mod host_calls;
mod thread_ranges;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpuprobe_event::agent::{Collection, RangeKind};
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{
    AgentEvent, Call, Event, Execution, ExecutionKind, ProcessChange, RangeEvent, Tgid, Tid,
};

use self::busy_union::{BusyUnion, Interval};
pub use self::gpu_time_report::{
    AgentSummary, CopyTime, GpuBusy, GpuIdle, GpuTime, KernelTime, QueueingDelay, RangeTime, StreamBusy,
};
pub use self::host_calls::HostActivity;
use self::host_calls::HostCalls;
use self::thread_ranges::{RangeName, ThreadRanges};
use crate::gpu_ops::launches::{OTHER_KERNELS, UNKNOWN_KERNEL};
use crate::stats::distribution::Distribution;

/// What ended an idle time: its thread, and when it was submitted.
type Submitted = Option<(Tid, u64)>;

/// The GPU of a process by its own number.
type GpuKey = (Tgid, u32);

/// Collects [`GpuTime`]. Its memory is bounded for any input.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuTimeAccount {
    executions: u64,
    unmatched: u64,
    kernels: HashMap<Arc<str>, TimeRow>,
    copies: BTreeMap<CopyDirection, CopyTime>,
    /// CUDA graphs as a whole.
    graphs: TimeRow,
    gpus: BTreeMap<GpuKey, Gpu>,
    queued: Distribution,
    queued_ns: u64,
    longest_queued_ns: u64,
    idle: BTreeMap<HostActivity, GpuIdle>,
    agents: BTreeMap<Tgid, Agent>,
    host_calls: HostCalls,
    ranges: RangeTimes,
}

/// Executions with one name.
#[derive(Clone, Debug, Default)]
struct TimeRow {
    executions: u64,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
    times: Distribution,
}

impl TimeRow {
    fn add(&mut self, ns: u64) {
        self.min_ns = if self.executions == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.executions += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.times.add(ns);
    }
}

#[derive(Clone, Debug, Default)]
struct Gpu {
    process: Arc<str>,
    executions: u64,
    union: BusyUnion<Submitted>,
    streams: BTreeMap<(u32, u32), Stream>,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    executions: u64,
    union: BusyUnion<()>,
}

/// The agent of a process.
#[derive(Clone, Debug)]
struct Agent {
    last: AgentEvent,
    /// Since when it collects.
    since_ns: Option<u64>,
    /// The time of earlier collections.
    covered_ns: u64,
    /// The end of the last execution or call.
    seen_ns: u64,
}

impl Agent {
    fn covered_ns(&self) -> u64 {
        let now = self.since_ns.map_or(0, |since_ns| self.seen_ns.saturating_sub(since_ns));
        self.covered_ns.saturating_add(now)
    }

    fn change(&mut self, state: &AgentEvent) {
        // until the change begins; from when it is complete
        self.seen_ns = match self.since_ns {
            Some(_) => state.begin_ns,
            None => self.seen_ns,
        };
        self.covered_ns = self.covered_ns();
        self.since_ns = (state.collection == Collection::Collecting).then_some(state.end_ns);
        self.last = state.clone();
    }
}

/// GPU time by NVTX range.
#[derive(Clone, Debug, Default)]
struct RangeTimes {
    threads: ThreadRanges,
    numbers: HashMap<(Option<Arc<str>>, Arc<str>), RangeName>,
    rows: Vec<RangeTime>,
}

impl GpuTimeAccount {
    const MOST_KERNELS: usize = 4096;
    const MOST_GPUS: usize = 1024;
    const MOST_STREAMS: usize = 1024;
    const MOST_AGENTS: usize = 1024;

    pub(crate) fn feed(&mut self, event: &Event) {
        match event {
            Event::Call(call) => self.call(call),
            Event::Execution(execution) => self.execution(execution),
            Event::Range(range) => self.ranges.range(range),
            Event::Agent(state) => self.agent(state),
            Event::Process(change) if change.change != ProcessChange::Start => self.end(change.tgid),
            Event::Process(_) | Event::Loss(_) | Event::Xid(_) | Event::OutOfMemory(_) => {}
        }
    }

    fn call(&mut self, call: &Call) {
        // other processes have no executions
        let Some(agent) = self.agents.get_mut(&call.tgid) else { return };
        if agent.since_ns.is_some() && !call.is_in_linux() {
            agent.seen_ns = agent.seen_ns.max(call.start_ns.saturating_add(call.duration_ns().unwrap_or(0)));
            self.host_calls.feed(call);
        }
    }

    fn agent(&mut self, state: &AgentEvent) {
        if self.agents.len() >= Self::MOST_AGENTS && !self.agents.contains_key(&state.tgid) {
            return;
        }
        if state.collection == Collection::Collecting {
            // nothing is known about the time between two collections
            self.close(state.tgid);
            self.gpus
                .range_mut((state.tgid, 0)..=(state.tgid, u32::MAX))
                .for_each(|(_, gpu)| gpu.union.interrupt());
        }
        let new = || Agent { last: state.clone(), since_ns: None, covered_ns: 0, seen_ns: 0 };
        self.agents.entry(state.tgid).or_insert_with(new).change(state);
    }

    /// A process exited or runs another program.
    fn end(&mut self, tgid: Tgid) {
        if let Some(agent) = self.agents.get_mut(&tgid) {
            agent.covered_ns = agent.covered_ns();
            agent.since_ns = None;
        }
        self.close(tgid);
        self.host_calls.clear(tgid);
        self.ranges.threads.clear(tgid);
    }

    fn execution(&mut self, execution: &Execution) {
        let ns = execution.duration_ns();
        self.executions += 1;
        match &execution.kind {
            ExecutionKind::Kernel { name, .. } => self.kernel(name.as_ref(), ns),
            ExecutionKind::Copy { direction, bytes } => self.copy(*direction, *bytes, ns),
            ExecutionKind::Memset { bytes } => self.copy(CopyDirection::Fill, *bytes, ns),
            ExecutionKind::Graph => self.graphs.add(ns),
        }
        // a node of a graph also waits for other nodes
        let is_node = execution.graph.is_some() && execution.kind != ExecutionKind::Graph;
        match execution.submission {
            Some(by) if !is_node => {
                self.queued.add(by.queued_ns);
                self.queued_ns = self.queued_ns.saturating_add(by.queued_ns);
                self.longest_queued_ns = self.longest_queued_ns.max(by.queued_ns);
            }
            Some(_) => {}
            None => self.unmatched += 1,
        }
        if let Some(agent) = self.agents.get_mut(&execution.tgid) {
            agent.seen_ns = agent.seen_ns.max(execution.end_ns);
        }
        self.ranges.execution(execution);
        self.busy(execution);
    }

    fn kernel(&mut self, name: Option<&Arc<str>>, ns: u64) {
        let name = match name {
            Some(name) if self.kernels.contains_key(name) || self.kernels.len() < Self::MOST_KERNELS => {
                Arc::clone(name)
            }
            Some(_) => Arc::from(OTHER_KERNELS),
            None => Arc::from(UNKNOWN_KERNEL),
        };
        self.kernels.entry(name).or_default().add(ns);
    }

    fn copy(&mut self, direction: CopyDirection, bytes: u64, ns: u64) {
        let new = CopyTime { direction, copies: 0, bytes: 0, total_ns: 0 };
        let row = self.copies.entry(direction).or_insert(new);
        row.copies += 1;
        row.bytes = row.bytes.saturating_add(bytes);
        row.total_ns = row.total_ns.saturating_add(ns);
    }

    fn busy(&mut self, execution: &Execution) {
        let key = (execution.tgid, execution.gpu);
        if self.gpus.len() >= Self::MOST_GPUS && !self.gpus.contains_key(&key) {
            return;
        }
        let gpu = self.gpus.entry(key).or_default();
        gpu.process = Arc::clone(&execution.process);
        gpu.executions += 1;
        let (start_ns, end_ns) = (execution.start_ns, execution.end_ns);
        let first = execution.submission.map(|by| by.tid).zip(execution.submitted_ns());
        let (host_calls, idle) = (&self.host_calls, &mut self.idle);
        gpu.union.add(Interval { start_ns, end_ns, first }, |it| idle_time(host_calls, idle, key.0, it));
        let stream = (execution.context, execution.stream);
        if gpu.streams.len() < Self::MOST_STREAMS || gpu.streams.contains_key(&stream) {
            let stream = gpu.streams.entry(stream).or_default();
            stream.executions += 1;
            stream.union.add(Interval { start_ns, end_ns, first: () }, |_| {});
        }
    }

    /// Completes the idle times of a process.
    fn close(&mut self, tgid: Tgid) {
        let gpus = self.gpus.range_mut((tgid, 0)..=(tgid, u32::MAX));
        close(gpus, &self.host_calls, &mut self.idle);
    }

    pub(crate) fn report(&self) -> GpuTime {
        let (mut gpus, mut idle) = (self.gpus.clone(), self.idle.clone());
        close(gpus.iter_mut(), &self.host_calls, &mut idle);
        gpu_time_report::report(self, &gpus, &idle)
    }
}

/// Completes the idle times of GPUs.
fn close<'a>(
    gpus: impl Iterator<Item = (&'a GpuKey, &'a mut Gpu)>,
    host_calls: &HostCalls,
    idle: &mut BTreeMap<HostActivity, GpuIdle>,
) {
    for ((tgid, _), gpu) in gpus {
        gpu.union.close(u64::MAX, 0, |it| idle_time(host_calls, idle, *tgid, it));
    }
}

/// Divides an idle time of a GPU among what the thread did that ended it.
fn idle_time(
    host_calls: &HostCalls,
    rows: &mut BTreeMap<HostActivity, GpuIdle>,
    tgid: Tgid,
    idle: Interval<Submitted>,
) {
    let mut parts: BTreeMap<HostActivity, u64> = BTreeMap::new();
    let mut part = |host, ns: u64| {
        let sum = parts.entry(host).or_default();
        *sum = sum.saturating_add(ns);
    };
    let (from_ns, to_ns) = (idle.start_ns, idle.end_ns);
    match idle.first {
        None => part(HostActivity::Unknown, to_ns - from_ns),
        Some((tid, submitted_ns)) => {
            let until_ns = submitted_ns.clamp(from_ns, to_ns);
            part(HostActivity::Submitted, to_ns - until_ns);
            host_calls.divide((tgid, tid), (from_ns, until_ns), part);
        }
    }
    for (host, ns) in parts.into_iter().filter(|(_, ns)| *ns > 0) {
        let row = rows.entry(host).or_insert(GpuIdle { host, times: 0, idle_ns: 0, longest_ns: 0 });
        row.times += 1;
        row.idle_ns = row.idle_ns.saturating_add(ns);
        row.longest_ns = row.longest_ns.max(ns);
    }
}

impl RangeTimes {
    const MOST_NAMES: usize = 2048;

    fn range(&mut self, range: &RangeEvent) {
        if range.kind != RangeKind::Nested {
            return;
        }
        let Some(name) = self.name(range) else { return };
        let times = (range.start_ns, range.end_ns);
        let counted = self.threads.ended((range.tgid, range.tid), times, name);
        let Some(row) = self.rows.get_mut(name as usize) else { return };
        row.ranges += 1;
        row.host_ns = row.host_ns.saturating_add(range.end_ns.saturating_sub(range.start_ns));
        if let Some(counted) = counted {
            row.executions += counted.executions;
            row.gpu_ns = row.gpu_ns.saturating_add(counted.ns);
        }
    }

    fn execution(&mut self, execution: &Execution) {
        let (Some(by), Some(at_ns)) = (execution.submission, execution.submitted_ns()) else { return };
        let ns = execution.duration_ns();
        if let Some(name) = self.threads.executed((execution.tgid, by.tid), at_ns, ns)
            && let Some(row) = self.rows.get_mut(name as usize)
        {
            row.executions += 1;
            row.gpu_ns = row.gpu_ns.saturating_add(ns);
        }
    }

    /// The number of a name; `None` if there are too many.
    fn name(&mut self, range: &RangeEvent) -> Option<RangeName> {
        let key = (range.domain.clone(), Arc::clone(&range.name));
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let number = RangeName::try_from(self.rows.len()).ok()?;
        if self.rows.len() >= Self::MOST_NAMES {
            return None;
        }
        let (domain, name) = key.clone();
        self.rows.push(RangeTime { domain, name, ranges: 0, executions: 0, gpu_ns: 0, host_ns: 0 });
        self.numbers.insert(key, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests;
