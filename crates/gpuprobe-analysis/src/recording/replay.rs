//! Replays a recorded trace into its summary and its figures.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::trace::End;
use gpuprobe_event::{Allocation, Call, Event, ProcessChange, SiteId, Tgid};
use serde::Serialize;

use crate::recording::site_memory::{SiteMemory, SiteMemoryReport};
use crate::recording::summary::{Summary, SummaryReport};
use crate::stats::flame::{Flame, FlameNode};
use crate::stats::trend::Trend;
use crate::timeline::call_log::CallLog;
use crate::timeline::execution_log::ExecutionLog;
use crate::timeline::levels::{Level, Levels, Sample};
use crate::timeline::nesting::{Nesting, Slice};
use crate::timeline::{Timeline, TimelineReport};

/// Processes with a curve of live memory.
const MOST_CURVES: usize = 16;
/// Call sites of allocations with a stack of their own.
const MOST_SITES: usize = 10_000;

/// Live memory of one process over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveCurve {
    pub tgid: Tgid,
    /// The name of the process.
    pub process: Arc<str>,
    /// Live bytes of all kinds of memory.
    pub live: Trend,
    /// Live bytes right before it exited, or at the end of the trace.
    pub end_bytes: u64,
}

/// The data of a report.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    pub summary: SummaryReport,
    pub timeline: TimelineReport,
    /// Nanoseconds in calls, by process and nesting of calls.
    pub time: FlameNode,
    /// Bytes allocated, by process and stack.
    pub memory: FlameNode,
    /// The processes with the highest peaks of live memory.
    pub live: Vec<LiveCurve>,
    /// The number of further processes with live memory.
    pub more_live: usize,
    pub sites: SiteMemoryReport,
    /// Individual calls, if they were requested.
    #[serde(skip)]
    pub calls: Arc<CallLog>,
    /// Individual executions, if calls were requested.
    #[serde(skip)]
    pub executions: Arc<ExecutionLog>,
}

/// Takes in a trace. Memory is bounded no matter how long the trace is.
#[derive(Debug, Default)]
pub struct Replay {
    summary: Summary,
    timeline: Timeline,
    nesting: Nesting,
    levels: Levels,
    time: Flame,
    memory: Flame,
    sites: HashMap<(Tgid, SiteId), Allocated>,
    live: HashMap<Tgid, (Arc<str>, Trend)>,
    /// Live bytes of exited processes right before their exit.
    at_exit: HashMap<Tgid, u64>,
    site_memory: SiteMemory,
    calls: Option<CallLog>,
    executions: ExecutionLog,
    slices: Vec<Slice>,
    samples: Vec<Sample>,
}

#[derive(Debug, Default)]
struct Allocated {
    process: Arc<str>,
    bytes: u64,
    /// The outermost frame is last.
    stack: Option<Arc<[String]>>,
}

impl Replay {
    /// Also keeps individual calls, for a timeline that can be zoomed.
    pub fn with_calls() -> Self {
        Self { calls: Some(CallLog::default()), ..Self::default() }
    }

    pub fn feed(&mut self, event: Event) {
        self.summary.feed(&event);
        if let Event::Process(process) = &event
            && process.change == ProcessChange::Exit
            && let Some((_, live)) = self.live.get(&process.tgid)
        {
            self.at_exit.insert(process.tgid, live.last);
        }
        self.levels.feed(&event, &mut self.samples);
        self.site_memory.feed(&event);
        match &event {
            Event::Call(call) => {
                self.allocation(call);
                self.name(call.tgid, &call.process);
            }
            // the process has live memory from before the start of the trace
            Event::Process(process) if !process.live.is_empty() => self.name(process.tgid, &process.process),
            Event::Execution(execution) => {
                self.timeline.execution(execution);
                if self.calls.is_some() {
                    self.executions.take(execution);
                }
            }
            _ => {}
        }
        self.nesting.event(event, &mut self.slices);
        self.draw();
    }

