//! What threads did over time, and when streams were given work, in bins that grow with the recording: memory is bounded
//! whatever the length of a trace.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::trace::type_of;
use gpuprobe_event::{Call, Class, Event, Tgid, Tid};
use serde::Serialize;

/// Bins of a row. When the recording outgrows them, each two become one.
pub const BINS: usize = 4096;
/// Rows kept. Calls of others are counted.
const MOST_ROWS: usize = 256;
const FIRST_BIN_NS: u64 = 1000;

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
    /// Any other call.
    Other,
}

impl Doing {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Memory, Self::Transfer, Self::Launch, Self::Sync, Self::Other];

    /// By what a function is for.
    pub fn of(class: Class) -> Self {
        // the same kinds that a trace tells apart, under its names
        let of_trace = type_of(class);
        Self::ALL.into_iter().find(|doing| doing.as_str() == of_trace).unwrap_or(Self::Other)
    }

    /// What it is called.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Transfer => "transfer",
            Self::Launch => "launch",
            Self::Sync => "sync",
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
    /// A stream: the calls that gave it work, which is not when the GPU did it.
    Stream(u64),
}

/// Nanoseconds of each kind of doing in one bin.
pub type Bin = [u64; Doing::ALL.len()];

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
    /// What was done when; as many as there are bins.
    pub bins: Vec<Bin>,
}

/// Rows of all threads and streams, from `from_ns` in bins of `bin_ns`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineReport {
    /// Where the first bin begins.
    pub from_ns: u64,
    /// Where the last thing that is shown ended.
    pub to_ns: u64,
    /// How long a bin is.
    pub bin_ns: u64,
    /// By process, threads before streams.
    pub rows: Vec<Row>,
    /// Calls in rows for which there was no room.
    pub left_out: u64,
}

/// Collects a [`TimelineReport`].
#[derive(Debug)]
pub struct Timeline {
    from_ns: u64,
    until_ns: u64,
    to_ns: u64,
    bin_ns: u64,
    rows: HashMap<(Tgid, Lane), Row>,
    left_out: u64,
}

impl Default for Timeline {
    fn default() -> Self {
        Self::new(0, u64::MAX)
    }
}

impl Timeline {
    /// Of what happens between two times.
    pub fn new(from_ns: u64, until_ns: u64) -> Self {
        let rows = HashMap::new();
        Self { from_ns, until_ns, to_ns: from_ns, bin_ns: FIRST_BIN_NS, rows, left_out: 0 }
    }

    /// Takes in one event. Calls inside others are part of these.
    pub fn feed(&mut self, event: &Event) {
        let Event::Call(call) = event else { return };
        let Some(duration_ns) = call.duration_ns().filter(|_| call.parent.is_none()) else { return };
        let start_ns = call.start_ns.max(self.from_ns);
        let end_ns = call.start_ns.saturating_add(duration_ns).min(self.until_ns);
        if end_ns < start_ns || call.start_ns >= self.until_ns {
            return;
        }
        self.to_ns = self.to_ns.max(end_ns);
        while (end_ns - self.from_ns) / self.bin_ns >= BINS as u64 {
            self.widen();
        }
        self.add(call, Lane::Thread(call.tid), start_ns, end_ns);
        let gives_work =
            matches!(call.class, Class::Launch | Class::GraphLaunch | Class::Memcpy | Class::Memset);
        if let (true, false, Some(stream)) = (gives_work, call.failed(), call.effect.stream) {
            self.add(call, Lane::Stream(stream), start_ns, end_ns);
        }
    }

    fn widen(&mut self) {
        self.bin_ns = self.bin_ns.saturating_mul(2);
        for row in self.rows.values_mut() {
            let pairs = row.bins.chunks(2).map(|pair| {
                let mut sum = pair[0];
                pair.iter().skip(1).for_each(|more| add(&mut sum, more));
                sum
            });
            row.bins = pairs.collect();
        }
    }

    fn add(&mut self, call: &Call, lane: Lane, start_ns: u64, end_ns: u64) {
        let key = (call.tgid, lane);
        if !self.rows.contains_key(&key) && self.rows.len() >= MOST_ROWS {
            self.left_out += 1;
            return;
        }
        let row = self.rows.entry(key).or_insert_with(|| Row {
            tgid: call.tgid,
            process: Arc::clone(&call.process),
            lane,
            calls: 0,
            bins: Vec::new(),
        });
        row.calls += 1;
        let doing = Doing::of(call.class) as usize;
        let (from_ns, bin_ns) = (self.from_ns, self.bin_ns);
        let (first, last) = ((start_ns - from_ns) / bin_ns, (end_ns - from_ns) / bin_ns);
        let needed = usize::try_from(last).unwrap_or(BINS).min(BINS - 1) + 1;
        if row.bins.len() < needed {
            row.bins.resize(needed, Bin::default());
        }
        for (bin, sums) in
            (first..=last).zip(&mut row.bins[usize::try_from(first).unwrap_or(0).min(needed - 1)..])
        {
            let begin = from_ns + bin * bin_ns;
            let share = end_ns.min(begin.saturating_add(bin_ns)).saturating_sub(start_ns.max(begin));
            // what is too short to be measured was there
            sums[doing] = sums[doing].saturating_add(share.max(u64::from(start_ns == end_ns)));
        }
    }

