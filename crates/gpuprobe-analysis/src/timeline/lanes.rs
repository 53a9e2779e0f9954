//! What threads did over time, and when streams were given work.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::trace::type_of;
use gpuprobe_event::{Class, Event, Tgid, Tid};
use serde::Serialize;

use crate::stats::bins::{BinValue, Bins};
use crate::timeline::nesting::{Extent, Nesting, Slice};
use crate::timeline::stream_ops::given;

/// Bins of a row: each is narrower than a column that can be told from others.
pub const MOST_BINS: usize = 4096;
/// Rows kept. Calls of others are counted.
const MOST_ROWS: usize = 256;

/// What a thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Allocating or freeing.
    Memory,
    /// Copying or filling.
    Transfer,
    /// Launching kernels or graphs.
    Launch,
    /// Waiting for the GPU.
    Sync,
    /// In the driver, beneath the call.
    Kernel,
    /// Any other call.
    Other,
}

impl Doing {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::Transfer, Self::Launch, Self::Sync, Self::Kernel, Self::Other];

    /// By what a function is for.
    pub fn of(class: Class) -> Self {
        // the same kinds that a trace tells apart, under its names
        let of_trace = type_of(class);
        if class == Class::Scheduler {
            return Self::Kernel;
        }
        Self::ALL.into_iter().find(|doing| doing.as_str() == of_trace).unwrap_or(Self::Other)
    }

    /// What it is called.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Transfer => "transfer",
            Self::Launch => "launch",
            Self::Sync => "sync",
            Self::Kernel => "kernel",
            Self::Other => "other",
        }
    }
}

/// Who a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// A thread: what it did.
    Thread(Tid),
    /// What the thread asked of the driver, beneath its calls.
    Driver(Tid),
    /// A stream: the calls that gave it work, which is not when the GPU did it.
    Stream(u64),
}

impl Lane {
    /// Threads come before streams, each with what it asked of the driver.
    fn place(self) -> (bool, u64, bool) {
        match self {
            Self::Thread(tid) => (false, tid.0.into(), false),
            Self::Driver(tid) => (false, tid.0.into(), true),
            Self::Stream(handle) => (true, handle, false),
        }
    }
}

/// Nanoseconds of each kind of doing in one bin.
pub type Bin = [u64; Doing::ALL.len()];

impl BinValue for Bin {
    fn merge(&mut self, later: &Self) {
        self.iter_mut().zip(later).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The process.
    pub tgid: Tgid,
    /// Its name.
    pub process: Arc<str>,
    /// The thread or stream.
    pub lane: Lane,
    /// Calls in it.
    pub calls: u64,
    /// What was done when.
    pub bins: Bins<Bin, MOST_BINS>,
}

impl Row {
    /// Its bins in so many columns of the report's time. What is in a bin is shared by the columns that it lies in.
    pub fn fitted(&self, report: &TimelineReport, columns: usize) -> Vec<Bin> {
        let mut fitted = vec![Bin::default(); columns];
        let span = (report.to_ns - report.from_ns).max(1);
        // columns and parts of them from the beginning
        let place = |at_ns: u64| (at_ns - report.from_ns) as f64 / span as f64 * columns as f64;
        for (times, bin) in self.bins.iter().filter(|(_, bin)| **bin != Bin::default()) {
            let from_ns = times.start.clamp(report.from_ns, report.to_ns);
            let (from, to) = (place(from_ns), place(times.end.clamp(from_ns, report.to_ns)));
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

/// Rows of all threads and streams between two times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineReport {
    /// Where it begins: with the first thing that happened, or where that was asked for.
    pub from_ns: u64,
    /// Where it ends: with the last thing that happened, or before.
    pub to_ns: u64,
    /// By process, threads before streams.
    pub rows: Vec<Row>,
    /// Calls that belong into a row for which there was no room.
    pub left_out: u64,
}

impl TimelineReport {
    /// Whether anything is drawn of the driver.
    pub fn has_driver(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.lane, Lane::Driver(_)))
    }
}

/// Of a call and those inside it, the kernel's that are in no other one of the kernel's.
fn outermost_kernel(calls: &[Slice]) -> impl Iterator<Item = &Slice> {
    let mut inside = usize::MAX;
    calls.iter().filter(move |slice| {
        if slice.depth > inside {
            return false;
        }
        inside = if slice.call.is_kernel() { slice.depth } else { usize::MAX };
        slice.call.is_kernel()
    })
}

/// Collects a [`TimelineReport`].
#[derive(Debug, Default)]
pub struct Timeline {
    from_ns: Option<u64>,
    until_ns: Option<u64>,
    rows: HashMap<(Tgid, Lane), Row>,
    left_out: u64,
}

impl Timeline {
    /// Of what happens between two times, where any are given.
    pub fn new(from_ns: Option<u64>, until_ns: Option<u64>) -> Self {
        Self { from_ns, until_ns, ..Self::default() }
    }

