//! Converts CUPTI's times to CLOCK_MONOTONIC. CUPTI's own callback for that would stay in force for other users of CUPTI.

use crate::monotonic;

/// Readings of both clocks of which the tightest is used.
const READINGS: usize = 8;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    cupti_ns: u64,
    monotonic_ns: u64,
}

impl Sample {
    /// What has to be added to CUPTI's time.
    fn offset(self) -> i64 {
        self.monotonic_ns.wrapping_sub(self.cupti_ns).cast_signed()
    }
}

/// The two latest samples: records are stamped between them.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    previous: Option<Sample>,
    newest: Option<Sample>,
}

impl Clock {
    /// Compares the clocks. `false` if CUPTI's cannot be read.
    pub(crate) fn sample(&mut self, cupti_now: impl Fn() -> Option<u64>) -> bool {
        let readings = (0..READINGS).filter_map(|_| {
            let before = monotonic::now_ns();
            let cupti_ns = cupti_now()?;
            let width = monotonic::now_ns().saturating_sub(before);
            Some((width, Sample { cupti_ns, monotonic_ns: before + width / 2 }))
        });
        let Some((_, sample)) = readings.min_by_key(|(width, _)| *width) else { return false };
        self.add(sample);
        true
    }

    fn add(&mut self, sample: Sample) {
        self.previous = self.newest.replace(sample);
    }

    /// A time of CUPTI. 0 stands for a time that could not be read, and stays.
    pub(crate) fn convert(&self, cupti_ns: u64) -> u64 {
        let Some(newest) = self.newest.filter(|_| cupti_ns != 0) else { return 0 };
        cupti_ns.wrapping_add_signed(self.offset_at(cupti_ns, newest))
    }

    fn offset_at(&self, cupti_ns: u64, newest: Sample) -> i64 {
        let Some(previous) = self.previous else { return newest.offset() };
        let between = newest.cupti_ns.saturating_sub(previous.cupti_ns);
        if between == 0 || cupti_ns >= newest.cupti_ns {
            return newest.offset();
        }
        let passed = cupti_ns.saturating_sub(previous.cupti_ns);
        let drift = i128::from(newest.offset().wrapping_sub(previous.offset()));
        let part = drift * i128::from(passed) / i128::from(between);
        previous.offset().wrapping_add(i64::try_from(part).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_samples_follow_the_drift() {
        let mut clock = Clock::default();
        assert_eq!(clock.convert(5), 0);
        clock.add(Sample { cupti_ns: 1_000_000, monotonic_ns: 500 });
        assert_eq!(clock.convert(1_000_100), 600);
        assert_eq!(clock.convert(0), 0);
        clock.add(Sample { cupti_ns: 1_001_000, monotonic_ns: 1_600 });
        assert_eq!(clock.convert(1_000_000), 500);
        assert_eq!(clock.convert(1_000_500), 1_050);
        assert_eq!(clock.convert(1_001_000), 1_600);
        assert_eq!(clock.convert(1_002_000), 2_600);
        // earlier than both: as at the first of them
        assert_eq!(clock.convert(999_900), 400);
    }

    #[test]
    fn the_tightest_reading_is_used() {
        let mut clock = Clock::default();
        let ahead = 1_700_000_000_000_000_000;
        assert!(clock.sample(|| Some(monotonic::now_ns() + ahead)));
        let now = monotonic::now_ns();
        assert!(clock.convert(now + ahead).abs_diff(now) < 1_000_000);
        assert!(!clock.sample(|| None));
    }
}
