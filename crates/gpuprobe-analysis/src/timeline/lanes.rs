//! Lanes of a timeline: the calls of each thread and the operations submitted to each stream, over time.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::trace::type_of;
use gpuprobe_event::{Class, Event, Execution, ExecutionKind, Tgid, Tid};
use serde::Serialize;

use crate::stats::bins::{BinValue, Bins};
use crate::timeline::nesting::{Extent, Nesting, Slice};
use crate::timeline::stream_ops::stream_ops;

/// Bins of a row: enough for each bin to be narrower than a column on the screen.
pub const MOST_BINS: usize = 4096;
/// Rows of a timeline. Calls of further rows are only counted.
const MOST_ROWS: usize = 256;

/// What a thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// Allocating or freeing.
    Memory,
    /// Copying or filling.
    Transfer,
    /// Launching CUDA kernels or graphs.
    Launch,
    /// Waiting for the GPU.
    Sync,
    /// In the Linux kernel, below the CUDA call.
    Kernel,
    /// Any other call.
    Other,
    /// A GPU executes a CUDA kernel or a graph.
    Gpu,
}

impl Activity {
    pub const ALL: [Self; 7] =
        [Self::Memory, Self::Transfer, Self::Launch, Self::Sync, Self::Kernel, Self::Other, Self::Gpu];

    pub fn of(class: Class) -> Self {
        // the same names as the types of calls in a trace
        let of_trace = type_of(class);
        if class == Class::Scheduler {
            return Self::Kernel;
        }
        Self::ALL.into_iter().find(|doing| doing.as_str() == of_trace).unwrap_or(Self::Other)
    }

    pub fn of_execution(kind: &ExecutionKind) -> Self {
        match kind {
            ExecutionKind::Kernel { .. } | ExecutionKind::Graph => Self::Gpu,
            ExecutionKind::Copy { .. } | ExecutionKind::Memset { .. } => Self::Transfer,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Transfer => "transfer",
            Self::Launch => "launch",
            Self::Sync => "sync",
            Self::Kernel => "kernel",
            Self::Other => "other",
            Self::Gpu => "gpu",
        }
    }
}

/// The owner of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// The calls of a thread.
    Thread(Tid),
    /// The calls of a thread into the Linux kernel, below its CUDA calls.
    Driver(Tid),
    /// The calls that submitted operations to a stream. This is not the time at which the GPU ran them.
    Stream(u64),
    /// What a GPU executed of a stream, by CUPTI's number.
    Gpu { gpu: u32, stream: u32 },
}

impl Lane {
    /// Sorts threads before streams, each followed by its calls into the Linux kernel, and GPUs last.
    fn sort_key(self) -> (u8, u64, u32) {
        match self {
            Self::Thread(tid) => (0, tid.0.into(), 0),
            Self::Driver(tid) => (0, tid.0.into(), 1),
            Self::Stream(handle) => (1, handle, 0),
            Self::Gpu { gpu, stream } => (2, gpu.into(), stream),
        }
    }
}

/// Nanoseconds of each [`Activity`] in one bin.
pub type Bin = [u64; Activity::ALL.len()];

impl BinValue for Bin {
    fn merge(&mut self, later: &Self) {
        self.iter_mut().zip(later).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }
}

/// The calls of one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub tgid: Tgid,
    /// The name of the process.
    pub process: Arc<str>,
    pub lane: Lane,
    /// Or executions.
    pub calls: u64,
    pub bins: Bins<Bin, MOST_BINS>,
}

impl Row {
    /// Its bins resampled to this many columns over the time of the report. A bin is divided among the columns it
    /// overlaps.
    pub fn fitted(&self, report: &TimelineReport, columns: usize) -> Vec<Bin> {
        let mut fitted = vec![Bin::default(); columns];
        let span = (report.to_ns - report.from_ns).max(1);
        // the position of a time, in columns from the start
        let position = |at_ns: u64| (at_ns - report.from_ns) as f64 / span as f64 * columns as f64;
        for (times, bin) in self.bins.iter().filter(|(_, bin)| **bin != Bin::default()) {
            let from_ns = times.start.clamp(report.from_ns, report.to_ns);
            let (from, to) = (position(from_ns), position(times.end.clamp(from_ns, report.to_ns)));
            let mut left = *bin;
            let mut column = (from as usize).min(columns.saturating_sub(1));
            while let Some(into) = fitted.get_mut(column) {
                column += 1;
                let is_last = column as f64 >= to || column >= columns;
                let passed = (column as f64 - from) / (to - from);
                for i in 0..bin.len() {
                    let rest = if is_last { 0 } else { (bin[i] as f64 * (1.0 - passed)) as u64 };
                    into[i] = into[i].saturating_add(left[i].saturating_sub(rest));
                    left[i] = left[i].min(rest);
                }
                if is_last {
                    break;
                }
            }
        }
        fitted
    }
}