    /// Ends the replay. `end` is the last line of the trace; it is missing if the recording was interrupted.
    pub fn finish(mut self, end: Option<&End>) -> ReplayReport {
        if let Some(end) = end {
            self.summary.end(end);
        }
        self.nesting.finish(&mut self.slices);
        self.draw();
        for site in self.sites.values() {
            self.memory.add(outermost_first(&site.process, site.stack.as_deref()), site.bytes);
        }
        let curve = |(tgid, (process, live)): (Tgid, (Arc<str>, Trend))| {
            let end_bytes = self.at_exit.get(&tgid).copied().unwrap_or(live.last);
            LiveCurve { tgid, process, live, end_bytes }
        };
        let mut live: Vec<_> = self.live.into_iter().map(curve).filter(|curve| curve.live.peak > 0).collect();
        live.sort_by_key(|curve| (std::cmp::Reverse(curve.live.peak), curve.tgid));
        let more_live = live.len().saturating_sub(MOST_CURVES);
        live.truncate(MOST_CURVES);
        ReplayReport {
            summary: self.summary.report(),
            timeline: self.timeline.report(self.nesting.extent()),
            time: self.time.root().clone(),
            memory: self.memory.root().clone(),
            live,
            more_live,
            sites: self.site_memory.report(),
            calls: Arc::new(self.calls.unwrap_or_default().finish()),
            executions: Arc::new(self.executions.finish()),
        }
    }

    fn allocation(&mut self, call: &Call) {
        let Some(&Allocation { bytes, site, .. }) = call.effect.allocation() else { return };
        let Some(site) = site else {
            // a trace in which every call carries its stack has no site ids
            return self.memory.add(outermost_first(&call.process, call.stack.as_deref()), bytes);
        };
        let key = (call.tgid, site);
        if !self.sites.contains_key(&key) && self.sites.len() >= MOST_SITES {
            return self.memory.add(["(other call sites)"], bytes);
        }
        let site = self.sites.entry(key).or_default();
        site.process = Arc::clone(&call.process);
        site.bytes = site.bytes.saturating_add(bytes);
        if site.stack.is_none() {
            site.stack.clone_from(&call.stack);
        }
    }

    /// Stores the name of a process, since samples of levels only have its pid.
    fn name(&mut self, tgid: Tgid, process: &Arc<str>) {
        if self.live.len() < 1 << 12 && !self.live.contains_key(&tgid) {
            self.live.insert(tgid, (Arc::clone(process), Trend::default()));
        }
    }

    fn draw(&mut self) {
        for sample in self.samples.drain(..).filter(|sample| sample.level == Level::Live) {
            if let Some((_, trend)) = self.live.get_mut(&sample.tgid) {
                trend.set(sample.at_ns, sample.value);
            }
        }
        self.timeline.feed(&self.slices);
        self_times(&self.slices, |nested, self_ns| {
            let Some(outermost) = nested.first() else { return };
            let titles: Vec<_> = nested.iter().map(|slice| slice.call.title()).collect();
            let stack = std::iter::once(&*outermost.call.process).chain(titles.iter().map(AsRef::as_ref));
            self.time.add(stack, self_ns);
        });
        if let Some(calls) = &mut self.calls {
            calls.take(&mut self.slices);
        }
        self.slices.clear();
    }
}

/// A process and the frames of a stack, the outermost first.
fn outermost_first<'a>(process: &'a str, stack: Option<&'a [String]>) -> impl Iterator<Item = &'a str> {
    std::iter::once(process).chain(stack.unwrap_or_default().iter().rev().map(String::as_str))
}

