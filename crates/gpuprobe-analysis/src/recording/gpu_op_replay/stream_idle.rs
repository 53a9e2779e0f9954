//! When streams were idle, and what the host did meanwhile.
//!
//! A trace does not show when the GPU finished an operation. A stream is known to be idle only from the return of a wait
//! for it, which began after its last operation was submitted, to the next submission: it may be idle more often. This
//! is the only definition of idle time; gaps (see [`crate::gpu_ops::gaps`]) are times without a launch.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::{Call, Tgid, catalogue};
use serde::Serialize;

use super::op::GpuOp;
use crate::gpu_ops::streams::stream_of;
use crate::stats::bins::Bins;
use crate::timeline::MOST_BINS;

/// Streams that are followed; the idle time of others is not known.
const MOST_STREAMS: usize = 8192;
/// Processes of which waits are followed.
const MOST_PROCESSES: usize = 8192;
/// Streams whose idle times are kept individually, and streams of a report.
const MOST_SHOWN: usize = 256;
/// Idle times of one stream; of more, the longest are kept.
const MOST_SPANS: usize = 2000;

/// The idle time of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamIdle {
    pub tgid: Tgid,
    /// See [`crate::streams::stream_of`].
    pub stream: u64,
    /// How often it was idle.
    pub times: u64,
    /// The sum of these times.
    pub idle_ns: u64,
    /// When something was first submitted to it.
    pub first_ns: u64,
    /// When the last submission returned.
    pub last_ns: u64,
    /// Start and end of the longest idle times.
    #[serde(skip)]
    pub spans: Vec<(u64, u64)>,
    /// Idle nanoseconds over time.
    #[serde(skip)]
    pub bins: Bins<u64, MOST_BINS>,
}

impl StreamIdle {
    /// Idle nanoseconds in this many columns between two times. A bin is divided among the columns it overlaps.
    pub fn columns(&self, (from_ns, to_ns): (u64, u64), columns: usize) -> Vec<u64> {
        let mut sums = vec![0.0; columns];
        let column_ns = to_ns.saturating_sub(from_ns).max(1) as f64 / columns as f64;
        let position = |at_ns: u64| at_ns.saturating_sub(from_ns) as f64 / column_ns;
        for (times, ns) in self.bins.iter().filter(|(_, ns)| **ns > 0) {
            let (from, to) = (position(times.start), position(times.end.min(to_ns)));
            let width = (to - from).max(f64::MIN_POSITIVE);
            for (column, sum) in sums.iter_mut().enumerate().skip(from as usize) {
                if column as f64 >= to {
                    break;
                }
                let overlap = to.min(column as f64 + 1.0) - from.max(column as f64);
                *sum += *ns as f64 * overlap / width;
            }
        }
        sums.into_iter().map(|sum| sum as u64).collect()
    }

    fn add(&mut self, (from_ns, to_ns): (u64, u64), is_drawn: bool) {
        self.idle_ns = self.idle_ns.saturating_add(to_ns.saturating_sub(from_ns));
        self.times += 1;
        if !is_drawn {
            return;
        }
        for (times, ns) in self.bins.between(from_ns, to_ns) {
            let share = to_ns.min(times.end).saturating_sub(from_ns.max(times.start));
            *ns = ns.saturating_add(share);
        }
        self.spans.push((from_ns, to_ns));
        if self.spans.len() > MOST_SPANS {
            self.spans.sort_by_key(|(from, to)| Reverse(to.saturating_sub(*from)));
            self.spans.truncate(MOST_SPANS / 2);
        }
    }
}

/// Idle times in which the host did the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct IdleGroup {
    /// The CUDA call that took at least half of each time; `None` if the submitting thread was outside CUDA.
    pub host: Option<&'static str>,
    pub times: u64,
    pub idle_ns: u64,
    pub longest_ns: u64,
}

/// Idle time by stream and by what the host did, most time first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdleSummary {
    pub streams: Vec<StreamIdle>,
    pub by_host: Vec<IdleGroup>,
}

/// A call of the host, with its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongestCall {
    pub(super) name: Option<&'static str>,
    pub(super) ns: u64,
    pub(super) start_ns: u64,
}

/// A wait, from its start to its return.
#[derive(Clone, Copy, Debug)]
struct Wait {
    start_ns: u64,
    end_ns: u64,
}

/// What is known about a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The return of the last submission.
    submitted_ns: u64,
    /// The first wait for it that began after that.
    waited: Option<Wait>,
}

#[derive(Clone, Debug)]
struct Row {
    idle: StreamIdle,
    /// Its idle times are kept individually.
    is_drawn: bool,
}

/// Collects the idle time of streams.
#[derive(Clone, Debug, Default)]
pub(super) struct IdleTracker {
    known: HashMap<(Tgid, u64), Known>,
    /// The last wait for all streams of a process.
    process_waits: HashMap<Tgid, Wait>,
    /// Of all streams, also those of exited processes.
    rows: HashMap<(Tgid, u64), Row>,
    groups: HashMap<Option<&'static str>, IdleGroup>,
}