    /// Takes in calls as [`crate::Nesting`] gives them out. Those inside others are part of these.
    pub fn feed(&mut self, slices: &[Slice]) {
        for calls in slices.chunk_by(|_, next| next.depth > 0) {
            let Some(outermost) = calls.first() else { continue };
            let mut has_room =
                outermost.call.is_kernel() || self.add(outermost, Lane::Thread(outermost.call.tid));
            for below in outermost_kernel(calls) {
                has_room &= self.add(below, Lane::Driver(below.call.tid));
            }
            for given in given(calls) {
                has_room &= self.add(given.slice, Lane::Stream(given.stream));
            }
            self.left_out += u64::from(!has_room);
        }
    }

    /// Adds a call to a row; `false` where there is no room for that.
    fn add(&mut self, slice: &Slice, lane: Lane) -> bool {
        let from_ns = self.from_ns.unwrap_or(0);
        let until_ns = self.until_ns.unwrap_or(u64::MAX);
        if slice.end_ns < from_ns || slice.start_ns >= until_ns {
            return true;
        }
        let call = &slice.call;
        let key = (call.tgid, lane);
        if !self.rows.contains_key(&key) && self.rows.len() >= MOST_ROWS {
            return false;
        }
        let row = self.rows.entry(key).or_insert_with(|| Row {
            tgid: call.tgid,
            process: Arc::clone(&call.process),
            lane,
            calls: 0,
            bins: Bins::default(),
        });
        row.calls += 1;
        let doing = Doing::of(call.class) as usize;
        let (start_ns, end_ns) = (slice.start_ns.max(from_ns), slice.end_ns.min(until_ns));
        for (times, bin) in row.bins.between(start_ns, end_ns) {
            let share = end_ns.min(times.end).saturating_sub(start_ns.max(times.start));
            // what is too short to be measured was there
            bin[doing] = bin[doing].saturating_add(share.max(u64::from(start_ns == end_ns)));
        }
        true
    }

    /// What it came to, of a trace of this extent.
    pub fn report(&self, extent: Extent) -> TimelineReport {
        let mut rows: Vec<_> = self.rows.values().cloned().collect();
        rows.sort_by_key(|row| (row.tgid, row.lane.place()));
        let from_ns = self.from_ns.unwrap_or(extent.first_ns);
        let to_ns = self.until_ns.map_or(extent.last_ns, |until| until.min(extent.last_ns)).max(from_ns);
        TimelineReport { from_ns, to_ns, rows, left_out: self.left_out }
    }
}

/// Makes a timeline of the events of a trace, where nothing else is made of them.
#[derive(Debug)]
pub struct Picture {
    timeline: Timeline,
    nesting: Nesting,
    slices: Vec<Slice>,
}

impl Picture {
    /// Of what happens between two times, where any are given.
    pub fn new(from_ns: Option<u64>, until_ns: Option<u64>) -> Self {
        let timeline = Timeline::new(from_ns, until_ns);
        Self { timeline, nesting: Nesting::default(), slices: Vec::new() }
    }

    /// Takes in one event.
    pub fn feed(&mut self, event: Event) {
        self.nesting.event(event, &mut self.slices);
        self.draw();
    }

    /// The trace is over. Its own extent is told as well, which may be another than that of the picture.
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

    fn shown(mut picture: Picture, calls: impl IntoIterator<Item = Call>) -> TimelineReport {
        calls.into_iter().for_each(|call| picture.feed(Event::Call(Box::new(call))));
        picture.finish().0
    }

    fn fed(calls: impl IntoIterator<Item = Call>) -> TimelineReport {
        shown(Picture::new(None, None), calls)
    }

    fn sum(bins: &[Bin], doing: Doing) -> u64 {
        bins.iter().map(|bin| bin[doing as usize]).sum()
    }

    #[test]
    fn time_goes_into_the_columns_in_which_it_passed() {
        let report = fed([at(500, 1000, Class::Alloc), at(2100, 200, Class::Sync), at(2500, 0, Class::Sync)]);
        assert_eq!((report.from_ns, report.to_ns, report.rows[0].calls), (500, 2500, 3));
        let columns = report.rows[0].fitted(&report, 4);
        let memory: Vec<_> = columns.iter().map(|bin| bin[Doing::Memory as usize]).collect();
        let sync: Vec<_> = columns.iter().map(|bin| bin[Doing::Sync as usize]).collect();
        assert_eq!((memory, sync), (vec![500, 500, 0, 0], vec![0, 0, 0, 201]));
    }

