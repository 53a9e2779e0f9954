//! Histograms with a bucket per power of two, as the BPF side stores them. No crate is used, because the counts
//! come as arrays with this layout.

use gpuprobe_event::counters::LATENCY_BUCKETS;
use serde::Serialize;

/// The range of a value, as precisely as buckets allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The value is less than this.
    Below(u64),
    /// The value is in the last bucket, which has no upper bound.
    AtLeast(u64),
}

/// The index of the bucket for a time or a size.
pub(crate) fn bucket(value: u64) -> usize {
    let power = value.checked_ilog2().and_then(|power| usize::try_from(power).ok());
    power.unwrap_or(0).min(LATENCY_BUCKETS - 1)
}

/// The bound that this percentage of the values lie within; `None` if there are no values.
pub fn percentile(buckets: &[u64; LATENCY_BUCKETS], per_cent: u64) -> Option<Bound> {
    let all: u128 = buckets.iter().map(|n| u128::from(*n)).sum();
    let wanted = (all * u128::from(per_cent)).div_ceil(100).max(1);
    let mut seen = 0_u128;
    for (i, n) in buckets.iter().enumerate() {
        seen += u128::from(*n);
        if seen >= wanted {
            let is_last = i + 1 == LATENCY_BUCKETS;
            return Some(if is_last { Bound::AtLeast(1 << i) } else { Bound::Below(2 << i) });
        }
    }
    None
}

/// The number of values in the buckets below `2^log2`.
pub fn count_below(buckets: &[u64; LATENCY_BUCKETS], log2: usize) -> u64 {
    buckets.iter().take(log2).fold(0, |sum, n| sum.saturating_add(*n))
}

/// A lower bound for the sum of the values below `2^log2`.
pub fn least_sum_below(buckets: &[u64; LATENCY_BUCKETS], log2: usize) -> u64 {
    // the first bucket starts at 0
    let least = |(i, n): (usize, &u64)| n.saturating_mul(1 << i);
    buckets.iter().enumerate().take(log2).skip(1).map(least).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_upper_bound_of_its_bucket() {
        let mut buckets = [0; LATENCY_BUCKETS];
        assert_eq!(percentile(&buckets, 50), None);
        (buckets[3], buckets[10]) = (99, 1);
        let of = |per_cent| percentile(&buckets, per_cent);
        assert_eq!((of(50), of(99), of(100)), (Some(Bound::Below(16)), of(50), Some(Bound::Below(2048))));
        buckets[LATENCY_BUCKETS - 1] = 900;
        assert_eq!(percentile(&buckets, 50), Some(Bound::AtLeast(1 << (LATENCY_BUCKETS - 1))));
        assert_eq!(percentile(&[u64::MAX; LATENCY_BUCKETS], 50), Some(Bound::Below(1 << 16)));
    }

    #[test]
    fn values_below_a_power_are_counted_and_summed_at_their_lower_bounds() {
        let mut buckets = [0; LATENCY_BUCKETS];
        (buckets[0], buckets[4], buckets[5]) = (7, 3, 1);
        assert_eq!((count_below(&buckets, 5), least_sum_below(&buckets, 5)), (10, 48));
        assert_eq!((count_below(&buckets, 6), least_sum_below(&buckets, 6)), (11, 80));
        let many = [u64::MAX; LATENCY_BUCKETS];
        assert_eq!((count_below(&many, 32), least_sum_below(&many, 32)), (u64::MAX, u64::MAX));
    }
}