impl IdleTracker {
    /// An operation was submitted to a stream. `longest` is the longest call of its thread since that last launched or
    /// waited.
    pub(super) fn submit(&mut self, op: &GpuOp, longest: Option<LongestCall>) {
        let key = (op.tgid, op.stream);
        let end_ns = op.start_ns.saturating_add(op.duration_ns);
        if self.rows.len() >= MOST_STREAMS && !self.rows.contains_key(&key) {
            return;
        }
        let is_drawn = self.rows.len() < MOST_SHOWN;
        let (tgid, stream) = key;
        let first = || StreamIdle { tgid, stream, first_ns: op.start_ns, ..StreamIdle::default() };
        let Row { idle, is_drawn } = self.rows.entry(key).or_insert_with(|| Row { idle: first(), is_drawn });
        idle.first_ns = idle.first_ns.min(op.start_ns);
        idle.last_ns = idle.last_ns.max(end_ns);
        let before = self.known.get(&key).copied();
        // a submission of another thread may have returned later
        let submitted_ns = before.map_or(end_ns, |before| before.submitted_ns.max(end_ns));
        // it returned before a wait that is known: its record came late, and it ends no idle time
        let is_late = |wait: &Wait| end_ns <= wait.start_ns;
        let waited = before.and_then(|before| before.waited).filter(is_late);
        self.known.insert(key, Known { submitted_ns, waited });
        let Some(before) = before.filter(|_| waited.is_none()) else { return };
        let waited =
            self.process_waits.get(&tgid).copied().filter(|wait| wait.start_ns >= before.submitted_ns);
        let since_ns = before.waited.into_iter().chain(waited).map(|wait| wait.end_ns).min();
        let Some(since_ns) = since_ns.filter(|since_ns| *since_ns < op.start_ns) else { return };
        idle.add((since_ns, op.start_ns), *is_drawn);
        self.group(op.start_ns - since_ns, longest.filter(|longest| longest.start_ns >= since_ns));
    }

    fn group(&mut self, ns: u64, longest: Option<LongestCall>) {
        let host = longest.filter(|longest| longest.ns >= ns / 2).and_then(|longest| longest.name);
        // names are those of the catalogue, so there are not many
        let none = IdleGroup { host, times: 0, idle_ns: 0, longest_ns: 0 };
        let group = self.groups.entry(host).or_insert(none);
        group.times += 1;
        group.idle_ns = group.idle_ns.saturating_add(ns);
        group.longest_ns = group.longest_ns.max(ns);
    }

    /// A wait has returned. A wait for an event shows nothing: it is not known what the event depends on.
    pub(super) fn wait(&mut self, call: &Call) {
        let (start_ns, ns) = (call.start_ns, call.duration_ns().unwrap_or(0));
        let wait = Wait { start_ns, end_ns: start_ns.saturating_add(ns) };
        if call.stream.is_some() {
            let known = self.known.get_mut(&(call.tgid, stream_of(call).unwrap_or(0)));
            if let Some(known) = known.filter(|known| wait.start_ns >= known.submitted_ns) {
                known.waited.get_or_insert(wait);
            }
        } else if !is_for_event(call)
            && (self.process_waits.len() < MOST_PROCESSES || self.process_waits.contains_key(&call.tgid))
        {
            self.process_waits.insert(call.tgid, wait);
        }
    }

    /// A stream was destroyed; its handle may be reused.
    pub(super) fn forget(&mut self, tgid: Tgid, stream: u64) {
        self.known.remove(&(tgid, stream));
    }

    /// A process exited or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        self.known.retain(|(of, _), _| *of != tgid);
        self.process_waits.remove(&tgid);
    }

    pub(super) fn report(&self) -> IdleSummary {
        let idle = self.rows.values().map(|row| &row.idle);
        let mut streams: Vec<_> = idle.filter(|idle| idle.times > 0).cloned().collect();
        streams.iter_mut().for_each(|row| row.spans.sort_unstable());
        streams.sort_by_key(|row| (Reverse(row.idle_ns), row.tgid, row.stream));
        streams.truncate(MOST_SHOWN);
        let mut by_host: Vec<_> = self.groups.values().copied().collect();
        by_host.sort_by_key(|row| (Reverse(row.idle_ns), row.host));
        IdleSummary { streams, by_host }
    }
}

fn is_for_event(call: &Call) -> bool {
    let function = catalogue().lookup(call.api, None, &call.name);
    function.is_some_and(|f| f.roles.scope == Some("event"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_the_longest_times_are_kept() {
        let mut row = StreamIdle::default();
        for i in 0..10_000 {
            row.add((i * 100, i * 100 + 1 + i % 50), true);
        }
        row.add((u64::MAX - 90, u64::MAX), true);
        row.add((0, 5), false);
        assert_eq!((row.times, row.idle_ns), (10_002, 255_000 + 90 + 5));
        assert!(row.spans.len() <= MOST_SPANS && row.spans.contains(&(u64::MAX - 90, u64::MAX)));
    }

    #[test]
    fn columns_have_their_share_of_the_idle_time() {
        let mut row = StreamIdle::default();
        row.add((1000, 1500), true);
        row.add((1900, 2000), true);
        assert_eq!(row.columns((1000, 2000), 4), [250, 250, 0, 100]);
        assert_eq!(row.columns((0, 0), 1).len(), 1);
    }

    #[test]
    fn times_are_grouped_by_the_call_that_filled_them() {
        let mut idle = IdleTracker::default();
        let call = |name, ns| Some(LongestCall { name: Some(name), ns, start_ns: 0 });
        idle.group(90, call("cuLibraryLoadData", 80));
        idle.group(190, call("cuLibraryLoadData", 95));
        idle.group(90, call("cuEventCreate", 1));
        idle.group(10, None);
        let groups: Vec<_> =
            idle.report().by_host.iter().map(|row| (row.host, row.times, row.longest_ns)).collect();
        assert_eq!(groups, [(Some("cuLibraryLoadData"), 2, 190), (None, 2, 90)]);
    }
}
