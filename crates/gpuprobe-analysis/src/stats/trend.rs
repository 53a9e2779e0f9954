//! A value over time.

use serde::Serialize;

use crate::stats::bins::{Bins, Held};

/// Bins of a trend.
const MOST_BINS: usize = 1024;

/// What a value was in one bin of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// At the end.
    pub last: u64,
}

/// `None` where the value did not change.
impl Held for Option<Span> {
    fn join(&mut self, later: &Self) {
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
    /// What it was when.
    pub bins: Bins<Option<Span>, MOST_BINS>,
    /// The most of all.
    pub peak: u64,
    /// The last.
    pub last: u64,
}

impl Trend {
    /// The value is this from now on.
    pub fn set(&mut self, at_ns: u64, value: u64) {
        if let Some(bin) = self.bins.at(at_ns) {
            bin.join(&Some(Span { least: value, most: value, last: value }));
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
