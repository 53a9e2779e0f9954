//! A recorded trace, taken in whole: its summary, and what is drawn of it.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::trace::End;
use gpuprobe_event::{Allocation, Call, Event, ProcessChange, SiteId, Tgid};
use serde::Serialize;

use crate::recording::summary::{Summary, SummaryReport};
use crate::stats::flame::{Flame, FlameNode};
use crate::stats::trend::Trend;
use crate::timeline::levels::{Level, Levels, Sample};
use crate::timeline::nesting::{Nesting, Slice};
use crate::timeline::{Timeline, TimelineReport};

/// Processes whose memory is drawn.
const MOST_CURVES: usize = 16;
/// Places of allocations that are told apart.
const MOST_PLACES: usize = 10_000;

/// What one process held over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveCurve {
    /// The process.
    pub tgid: Tgid,
    /// Its name.
    pub process: Arc<str>,
    /// Bytes, of every kind of memory.
    pub live: Trend,
    /// Bytes right before it exited, or at the end of the trace.
    pub end_bytes: u64,
}

/// Everything that a report is made of.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// As it is printed.
    pub summary: SummaryReport,
    /// What threads did when.
    pub timeline: TimelineReport,
    /// Nanoseconds in calls, by process and by the calls they were made in.
    pub time: FlameNode,
    /// Bytes allocated, by process and by the way to the allocation.
    pub memory: FlameNode,
    /// Live memory of the processes that held most.
    pub live: Vec<LiveCurve>,
    /// Processes that held some, and are not among these.
    pub more_live: usize,
}

/// Takes in a trace. Memory has a bound, whatever the length of the trace.
#[derive(Debug, Default)]
pub struct Replay {
    summary: Summary,
    timeline: Timeline,
    nesting: Nesting,
    levels: Levels,
    time: Flame,
    memory: Flame,
    places: HashMap<(Tgid, SiteId), Allocated>,
    live: HashMap<Tgid, (Arc<str>, Trend)>,
    /// Live bytes of processes that have exited, right before that.
    at_exit: HashMap<Tgid, u64>,
    slices: Vec<Slice>,
    samples: Vec<Sample>,
}

#[derive(Debug, Default)]
struct Allocated {
    process: Arc<str>,
    bytes: u64,
    /// Outermost last; only one allocation of each place tells it.
    way: Option<Vec<String>>,
}

impl Replay {
    /// Takes in one event.
    pub fn feed(&mut self, event: Event) {
        self.summary.feed(&event);
        if let Event::Process(process) = &event
            && process.change == ProcessChange::Exit
            && let Some((_, live)) = self.live.get(&process.tgid)
        {
            self.at_exit.insert(process.tgid, live.last);
        }
        self.levels.feed(&event, &mut self.samples);
        match &event {
            Event::Call(call) => {
                self.allocation(call);
                self.name(call.tgid, &call.process);
            }
            // it holds something from before the trace begins
            Event::Process(process) if !process.held.is_empty() => self.name(process.tgid, &process.process),
            _ => {}
        }
        self.nesting.event(event, &mut self.slices);
        self.draw();
    }

    /// The trace is over. Its last line is there unless the recording was interrupted.
    pub fn finish(mut self, end: Option<&End>) -> ReplayReport {
        if let Some(end) = end {
            self.summary.end(end);
        }
        self.nesting.finish(&mut self.slices);
        self.draw();
        for place in self.places.values() {
            self.memory.add(way(&place.process, place.way.as_deref()), place.bytes);
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
        }
    }

    fn allocation(&mut self, call: &Call) {
        let Some(&Allocation { bytes, site, .. }) = call.effect.allocation() else { return };
        let Some(site) = site else {
            // what tells every stack has no numbers for them
            return self.memory.add(way(&call.process, call.stack.as_deref()), bytes);
        };
        let key = (call.tgid, site);
        if !self.places.contains_key(&key) && self.places.len() >= MOST_PLACES {
            return self.memory.add(["(other places)"], bytes);
        }
        let place = self.places.entry(key).or_default();
        place.process = Arc::clone(&call.process);
        place.bytes = place.bytes.saturating_add(bytes);
        if place.way.is_none() {
            place.way = call.stack.clone();
        }
    }

