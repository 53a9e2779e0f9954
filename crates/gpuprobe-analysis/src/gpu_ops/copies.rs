//! Copies and memsets by direction, mode and host memory.

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};

/// Empty totals.
pub(crate) fn none(direction: CopyDirection, is_async: bool, host: HostMemory) -> CopyTotals {
    let sizes = [0; LATENCY_BUCKETS];
    CopyTotals { direction, is_async, host, copies: 0, errors: 0, bytes: 0, total_ns: 0, sizes }
}

pub(crate) fn key(copies: &CopyTotals) -> (CopyDirection, bool, HostMemory) {
    (copies.direction, copies.is_async, copies.host)
}

/// Adds copies of the same kind. The sums saturate because a trace file can contain any numbers.
pub(crate) fn add(sum: &mut CopyTotals, more: &CopyTotals) {
    sum.copies = sum.copies.saturating_add(more.copies);
    sum.errors += more.errors;
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.total_ns = sum.total_ns.saturating_add(more.total_ns);
    sum.sizes.iter_mut().zip(more.sizes).for_each(|(sum, n)| *sum = sum.saturating_add(n));
}

/// Whether the time of the calls is the time of the copies. Calls that copy within a device or between devices do not
/// wait for the copy, even if their name does not say "async".
fn is_timed(copies: &CopyTotals) -> bool {
    let ends_at_host = matches!(
        copies.direction,
        CopyDirection::HostToHost | CopyDirection::HostToDevice | CopyDirection::DeviceToHost
    );
    !copies.is_async && ends_at_host
}

/// The bandwidth of copies that the caller waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effective {
    /// Bytes per second inside the calls, including the time they waited.
    pub bytes_per_second: f64,
    /// The time inside the calls.
    pub seconds: f64,
}

/// The bandwidth as the callers saw it; `None` if the call time of any of the copies is not its copy time.
pub fn effective(copies: &[&CopyTotals]) -> Option<Effective> {
    let bytes = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.bytes));
    let ns = copies.iter().fold(0, |sum: u64, copy| sum.saturating_add(copy.total_ns));
    let is_known = ns > 0 && bytes > 0 && copies.iter().all(|copy| is_timed(copy));
    is_known.then(|| {
        let seconds = ns as f64 / 1e9;
        Effective { bytes_per_second: bytes as f64 / seconds, seconds }
    })
}

/// Groups sorted rows by direction and mode.
pub fn by_direction(copies: &[CopyTotals]) -> impl Iterator<Item = &[CopyTotals]> {
    copies.chunk_by(|a, b| (a.direction, a.is_async) == (b.direction, b.is_async))
}

/// Sums rows of the same kind, sorted by direction.
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
}