/// The rows of all threads and streams in a time range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineReport {
    /// The time of the first event, or the requested start.
    pub from_ns: u64,
    /// The time of the last event, or the requested end if that is earlier.
    pub to_ns: u64,
    /// Sorted by process, threads before streams, GPUs last.
    pub rows: Vec<Row>,
    /// Calls of rows for which there was no room.
    pub calls_without_row: u64,
}

impl TimelineReport {
    /// Whether there are lanes of calls into the Linux kernel.
    pub fn has_driver(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.lane, Lane::Driver(_)))
    }

    /// Whether there are lanes of GPUs.
    pub fn has_gpu(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.lane, Lane::Gpu { .. }))
    }

    /// The activities of its lanes.
    pub fn activities(&self) -> impl Iterator<Item = Activity> {
        let (has_driver, has_gpu) = (self.has_driver(), self.has_gpu());
        Activity::ALL.into_iter().filter(move |doing| match doing {
            Activity::Kernel => has_driver,
            Activity::Gpu => has_gpu,
            _ => true,
        })
    }
}

/// The calls into the Linux kernel in a call tree that are not inside another such call.
fn outermost_kernel(calls: &[Slice]) -> impl Iterator<Item = &Slice> {
    let mut inside = usize::MAX;
    calls.iter().filter(move |slice| {
        if slice.depth > inside {
            return false;
        }
        inside = if slice.call.is_in_linux() { slice.depth } else { usize::MAX };
        slice.call.is_in_linux()
    })
}

/// Collects a [`TimelineReport`].
#[derive(Debug, Default)]
pub struct Timeline {
    from_ns: Option<u64>,
    until_ns: Option<u64>,
    rows: HashMap<(Tgid, Lane), Row>,
    calls_without_row: u64,
}

impl Timeline {
    /// Limited to the time from `from_ns` until `until_ns`, if given.
    pub fn new(from_ns: Option<u64>, until_ns: Option<u64>) -> Self {
        Self { from_ns, until_ns, ..Self::default() }
    }

    /// Takes in calls as [`crate::Nesting`] returns them. Calls inside others are part of these.
    pub fn feed(&mut self, slices: &[Slice]) {
        for calls in slices.chunk_by(|_, next| next.depth > 0) {
            let Some(outermost) = calls.first() else { continue };
            let mut has_room =
                outermost.call.is_in_linux() || self.add(outermost, Lane::Thread(outermost.call.tid));
            for below in outermost_kernel(calls) {
                has_room &= self.add(below, Lane::Driver(below.call.tid));
            }
            for op in stream_ops(calls) {
                has_room &= self.add(op.slice, Lane::Stream(op.stream));
            }
            self.calls_without_row += u64::from(!has_room);
        }
    }

    /// Takes in an execution.
    pub fn execution(&mut self, execution: &Execution) {
        let lane = Lane::Gpu { gpu: execution.gpu, stream: execution.stream };
        let doing = Activity::of_execution(&execution.kind);
        let times = (execution.start_ns, execution.end_ns);
        let has_room = self.add_time((execution.tgid, lane), &execution.process, doing, times);
        self.calls_without_row += u64::from(!has_room);
    }

    /// Adds a call to a row. Returns `false` if there is no room for the row.
    fn add(&mut self, slice: &Slice, lane: Lane) -> bool {
        let call = &slice.call;
        let times = (slice.start_ns, slice.end_ns);
        self.add_time((call.tgid, lane), &call.process, Activity::of(call.class), times)
    }

    fn add_time(
        &mut self,
        key: (Tgid, Lane),
        process: &Arc<str>,
        doing: Activity,
        (start_ns, end_ns): (u64, u64),
    ) -> bool {
        let from_ns = self.from_ns.unwrap_or(0);
        let until_ns = self.until_ns.unwrap_or(u64::MAX);
        if end_ns < from_ns || start_ns >= until_ns {
            return true;
        }
        if !self.rows.contains_key(&key) && self.rows.len() >= MOST_ROWS {
            return false;
        }
        let row = self.rows.entry(key).or_insert_with(|| Row {
            tgid: key.0,
            process: Arc::clone(process),
            lane: key.1,
            calls: 0,
            bins: Bins::default(),
        });
        row.calls += 1;
        let doing = doing as usize;
        let (start_ns, end_ns) = (start_ns.max(from_ns), end_ns.min(until_ns));
        for (times, bin) in row.bins.between(start_ns, end_ns) {
            let share = end_ns.min(times.end).saturating_sub(start_ns.max(times.start));
            // a call without a measurable duration counts as one nanosecond
            bin[doing] = bin[doing].saturating_add(share.max(u64::from(start_ns == end_ns)));
        }
        true
    }