    /// Levels know processes by their numbers only.
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
        self_times(&self.slices, |path, self_ns| {
            let Some(outermost) = path.first() else { return };
            let titles: Vec<_> = path.iter().map(|slice| slice.call.title()).collect();
            let way = std::iter::once(&*outermost.call.process).chain(titles.iter().map(AsRef::as_ref));
            self.time.add(way, self_ns);
        });
        self.slices.clear();
    }
}

/// A process and the frames in it, the outermost first.
fn way<'a>(process: &'a str, stack: Option<&'a [String]>) -> impl Iterator<Item = &'a str> {
    std::iter::once(process).chain(stack.unwrap_or_default().iter().rev().map(String::as_str))
}

/// For each call, the calls that it was made in and itself, and the time that was spent in it and in nothing below it.
fn self_times(slices: &[Slice], mut then: impl FnMut(&[&Slice], u64)) {
    let mut open: Vec<&Slice> = Vec::new();
    let mut own: Vec<u64> = Vec::new();
    for slice in slices {
        while open.len() > slice.depth {
            then(&open, own.pop().unwrap_or(0));
            open.pop();
        }
        let ns = slice.end_ns.saturating_sub(slice.start_ns);
        if let Some(around) = own.last_mut() {
            *around = around.saturating_sub(ns);
        }
        open.push(slice);
        own.push(ns);
    }
    while !open.is_empty() {
        then(&open, own.pop().unwrap_or(0));
        open.pop();
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Effect, MemoryAmount, Outcome, ProcessEvent, Space};

    use super::*;
    use crate::samples::{alloc, call, inside, process};

    #[test]
    fn time_goes_to_the_call_it_was_spent_in() {
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
    fn what_was_held_before_the_trace_begins_is_drawn() {
        let held = vec![MemoryAmount { kind: Space::Device, allocations: 1, bytes: 1 << 20 }];
        let start = ProcessEvent { held, ..process(ProcessChange::Start, 10, None) };
        let mut replay = Replay::default();
        replay.feed(Event::Process(start));
        let report = replay.finish(None);
        assert_eq!((report.live.len(), report.live[0].live.peak), (1, 1 << 20));
    }

    #[test]
    fn what_was_live_right_before_the_exit_is_known() {
        let mut replay = Replay::default();
        replay.feed(Event::Call(Box::new(alloc(0x10, 4096, 50))));
        replay.feed(Event::Process(process(ProcessChange::Exit, 90, Some(0))));
        let report = replay.finish(None);
        assert_eq!((report.live[0].live.last, report.live[0].end_bytes), (0, 4096));
    }

    #[test]
    fn memory_is_drawn_by_place_and_over_time() {
        let mut replay = Replay::default();
        let placed = |mut call: Call| {
            if let Effect::Alloc(allocation) = &mut call.effect {
                allocation.site = Some(SiteId(3));
            }
            call
        };
        let mut first = placed(alloc(0x10, 4096, 50));
        first.stack = Some(vec!["inner".to_owned(), "main".to_owned()]);
        let second = placed(alloc(0x20, 100, 60));
        let name = Arc::clone(&first.process);
        replay.feed(Event::Call(Box::new(first)));
        replay.feed(Event::Call(Box::new(second)));
        let report = replay.finish(None);
        assert_eq!(report.memory.children[&*name].children["main"].children["inner"].total, 4196);
        assert_eq!((report.live.len(), report.live[0].live.peak), (1, 4196));
    }

    #[test]
    fn where_every_call_tells_its_stack_memory_goes_to_that() {
        let mut replay = Replay::default();
        for (at, frame, bytes) in [(10, "load", 100), (20, "train", 7), (30, "load", 50)] {
            let stack = Some(vec![frame.to_owned(), "main".to_owned()]);
            replay.feed(Event::Call(Box::new(Call { stack, ..alloc(0x10 * at, bytes, at) })));
        }
        let report = replay.finish(None);
        let main = &report.memory.children["app"].children["main"];
        assert_eq!((main.total, main.children["load"].total, main.children["train"].total), (157, 150, 7));
    }
}
