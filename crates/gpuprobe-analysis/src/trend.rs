//! A value over time in bins that grow with the recording.

use serde::Serialize;

/// Bins of a trend; when it outgrows them, each two become one.
const BINS: usize = 1024;
const FIRST_BIN_NS: u64 = 1000;

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

/// A value in bins of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trend {
    /// How long a bin is.
    pub bin_ns: u64,
    /// `None` where it did not change in a bin.
    pub bins: Vec<Option<Span>>,
    /// The most of all.
    pub peak: u64,
    /// The last.
    pub last: u64,
}

impl Default for Trend {
    fn default() -> Self {
        Self { bin_ns: FIRST_BIN_NS, bins: Vec::new(), peak: 0, last: 0 }
    }
}

impl Trend {
    /// The value is this from now on.
    pub fn set(&mut self, at_ns: u64, value: u64) {
        while at_ns / self.bin_ns >= BINS as u64 {
            self.bin_ns = self.bin_ns.saturating_mul(2);
            self.bins =
                self.bins.chunks(2).map(|pair| pair.iter().copied().reduce(joined).flatten()).collect();
        }
        let at = usize::try_from(at_ns / self.bin_ns).unwrap_or(BINS - 1);
        if self.bins.len() <= at {
            self.bins.resize(at + 1, None);
        }
        self.bins[at] = joined(self.bins[at], Some(Span { least: value, most: value, last: value }));
        self.peak = self.peak.max(value);
        self.last = value;
    }
}

fn joined(one: Option<Span>, next: Option<Span>) -> Option<Span> {
    match (one, next) {
        (Some(one), Some(next)) => {
            let (least, most) = (one.least.min(next.least), one.most.max(next.most));
            Some(Span { least, most, last: next.last })
        }
        _ => one.or(next),
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
        assert!(trend.bins.len() <= BINS);
        assert_eq!((trend.peak, trend.last), (1_000_000, 99_999));
        let most = trend.bins.iter().flatten().map(|span| span.most).max();
        assert_eq!(most, Some(1_000_000));
        trend.set(u64::MAX, 0);
        assert!(trend.bins.len() <= BINS && trend.last == 0);
    }
}
