//! Gaps: the times in which the host launched nothing on a stream. After a launch the GPU may be busy: idle time is
//! defined in `recording/gpu_op_replay/stream_idle.rs`.

use gpuprobe_event::catalogue;
use gpuprobe_event::counters::{GapKind, LATENCY_BUCKETS, StreamGaps};
use serde::Serialize;

use crate::stats::buckets::bucket;
use crate::stats::buckets::least_sum_below;

/// A gap of more than a millisecond after a synchronization is not loop overhead: the program computes or waits for
/// something else.
pub(crate) const SHORT_GAP_LOG2: usize = 20;

/// Gaps that are listed individually.
pub const LONGEST: usize = 10;

/// Gaps of one kind on all streams of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GapTotals {
    pub gaps: u64,
    pub total_ns: u64,
    /// Histogram of their lengths by powers of two.
    pub lengths: [u64; LATENCY_BUCKETS],
}

impl GapTotals {
    fn add(&mut self, gaps: u64, total_ns: u64, lengths: &[u64; LATENCY_BUCKETS]) {
        self.gaps += gaps;
        self.total_ns = self.total_ns.saturating_add(total_ns);
        self.lengths.iter_mut().zip(lengths).for_each(|(sum, n)| *sum += n);
    }
}

/// One of the longest gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// Its length.
    pub ns: u64,
    /// Its start: on the monotonic clock, or in nanoseconds since the start of a recording.
    pub since_ns: u64,
    pub stream: u64,
    /// Whether it follows a synchronization or a launch.
    pub kind: GapKind,
    /// The longest call of the launching thread during the gap, if it made any.
    pub meanwhile: Option<&'static str>,
}

/// The gaps of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gaps {
    /// Streams with at least one gap.
    pub streams: u64,
    /// Between the return of a synchronization and the next launch.
    pub after_sync: GapTotals,
    /// Between the return of a launch and the next launch.
    pub after_launch: GapTotals,
    /// The longest gaps, longest first.
    pub longest: Vec<Gap>,
    /// A lower bound for the time in short gaps after synchronizations, of the stream where it is longest; for several
    /// processes, the sum. The gaps of the streams of a process overlap, so a sum over streams would have no meaning.
    #[serde(skip)]
    pub after_waits_ns: u64,
}

impl Gaps {
    /// Adds the row of a stream.
    pub(crate) fn add_row(&mut self, row: &StreamGaps) {
        self.streams += 1;
        for (kind, counts) in GapKind::ALL.iter().zip(&row.gaps) {
            if *kind == GapKind::AfterSync {
                self.after_waits_ns =
                    self.after_waits_ns.max(least_sum_below(&counts.lengths, SHORT_GAP_LOG2));
            }
            self.of(*kind).add(counts.gaps, counts.total_ns, &counts.lengths);
        }
        let name = |id| catalogue().get(id).map(|f| f.name);
        self.longest.extend(row.longest.iter().map(|gap| Gap {
            ns: gap.ns,
            since_ns: gap.since_ns,
            stream: row.stream,
            kind: gap.kind,
            meanwhile: gap.meanwhile.and_then(name),
        }));
        self.keep_longest();
    }

    /// Adds the gaps of another process, whose streams are different ones.
    pub(crate) fn add(&mut self, more: &Self) {
        self.streams += more.streams;
        self.after_waits_ns = self.after_waits_ns.saturating_add(more.after_waits_ns);
        for (kind, gaps) in [(GapKind::AfterSync, more.after_sync), (GapKind::AfterLaunch, more.after_launch)]
        {
            self.of(kind).add(gaps.gaps, gaps.total_ns, &gaps.lengths);
        }
        self.longest.extend(more.longest.iter().cloned());
        self.keep_longest();
    }

    /// Adds a gap of a stream that is already counted in `streams`.
    pub(crate) fn add_gap(&mut self, gap: Gap) {
        let mut lengths = [0; LATENCY_BUCKETS];
        lengths[bucket(gap.ns)] = 1;
        self.of(gap.kind).add(1, gap.ns, &lengths);
        let shortest = self.longest.last().map_or(0, |shortest| shortest.ns);
        if self.longest.len() < LONGEST || gap.ns > shortest {
            self.longest.push(gap);
            self.keep_longest();
        }
    }

    fn of(&mut self, kind: GapKind) -> &mut GapTotals {
        match kind {
            GapKind::AfterSync => &mut self.after_sync,
            GapKind::AfterLaunch => &mut self.after_launch,
        }
    }

    fn keep_longest(&mut self) {
        self.longest.sort_by_key(|gap| std::cmp::Reverse(gap.ns));
        self.longest.truncate(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::{GapCounts, LongGap, ProcessKey};
    use gpuprobe_event::{Api, Tgid};

    use super::*;

    fn stream(stream: u64, lengths: &[u64]) -> StreamGaps {
        let meanwhile = catalogue().lookup(Api::Driver, None, "cuMemcpyDtoH_v2").map(|f| f.id);
        let gap = |&ns: &u64| LongGap { ns, since_ns: 7, kind: GapKind::AfterSync, meanwhile };
        let counts = GapCounts { gaps: 3, total_ns: 30, lengths: [1; LATENCY_BUCKETS] };
        StreamGaps {
            process: ProcessKey { tgid: Tgid(1), instance: 1 },
            stream,
            gaps: [counts, GapCounts::default()],
            longest: lengths.iter().map(gap).collect(),
        }
    }

    #[test]
    fn time_after_waits_is_the_maximum_over_streams_and_the_sum_over_processes() {
        let row = |stream, gaps| {
            let mut lengths = [0; LATENCY_BUCKETS];
            (lengths[10], lengths[SHORT_GAP_LOG2]) = (gaps, 5);
            let after_sync = GapCounts { gaps, total_ns: gaps << 10, lengths };
            StreamGaps { gaps: [after_sync, GapCounts::default()], ..self::stream(stream, &[]) }
        };
        let mut one = Gaps::default();
        [row(1, 3), row(2, 7), row(3, 2)].iter().for_each(|row| one.add_row(row));
        assert_eq!(one.after_waits_ns, 7 << 10);
        let mut both = one.clone();
        both.add(&one);
        assert_eq!(both.after_waits_ns, 14 << 10);
    }

    #[test]
    fn the_longest_gaps_of_all_streams_are_listed_and_all_are_summed() {
        let mut gaps = Gaps::default();
        gaps.add_row(&stream(1, &[9, 7, 5, 3]));
        gaps.add_row(&stream(2, &[8, 6, 4, 2, 1, 1, 1, 1, 1, 1]));
        let mut both = Gaps::default();
        both.add(&gaps);
        let longest: Vec<_> = both.longest.iter().map(|g| (g.ns, g.stream)).collect();
        assert_eq!(longest[..4], [(9, 1), (8, 2), (7, 1), (6, 2)]);
        assert_eq!(longest.len(), LONGEST);
        assert_eq!(both.longest[0].meanwhile, Some("cuMemcpyDtoH_v2"));
        assert_eq!((both.streams, both.after_sync.gaps, both.after_sync.total_ns), (2, 6, 60));
        assert_eq!(both.after_launch, GapTotals::default());
    }
}
