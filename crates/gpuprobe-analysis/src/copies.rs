//! Bytes moved, by kind of copy. A copy inside another call is the same copy, so only outermost ones count.

use std::collections::BTreeMap;

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};
use gpuprobe_event::event::Name;
use gpuprobe_event::{Call, Class};
use serde::Serialize;

/// What was moved by one kind of copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopySummary {
    /// `H2D`, `D2H`...; `memset` for fills; `unknown` where the direction could not be told.
    pub kind: Name,
    /// Calls that succeeded.
    pub calls: u64,
    /// Bytes moved by them.
    pub bytes: u64,
}

/// Copies by kind.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    by_kind: BTreeMap<Name, (u64, u64)>,
}

impl Copies {
    pub(crate) fn feed(&mut self, call: &Call) {
        if call.parent.is_some() || call.duration_ns().is_none() || call.failed() {
            return;
        }
        let kind = match call.class {
            Class::Memset => Name::Borrowed("memset"),
            Class::Memcpy => call.effect.kind.clone().unwrap_or(Name::Borrowed("unknown")),
            _ => return,
        };
        let (calls, bytes) = self.by_kind.entry(kind).or_default();
        *calls += 1;
        *bytes = bytes.saturating_add(call.effect.size.unwrap_or(0));
    }

    /// Most bytes first.
    pub(crate) fn report(&self) -> Vec<CopySummary> {
        let row =
            |(kind, &(calls, bytes)): (&Name, &(u64, u64))| CopySummary { kind: kind.clone(), calls, bytes };
        let mut rows: Vec<_> = self.by_kind.iter().map(row).collect();
        rows.sort_by_key(|c| std::cmp::Reverse(c.bytes));
        rows
    }
}

/// No copies of a kind.
pub(crate) fn none(direction: CopyDirection, is_async: bool, host: HostMemory) -> CopyTotals {
    let sizes = [0; LATENCY_BUCKETS];
    CopyTotals { direction, is_async, host, copies: 0, errors: 0, bytes: 0, total_ns: 0, sizes }
}

pub(crate) fn key(copies: &CopyTotals) -> (CopyDirection, bool, HostMemory) {
    (copies.direction, copies.is_async, copies.host)
}

/// Adds copies of the same kind. A trace can claim any number of them.
pub(crate) fn add(sum: &mut CopyTotals, more: &CopyTotals) {
    sum.copies = sum.copies.saturating_add(more.copies);
    sum.errors += more.errors;
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.total_ns = sum.total_ns.saturating_add(more.total_ns);
    sum.sizes.iter_mut().zip(more.sizes).for_each(|(sum, n)| *sum = sum.saturating_add(n));
}

/// Whether the time of the calls is that of the copies. Calls that copy within a device, or from one to another, do not
/// wait for it, whatever they are called.
fn is_timed(copies: &CopyTotals) -> bool {
    let ends_at_host = matches!(
        copies.direction,
        CopyDirection::HostToHost | CopyDirection::HostToDevice | CopyDirection::DeviceToHost
    );
    !copies.is_async && ends_at_host
}

/// What copies that the caller waited for came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effective {
    /// Bytes for each second inside the calls, with all that they waited for.
    pub bytes_per_second: f64,
    /// The seconds.
    pub seconds: f64,
}

/// How fast these copies were, as their callers saw it; `None` where the time of any says nothing of it.
pub fn effective(copies: &[&CopyTotals]) -> Option<Effective> {
    let bytes = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.bytes));
    let ns = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.total_ns));
    let is_told = ns > 0 && bytes > 0 && copies.iter().all(|copy| is_timed(copy));
    is_told.then(|| {
        let seconds = ns as f64 / 1e9;
        Effective { bytes_per_second: bytes as f64 / seconds, seconds }
    })
}

/// Rows of one direction and mode together, in the order of directions.
pub fn by_direction(copies: &[CopyTotals]) -> impl Iterator<Item = &[CopyTotals]> {
    copies.chunk_by(|a, b| (a.direction, a.is_async) == (b.direction, b.is_async))
}

/// Sums up rows of the same kind, in the order of directions.
pub(crate) fn sum_up(copies: &mut Vec<CopyTotals>) {
    copies.sort_by_key(key);
    copies.dedup_by(|more, sum| {
        let same = key(more) == key(sum);
        if same {
            add(sum, more);
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::LATENCY_BUCKETS;

    use super::*;
    use crate::samples::{copy, inside, unfinished};

    fn totals(direction: CopyDirection, is_async: bool, bytes: u64, total_ns: u64) -> CopyTotals {
        let sizes = [0; LATENCY_BUCKETS];
        CopyTotals {
            direction,
            is_async,
            host: HostMemory::Pinned,
            copies: 1,
            errors: 0,
            bytes,
            total_ns,
            sizes,
        }
    }

    #[test]
    fn only_copies_that_the_caller_waits_for_have_a_bandwidth() {
        use CopyDirection::{DeviceToDevice, HostToDevice};
        let two =
            [totals(HostToDevice, false, 1000, 500_000_000), totals(HostToDevice, false, 500, 250_000_000)];
        let effective_of_two = Effective { bytes_per_second: 2000.0, seconds: 0.75 };
        assert_eq!(effective(&two.each_ref()), Some(effective_of_two));
        for copy in [
            totals(HostToDevice, true, 1000, 500),
            totals(DeviceToDevice, false, 1000, 500),
            totals(HostToDevice, false, 0, 500),
            totals(HostToDevice, false, 1000, 0),
        ] {
            assert_eq!(effective(&[&copy]), None);
        }
        assert_eq!(effective(&[]), None);
    }

    #[test]
    fn only_outermost_successful_copies_count() {
        let mut copies = Copies::default();
        copies.feed(&copy(Some("H2D"), 100, 0));
        copies.feed(&copy(Some("H2D"), 50, 0));
        copies.feed(&inside(copy(Some("H2D"), 100, 0), 1));
        copies.feed(&copy(Some("H2D"), 100, 1));
        copies.feed(&unfinished(copy(Some("H2D"), 100, 0)));
        copies.feed(&copy(None, 500, 0));
        let expected = [("unknown", 1, 500), ("H2D", 2, 150)];
        let report = copies.report();
        let got: Vec<_> = report.iter().map(|c| (c.kind.as_ref(), c.calls, c.bytes)).collect();
        assert_eq!(got, expected);
    }
}