    /// The timeline of a trace with this extent.
    pub fn report(&self, extent: Extent) -> TimelineReport {
        let mut rows: Vec<_> = self.rows.values().cloned().collect();
        rows.sort_by_key(|row| (row.tgid, row.lane.sort_key()));
        let from_ns = self.from_ns.unwrap_or(extent.first_ns);
        let to_ns = self.until_ns.map_or(extent.last_ns, |until| until.min(extent.last_ns)).max(from_ns);
        TimelineReport { from_ns, to_ns, rows, calls_without_row: self.calls_without_row }
    }
}

/// Builds only a timeline from the events of a trace.
#[derive(Debug)]
pub struct TimelineBuilder {
    timeline: Timeline,
    nesting: Nesting,
    slices: Vec<Slice>,
}

impl TimelineBuilder {
    /// Limited to the time from `from_ns` until `until_ns`, if given.
    pub fn new(from_ns: Option<u64>, until_ns: Option<u64>) -> Self {
        let timeline = Timeline::new(from_ns, until_ns);
        Self { timeline, nesting: Nesting::default(), slices: Vec::new() }
    }

    pub fn feed(&mut self, event: Event) {
        if let Event::Execution(execution) = &event {
            self.timeline.execution(execution);
        }
        self.nesting.event(event, &mut self.slices);
        self.draw();
    }

    /// Ends the trace. Also returns its extent, which may differ from that of the timeline.
    pub fn finish(mut self) -> (TimelineReport, Extent) {
        self.nesting.finish(&mut self.slices);
        self.draw();
        let extent = self.nesting.extent();
        (self.timeline.report(extent), extent)
    }

    fn draw(&mut self) {
        self.timeline.feed(&self.slices);
        self.slices.clear();
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Call, Effect, Launch, Outcome, ProcessChange};

    use super::*;
    use crate::samples::{call, captured, inside, process, unfinished};

    fn at(start_ns: u64, duration_ns: u64, class: Class) -> Call {
        let outcome = Outcome::Returned { value: 0, duration_ns };
        Call { start_ns, outcome, class, ..call(Api::Runtime, "f", 0) }
    }

    fn shown(mut picture: TimelineBuilder, calls: impl IntoIterator<Item = Call>) -> TimelineReport {
        calls.into_iter().for_each(|call| picture.feed(Event::Call(Box::new(call))));
        picture.finish().0
    }

    fn fed(calls: impl IntoIterator<Item = Call>) -> TimelineReport {
        shown(TimelineBuilder::new(None, None), calls)
    }

    fn sum(bins: &[Bin], doing: Activity) -> u64 {
        bins.iter().map(|bin| bin[doing as usize]).sum()
    }

    #[test]
    fn time_is_in_the_columns_that_it_overlaps() {
        let report = fed([at(500, 1000, Class::Alloc), at(2100, 200, Class::Sync), at(2500, 0, Class::Sync)]);
        assert_eq!((report.from_ns, report.to_ns, report.rows[0].calls), (500, 2500, 3));
        let columns = report.rows[0].fitted(&report, 4);
        let memory: Vec<_> = columns.iter().map(|bin| bin[Activity::Memory as usize]).collect();
        let sync: Vec<_> = columns.iter().map(|bin| bin[Activity::Sync as usize]).collect();
        assert_eq!((memory, sync), (vec![500, 500, 0, 0], vec![0, 0, 0, 201]));
    }

    #[test]
    fn evenly_spread_calls_are_even_in_any_number_of_columns() {
        let report = fed((0..20_000).map(|i| at(i * 1000, 700, Class::Launch)));
        let row = &report.rows[0];
        assert!(row.bins.iter().count() <= MOST_BINS);
        for columns in [1, 37, 80, 200, 999, 1500] {
            let fitted = row.fitted(&report, columns);
            assert_eq!(sum(&fitted, Activity::Launch), 14_000_000, "{columns}");
            let even = 14_000_000.0 / columns as f64;
            // a column may start and end in the middle of a call
            let uneven =
                |bin: &&Bin| (bin[Activity::Launch as usize] as f64 - even).abs() > 0.05 * even + 1400.0;
            assert_eq!(fitted.iter().find(uneven), None, "{columns}: {even}");
        }
    }

