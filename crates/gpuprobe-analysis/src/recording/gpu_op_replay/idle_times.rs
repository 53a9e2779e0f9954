//! How long each stream was idle, and what the host did meanwhile.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::Tgid;
use serde::Serialize;

/// Streams and functions with a row of their own; others are not listed.
const MOST: usize = 8192;
/// Rows of a report.
const MOST_SHOWN: usize = 100;

/// The idle time of one stream: the sum of its gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamIdle {
    pub tgid: Tgid,
    pub stream: u64,
    pub gaps: u64,
    pub idle_ns: u64,
    /// The start of its first launch.
    pub first_ns: u64,
    /// The end of its last launch.
    pub last_ns: u64,
}

/// Gaps in which the host did the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GapGroup {
    /// The CUDA call that took at least half of each gap; `None` if the launching thread was outside CUDA.
    pub host: Option<&'static str>,
    pub gaps: u64,
    pub idle_ns: u64,
    pub longest_ns: u64,
}

/// Idle time by stream and by what the host did, most time first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IdleSummary {
    pub streams: Vec<StreamIdle>,
    pub by_host: Vec<GapGroup>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct IdleTimes {
    streams: HashMap<(Tgid, u64), StreamIdle>,
    groups: HashMap<Option<&'static str>, GapGroup>,
}

impl IdleTimes {
    /// A launch took this time.
    pub(super) fn launch(&mut self, (tgid, stream): (Tgid, u64), (from_ns, to_ns): (u64, u64)) {
        if self.streams.len() >= MOST && !self.streams.contains_key(&(tgid, stream)) {
            return;
        }
        let first = StreamIdle { tgid, stream, gaps: 0, idle_ns: 0, first_ns: from_ns, last_ns: to_ns };
        let row = self.streams.entry((tgid, stream)).or_insert(first);
        row.first_ns = row.first_ns.min(from_ns);
        row.last_ns = row.last_ns.max(to_ns);
    }

    /// A stream had a gap. `call` is the longest call of the launching thread in it, with its time.
    pub(super) fn gap(&mut self, stream: (Tgid, u64), ns: u64, call: Option<(&'static str, u64)>) {
        if let Some(row) = self.streams.get_mut(&stream) {
            row.gaps += 1;
            row.idle_ns = row.idle_ns.saturating_add(ns);
        }
        let host = call.filter(|(_, call_ns)| *call_ns >= ns / 2).map(|(name, _)| name);
        // names are those of the catalogue, so there are not many
        let none = GapGroup { host, gaps: 0, idle_ns: 0, longest_ns: 0 };
        let row = self.groups.entry(host).or_insert(none);
        row.gaps += 1;
        row.idle_ns = row.idle_ns.saturating_add(ns);
        row.longest_ns = row.longest_ns.max(ns);
    }

    pub(super) fn report(&self) -> IdleSummary {
        let mut streams: Vec<_> = self.streams.values().copied().filter(|row| row.gaps > 0).collect();
        streams.sort_by_key(|row| (Reverse(row.idle_ns), row.tgid, row.stream));
        streams.truncate(MOST_SHOWN);
        let mut by_host: Vec<_> = self.groups.values().copied().collect();
        by_host.sort_by_key(|row| (Reverse(row.idle_ns), row.host));
        IdleSummary { streams, by_host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_summed_by_stream_and_by_the_call_that_filled_them() {
        let mut idle = IdleTimes::default();
        let (one, other) = ((Tgid(1), 0), (Tgid(1), 7));
        for at in [0, 100, 300] {
            idle.launch(one, (at, at + 10));
            idle.launch(other, (at, at + 10));
        }
        idle.gap(one, 90, Some(("cuLibraryLoadData", 80)));
        idle.gap(one, 190, Some(("cuLibraryLoadData", 95)));
        idle.gap(other, 90, Some(("cuEventCreate", 1)));
        idle.gap(other, 10, None);
        let report = idle.report();
        let streams: Vec<_> = report.streams.iter().map(|row| (row.stream, row.gaps, row.idle_ns)).collect();
        assert_eq!(streams, [(0, 2, 280), (7, 2, 100)]);
        assert_eq!((report.streams[0].first_ns, report.streams[0].last_ns), (0, 310));
        let groups: Vec<_> = report.by_host.iter().map(|row| (row.host, row.gaps, row.longest_ns)).collect();
        assert_eq!(groups, [(Some("cuLibraryLoadData"), 2, 190), (None, 2, 90)]);
    }
}
