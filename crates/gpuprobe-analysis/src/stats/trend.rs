//! A value over time.

use serde::Serialize;

use crate::stats::bins::{BinValue, Bins};

/// Bins of a trend.
const MOST_BINS: usize = 1024;

/// The range of the value in one bin of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    pub least: u64,
    pub most: u64,
    /// The value at the end of the bin.
    pub last: u64,
}

/// `None` if the value did not change in the bin.
impl BinValue for Option<Span> {
    fn merge(&mut self, later: &Self) {
        *self = match (*self, *later) {
            (Some(one), Some(later)) => {
                let (least, most) = (one.least.min(later.least), one.most.max(later.most));
                Some(Span { least, most, last: later.last })
            }
            (one, later) => one.or(later),
        }
    }
}

/// A value in bins of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Trend {
    pub bins: Bins<Option<Span>, MOST_BINS>,
    pub peak: u64,
    pub last: u64,
}

impl Trend {
    /// Sets the value from `at_ns` on.
    pub fn set(&mut self, at_ns: u64, value: u64) {
        if let Some(bin) = self.bins.at(at_ns) {
            bin.merge(&Some(Span { least: value, most: value, last: value }));
        }
        self.peak = self.peak.max(value);
        self.last = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_kept_when_bins_grow() {
        let mut trend = Trend::default();
        for i in 0..100_000_u64 {
            trend.set(i * 1000, if i == 777 { 1_000_000 } else { i });
        }
        assert_eq!((trend.peak, trend.last), (1_000_000, 99_999));
        let spans = || trend.bins.iter().filter_map(|(_, span)| *span);
        assert_eq!(spans().map(|span| span.most).max(), Some(1_000_000));
        assert_eq!(spans().last().map(|span| span.last), Some(99_999));
        trend.set(u64::MAX, 0);
        assert!(trend.bins.iter().count() <= MOST_BINS && trend.last == 0);
    }
}