    #[test]
    fn a_timeline_starts_with_the_first_event() {
        let minute = 60_000_000_000;
        // the longer call is recorded after one that started later
        let late = Call { tid: Tid(7), ..at(minute + 400, 100, Class::Sync) };
        let report = fed([late, at(minute, 1000, Class::Launch)]);
        assert_eq!((report.from_ns, report.to_ns), (minute, minute + 1000));
        let columns = report.rows[1].fitted(&report, 10);
        assert!(columns.iter().all(|bin| bin[Activity::Launch as usize] == 100), "{columns:?}");
    }

    #[test]
    fn a_call_without_return_lasts_until_the_exit_of_its_process_or_the_end_of_the_trace() {
        let mut picture = TimelineBuilder::new(None, None);
        let event = |tgid, call| Event::Call(Box::new(Call { tgid: Tgid(tgid), ..call }));
        picture.feed(event(100, unfinished(at(100, 0, Class::Sync))));
        picture.feed(Event::Process(process(ProcessChange::Exit, 300, None)));
        picture.feed(event(200, unfinished(at(500, 0, Class::Sync))));
        picture.feed(event(300, at(0, 1000, Class::Alloc)));
        let (report, _) = picture.finish();
        let waited = report.rows.iter().map(|row| sum(&row.fitted(&report, 10), Activity::Sync));
        assert_eq!(waited.collect::<Vec<_>>(), [200, 500, 0]);
    }

    #[test]
    fn operations_are_on_their_stream_and_inner_calls_are_not_shown() {
        let launch = |id, stream| {
            let effect = Effect::Launch(Launch::default());
            Call { id, stream, effect, ..at(id * 100, 10, Class::Launch) }
        };
        let captured = captured(launch(9, Some(7)));
        let calls = [
            inside(launch(3, Some(7)), 2),
            Call { outcome: Outcome::Returned { value: 0, duration_ns: 150 }, ..launch(2, None) },
            launch(5, Some(1)),
            launch(6, Some(0)),
            Call { status: Some(1), ..launch(7, Some(7)) },
            captured,
        ];
        let report = fed(calls);
        let lanes: Vec<_> = report.rows.iter().map(|row| (row.lane, row.calls)).collect();
        assert_eq!(lanes, [(Lane::Thread(Tid(100)), 5), (Lane::Stream(0), 2), (Lane::Stream(7), 1)]);
    }

    #[test]
    fn only_calls_in_the_time_range_are_shown() {
        let starts = [(0, 500), (900, 300), (1900, 500), (2500, 1)];
        let calls = || starts.map(|(start, duration)| at(start, duration, Class::Sync));
        let report = shown(TimelineBuilder::new(Some(1000), Some(2000)), calls());
        assert_eq!((report.from_ns, report.to_ns, report.rows[0].calls), (1000, 2000, 2));
        let columns = report.rows[0].fitted(&report, 10);
        assert_eq!([0, 1, 2, 9].map(|at: usize| columns[at][Activity::Sync as usize]), [100, 100, 0, 100]);
        let report = shown(TimelineBuilder::new(None, Some(u64::MAX)), calls());
        assert_eq!((report.from_ns, report.to_ns), (0, 2501), "there is nothing after the end");
    }

    #[test]
    fn a_call_without_room_is_counted_once() {
        let many = (0..1000).map(|tid| {
            let stream = Some(100 + u64::from(tid));
            Call { tid: Tid(tid), stream, ..at(tid.into(), 10, Class::Launch) }
        });
        let report = fed(many);
        assert_eq!((report.rows.len(), report.calls_without_row), (MOST_ROWS, 1000 - MOST_ROWS as u64 / 2));
    }

    #[test]
    fn implausible_times_do_not_panic() {
        let many = (0..10).map(|tid| Call { tid: Tid(tid), ..at(u64::MAX - 5, u64::MAX, Class::Alloc) });
        let report = fed(many.chain([Call { tid: Tid(1), ..at(0, u64::MAX, Class::Alloc) }]));
        assert_eq!((report.rows.len(), report.to_ns), (10, u64::MAX));
        for columns in [0, 1, 1000] {
            assert_eq!(report.rows[1].fitted(&report, columns).len(), columns);
        }
    }
}