/// Calls `then` for each call with the chain of calls that ends with it and with its self time.
fn self_times(slices: &[Slice], mut then: impl FnMut(&[&Slice], u64)) {
    let mut open: Vec<&Slice> = Vec::new();
    let mut self_ns: Vec<u64> = Vec::new();
    for slice in slices {
        while open.len() > slice.depth {
            then(&open, self_ns.pop().unwrap_or(0));
            open.pop();
        }
        let ns = slice.end_ns.saturating_sub(slice.start_ns);
        if let Some(outer) = self_ns.last_mut() {
            *outer = outer.saturating_sub(ns);
        }
        open.push(slice);
        self_ns.push(ns);
    }
    while !open.is_empty() {
        then(&open, self_ns.pop().unwrap_or(0));
        open.pop();
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Effect, MemoryAmount, Outcome, ProcessEvent, Space};

    use super::*;
    use crate::samples::{alloc, call, inside, process};

    #[test]
    fn time_counts_for_the_call_it_was_spent_in() {
        let mut replay = Replay::default();
        let at = |start_ns, duration_ns, call: Call| {
            let outcome = Outcome::Returned { value: 0, duration_ns };
            Event::Call(Box::new(Call { start_ns, outcome, ..call }))
        };
        let outer = Call { id: 1, ..call(Api::Runtime, "cudaMalloc", 0) };
        replay.feed(at(110, 60, inside(Call { id: 2, ..call(Api::Driver, "cuMemAlloc_v2", 0) }, 1)));
        replay.feed(at(100, 100, outer.clone()));
        replay.feed(at(300, 5, Call { id: 3, ..outer }));
        let report = replay.finish(None);
        let process = report.time.children.values().next().unwrap();
        let malloc = &process.children["cudaMalloc"];
        assert_eq!((report.time.total, malloc.total, malloc.children["cuMemAlloc_v2"].total), (105, 105, 60));
        assert_eq!(report.summary.calls, 3);
    }

    #[test]
    fn memory_from_before_the_trace_is_in_the_curve() {
        let live = vec![MemoryAmount { kind: Space::Device, allocations: 1, bytes: 1 << 20 }];
        let start = ProcessEvent { live, ..process(ProcessChange::Start, 10, None) };
        let mut replay = Replay::default();
        replay.feed(Event::Process(start));
        let report = replay.finish(None);
        assert_eq!((report.live.len(), report.live[0].live.peak), (1, 1 << 20));
    }

    #[test]
    fn live_bytes_right_before_the_exit_are_known() {
        let mut replay = Replay::default();
        replay.feed(Event::Call(Box::new(alloc(0x10, 4096, 50))));
        replay.feed(Event::Process(process(ProcessChange::Exit, 90, Some(0))));
        let report = replay.finish(None);
        assert_eq!((report.live[0].live.last, report.live[0].end_bytes), (0, 4096));
    }

    #[test]
    fn memory_is_summed_by_call_site_and_over_time() {
        let mut replay = Replay::default();
        let with_site = |mut call: Call| {
            if let Effect::Alloc(allocation) = &mut call.effect {
                allocation.site = Some(SiteId(3));
            }
            call
        };
        let mut first = with_site(alloc(0x10, 4096, 50));
        first.stack = Some(["inner".to_owned(), "main".to_owned()].into());
        let second = with_site(alloc(0x20, 100, 60));
        let name = Arc::clone(&first.process);
        replay.feed(Event::Call(Box::new(first)));
        replay.feed(Event::Call(Box::new(second)));
        let report = replay.finish(None);
        assert_eq!(report.memory.children[&*name].children["main"].children["inner"].total, 4196);
        assert_eq!((report.live.len(), report.live[0].live.peak), (1, 4196));
    }

    #[test]
    fn memory_is_summed_by_stack_if_every_call_carries_its_stack() {
        let mut replay = Replay::default();
        for (at, frame, bytes) in [(10, "load", 100), (20, "train", 7), (30, "load", 50)] {
            let stack = Some([frame.to_owned(), "main".to_owned()].into());
            replay.feed(Event::Call(Box::new(Call { stack, ..alloc(0x10 * at, bytes, at) })));
        }
        let report = replay.finish(None);
        let main = &report.memory.children["app"].children["main"];
        assert_eq!((main.total, main.children["load"].total, main.children["train"].total), (157, 150, 7));
    }
}