    /// What it came to so far.
    pub fn report(&self) -> TimelineReport {
        let mut rows: Vec<_> = self.rows.values().cloned().collect();
        rows.sort_by_key(|row| (row.tgid, row.lane));
        let Self { from_ns, bin_ns, left_out, .. } = *self;
        // up to the end that was asked for, where one was
        let to_ns = if self.until_ns == u64::MAX { self.to_ns } else { self.until_ns };
        TimelineReport { from_ns, to_ns, bin_ns, rows, left_out }
    }
}

fn add(sum: &mut Bin, more: &Bin) {
    sum.iter_mut().zip(more).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
}

/// The bins of a row, fitted to so many columns from `from_ns` to `to_ns`.
pub fn fitted(report: &TimelineReport, row: &Row, columns: usize) -> Vec<Bin> {
    let mut fitted = vec![Bin::default(); columns];
    let span = u128::from((report.to_ns - report.from_ns).max(1));
    for (i, bin) in row.bins.iter().enumerate() {
        let middle = u128::from(report.bin_ns) * (2 * i as u128 + 1) / 2;
        let column = usize::try_from(middle * columns as u128 / span).unwrap_or(columns);
        if let Some(sum) = fitted.get_mut(column.min(columns.saturating_sub(1))) {
            add(sum, bin);
        }
    }
    fitted
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Outcome};

    use super::*;
    use crate::samples::{call, inside};

    fn at(start_ns: u64, duration_ns: u64, class: Class) -> Call {
        let outcome = Outcome::Returned { value: 0, duration_ns };
        Call { start_ns, outcome, class, ..call(Api::Runtime, "f", 0) }
    }

    fn fed(calls: impl IntoIterator<Item = Call>) -> TimelineReport {
        let mut timeline = Timeline::default();
        calls.into_iter().for_each(|call| timeline.feed(&Event::Call(Box::new(call))));
        timeline.report()
    }

    #[test]
    fn time_goes_into_the_bins_in_which_it_passed() {
        let report = fed([at(500, 1000, Class::Alloc), at(2100, 200, Class::Sync), at(2400, 0, Class::Sync)]);
        let bins = &report.rows[0].bins;
        assert_eq!((bins[0][0], bins[1][0], bins[2][3]), (500, 500, 201));
        assert_eq!((report.to_ns, report.bin_ns, report.rows[0].calls), (2400, 1000, 3));
    }

    #[test]
    fn bins_grow_with_the_recording_and_keep_their_sums() {
        let calls = (0..10_000).map(|i| at(i * 10_000, 7_000, Class::Launch));
        let report = fed(calls);
        let row = &report.rows[0];
        assert!(row.bins.len() <= BINS, "{}", row.bins.len());
        assert_eq!(row.bins.iter().map(|bin| bin[2]).sum::<u64>(), 70_000_000);
        assert_eq!(fitted(&report, row, 80).iter().map(|bin| bin[2]).sum::<u64>(), 70_000_000);
        assert!(fitted(&report, row, 80).iter().all(|bin| bin[2] > 0), "evenly spread");
    }

    #[test]
    fn work_is_shown_on_its_stream_and_inner_calls_are_not_shown() {
        let mut launch = at(0, 10, Class::Launch);
        launch.effect.stream = Some(7);
        let report = fed([inside(launch.clone(), 3), launch.clone(), Call { status: Some(1), ..launch }]);
        let lanes: Vec<_> = report.rows.iter().map(|row| (row.lane, row.calls)).collect();
        assert_eq!(lanes, [(Lane::Thread(call(Api::Runtime, "f", 0).tid), 2), (Lane::Stream(7), 1)]);
    }

    #[test]
    fn only_what_lies_between_the_two_times_is_shown() {
        let mut timeline = Timeline::new(1000, 2000);
        for call in [
            at(0, 500, Class::Sync),
            at(900, 300, Class::Sync),
            at(1900, 500, Class::Sync),
            at(2500, 1, Class::Sync),
        ] {
            timeline.feed(&Event::Call(Box::new(call)));
        }
        let report = timeline.report();
        assert_eq!((report.from_ns, report.to_ns, report.rows[0].calls), (1000, 2000, 2));
        assert_eq!(report.rows[0].bins[0][3], 300);
    }

    #[test]
    fn times_and_numbers_that_cannot_be_true_do_no_harm() {
        let many = (0..1000).map(|tid| Call { tid: Tid(tid), ..at(u64::MAX - 5, u64::MAX, Class::Alloc) });
        let report = fed(many.chain([Call { tid: Tid(1), ..at(0, u64::MAX, Class::Alloc) }]));
        assert_eq!((report.rows.len(), report.left_out), (MOST_ROWS, 1000 - MOST_ROWS as u64));
    }
}
