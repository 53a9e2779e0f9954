//! A histogram of durations. A bucket is at most an eighth of its value wide, which bounds the error of quantiles, and a
//! function needs a few kilobytes no matter how many calls it has.
//!
//! hdrhistogram is not used: the bounds of the buckets are part of the JSON output, and its precision in decimal digits
//! does not give eight buckets in each power of two.

use serde::Serialize;

/// Buckets in each power of two.
const STEPS_BITS: u32 = 3;
const STEPS: u64 = 1 << STEPS_BITS;

/// Counts of values by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    counts: Vec<u64>,
    all: u64,
    /// The least and the greatest value, if there is one.
    least: u64,
    greatest: u64,
}

/// One bucket: values from `from` to `to`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    pub from: u64,
    pub to: u64,
    pub count: u64,
}

impl Distribution {
    pub fn add(&mut self, value: u64) {
        self.add_times(value, 1);
    }

    /// Adds a value that stands for so many.
    pub fn add_times(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        let at = bucket_of(value);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] = self.counts[at].saturating_add(times);
        self.least = if self.all == 0 { value } else { self.least.min(value) };
        self.greatest = self.greatest.max(value);
        self.all = self.all.saturating_add(times);
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.all
    }

    /// The value that `of_thousand` in 1000 values do not exceed. The values of a bucket are taken to be spread evenly
    /// over it: its middle can be far from all of them if they are nearly the same. `None` if there are no values.
    pub fn quantile(&self, of_thousand: u64) -> Option<u64> {
        let all = u128::from(self.all);
        let wanted = (all * u128::from(of_thousand)).div_ceil(1000).max(1);
        if wanted >= all {
            return (all > 0).then_some(self.greatest);
        }
        if wanted == 1 {
            return Some(self.least);
        }
        let mut before = 0;
        for (at, count) in self.counts.iter().map(|count| u128::from(*count)).enumerate() {
            if before + count >= wanted {
                let (from, last) =
                    (bucket_start(at).max(self.least), (bucket_end(at) - 1).min(self.greatest));
                // a value is in the middle of its share of the bucket
                let above = u128::from(last.saturating_sub(from)) * (2 * (wanted - before) - 1) / (2 * count);
                return Some(from + u64::try_from(above).unwrap_or(u64::MAX));
            }
            before += count;
        }
        None
    }

    /// The buckets that are not empty.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let bucket =
            |(at, count): (usize, &u64)| Bucket { from: bucket_start(at), to: bucket_end(at), count: *count };
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(bucket)
    }
}

/// The first `STEPS` values have a bucket each; after that every power of two is divided into `STEPS` buckets.
fn bucket_of(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let power = value.ilog2() - STEPS_BITS;
    let step = (value >> power) - STEPS;
    (u64::from(power + 1) * STEPS + step) as usize
}

fn bucket_start(at: usize) -> u64 {
    let at = at as u64;
    if at < STEPS {
        return at;
    }
    let power = at / STEPS - 1;
    (STEPS + at % STEPS).checked_shl(power as u32).unwrap_or(u64::MAX)
}

fn bucket_end(at: usize) -> u64 {
    // the upper bound of the last bucket does not fit into a u64
    if at + 1 >= bucket_of(u64::MAX) { u64::MAX } else { bucket_start(at + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_its_bucket() {
        let around = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1, 3 << (bit / 2)]);
        for value in around.chain([0, 5, 1000, u64::MAX - 1, u64::MAX]) {
            let at = bucket_of(value);
            assert!(bucket_start(at) <= value && value <= bucket_end(at), "{value}");
            assert!(at == 0 || bucket_end(at - 1) <= value || at >= bucket_of(u64::MAX) - 1, "{value}");
        }
    }

    #[test]
    fn quantiles_are_close() {
        let mut distribution = Distribution::default();
        assert_eq!(distribution.quantile(500), None);
        (1..=10_000).for_each(|value| distribution.add(value));
        for (of_thousand, expected) in [(500, 5000.0), (990, 9900.0), (1, 10.0), (1000, 10_000.0)] {
            let found = distribution.quantile(of_thousand).unwrap() as f64;
            assert!((found / expected - 1.0).abs() < 0.07, "{of_thousand}: {found}");
        }
        assert_eq!(distribution.buckets().map(|bucket| bucket.count).sum::<u64>(), 10_000);
    }

    #[test]
    fn one_value_is_every_quantile() {
        let mut distribution = Distribution::default();
        distribution.add(1_000_003);
        assert_eq!([1, 500, 1000].map(|q| distribution.quantile(q)), [Some(1_000_003); 3]);
    }

    #[test]
    fn quantiles_of_values_in_one_bucket_are_between_them_and_ordered() {
        // at the upper end of a bucket, at its lower end, and in two buckets
        for (least, greatest) in [(48_000, 49_100), (45_057, 45_200), (48_900, 49_400)] {
            let mut distribution = Distribution::default();
            (least..=greatest).for_each(|value| distribution.add(value));
            let [p50, p99, all] = [500, 990, 1000].map(|q| distribution.quantile(q).unwrap());
            let mean = (least + greatest) / 2;
            assert!(p50.abs_diff(mean) <= (greatest - least) / 50, "{p50}: {mean}");
            assert!(mean < p99 && p99 < greatest, "{mean}: {p99}: {greatest}");
            assert_eq!(all, greatest);
        }
    }

    #[test]
    fn quantiles_of_the_greatest_values_do_not_overflow() {
        let mut distribution = Distribution::default();
        [u64::MAX, u64::MAX, 0].into_iter().for_each(|value| distribution.add(value));
        let [least, middle, greatest] = [1, 500, 1000].map(|q| distribution.quantile(q).unwrap());
        assert_eq!((least, greatest), (0, u64::MAX));
        assert!(middle >= 15 << 60, "{middle}");
    }
}