    #[test]
    fn what_is_evenly_spread_is_evenly_drawn_in_any_number_of_columns() {
        let report = fed((0..20_000).map(|i| at(i * 1000, 700, Class::Launch)));
        let row = &report.rows[0];
        assert!(row.bins.iter().count() <= MOST_BINS);
        for columns in [1, 37, 80, 200, 999, 1500] {
            let fitted = row.fitted(&report, columns);
            assert_eq!(sum(&fitted, Doing::Launch), 14_000_000, "{columns}");
            let even = 14_000_000.0 / columns as f64;
            // a column may begin and end in the middle of a call
            let uneven =
                |bin: &&Bin| (bin[Doing::Launch as usize] as f64 - even).abs() > 0.05 * even + 1400.0;
            assert_eq!(fitted.iter().find(uneven), None, "{columns}: {even}");
        }
    }

    #[test]
    fn a_picture_begins_with_the_first_thing_that_happened() {
        let minute = 60_000_000_000;
        // the longer call is told after one that began later
        let late = Call { tid: Tid(7), ..at(minute + 400, 100, Class::Sync) };
        let report = fed([late, at(minute, 1000, Class::Launch)]);
        assert_eq!((report.from_ns, report.to_ns), (minute, minute + 1000));
        let columns = report.rows[1].fitted(&report, 10);
        assert!(columns.iter().all(|bin| bin[Doing::Launch as usize] == 100), "{columns:?}");
    }

    #[test]
    fn what_never_returned_is_drawn_to_the_end_of_its_process_or_of_the_trace() {
        let mut picture = Picture::new(None, None);
        let event = |tgid, call| Event::Call(Box::new(Call { tgid: Tgid(tgid), ..call }));
        picture.feed(event(100, unfinished(at(100, 0, Class::Sync))));
        picture.feed(Event::Process(process(ProcessChange::Exit, 300, None)));
        picture.feed(event(200, unfinished(at(500, 0, Class::Sync))));
        picture.feed(event(300, at(0, 1000, Class::Alloc)));
        let (report, _) = picture.finish();
        let waited = report.rows.iter().map(|row| sum(&row.fitted(&report, 10), Doing::Sync));
        assert_eq!(waited.collect::<Vec<_>>(), [200, 500, 0]);
    }

    #[test]
    fn work_is_shown_on_its_stream_and_inner_calls_are_not_shown() {
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
    fn only_what_lies_between_the_two_times_is_shown() {
        let starts = [(0, 500), (900, 300), (1900, 500), (2500, 1)];
        let calls = || starts.map(|(start, duration)| at(start, duration, Class::Sync));
        let report = shown(Picture::new(Some(1000), Some(2000)), calls());
        assert_eq!((report.from_ns, report.to_ns, report.rows[0].calls), (1000, 2000, 2));
        let columns = report.rows[0].fitted(&report, 10);
        assert_eq!([0, 1, 2, 9].map(|at: usize| columns[at][Doing::Sync as usize]), [100, 100, 0, 100]);
        let report = shown(Picture::new(None, Some(u64::MAX)), calls());
        assert_eq!((report.from_ns, report.to_ns), (0, 2501), "there is nothing after the end");
    }

    #[test]
    fn a_call_that_has_no_room_is_left_out_once() {
        let many = (0..1000).map(|tid| {
            let stream = Some(100 + u64::from(tid));
            Call { tid: Tid(tid), stream, ..at(tid.into(), 10, Class::Launch) }
        });
        let report = fed(many);
        assert_eq!((report.rows.len(), report.left_out), (MOST_ROWS, 1000 - MOST_ROWS as u64 / 2));
    }

    #[test]
    fn times_that_cannot_be_true_do_no_harm() {
        let many = (0..10).map(|tid| Call { tid: Tid(tid), ..at(u64::MAX - 5, u64::MAX, Class::Alloc) });
        let report = fed(many.chain([Call { tid: Tid(1), ..at(0, u64::MAX, Class::Alloc) }]));
        assert_eq!((report.rows.len(), report.to_ns), (10, u64::MAX));
        for columns in [0, 1, 1000] {
            assert_eq!(report.rows[1].fitted(&report, columns).len(), columns);
        }
    }
}
