//! Bins of time whose width grows with the time they cover. Memory is bounded no matter how long a recording is, and no
//! bins are spent on the time before the first value.

use std::collections::VecDeque;
use std::ops::Range;

use serde::Serialize;

/// The content of a bin.
pub trait BinValue: Clone + Default {
    /// Merges the content of the next bin into this one.
    fn merge(&mut self, later: &Self);
}

/// A sum.
impl BinValue for u64 {
    fn merge(&mut self, later: &Self) {
        *self = self.saturating_add(*later);
    }
}

/// At most `MOST` bins, all of the same length. When they do not suffice, every two neighbours are merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bins<T, const MOST: usize> {
    bin_ns: u64,
    /// Number of bins of this length between time 0 and the first one stored.
    first: u64,
    bins: VecDeque<T>,
}

impl<T, const MOST: usize> Default for Bins<T, MOST> {
    fn default() -> Self {
        Self { bin_ns: 1, first: 0, bins: VecDeque::new() }
    }
}

impl<T: BinValue, const MOST: usize> Bins<T, MOST> {
    /// The bins from `from_ns` to `to_ns`, each with its time range. The last one contains `to_ns`.
    pub fn between(&mut self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = (Range<u64>, &mut T)> {
        self.make_room(from_ns, to_ns.max(from_ns));
        let (bin_ns, first) = (self.bin_ns, self.first);
        let (from, to) = (from_ns / bin_ns - first, to_ns.max(from_ns) / bin_ns - first);
        // there are at most `MOST` bins, so the indexes fit
        self.bins
            .range_mut(from as usize..=to as usize)
            .enumerate()
            .map(move |(i, value)| (times(first + from + i as u64, bin_ns), value))
    }

    /// The bin that contains this time.
    pub fn at(&mut self, at_ns: u64) -> Option<&mut T> {
        self.between(at_ns, at_ns).next().map(|(_, value)| value)
    }

    /// All bins with their time ranges, the earliest first.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &T)> {
        self.bins.iter().enumerate().map(|(i, value)| (times(self.first + i as u64, self.bin_ns), value))
    }

    fn make_room(&mut self, from_ns: u64, to_ns: u64) {
        let (mut first, mut last) = (from_ns / self.bin_ns, to_ns / self.bin_ns);
        if let Some(more) = (self.bins.len() as u64).checked_sub(1) {
            (first, last) = (first.min(self.first), last.max(self.first + more));
        } else {
            self.first = first;
        }
        while last - first >= MOST as u64 {
            self.widen();
            (first, last) = (first / 2, last / 2);
        }
        for _ in first..self.first {
            self.bins.push_front(T::default());
        }
        self.first = first;
        self.bins.resize((last - first + 1) as usize, T::default());
    }

    fn widen(&mut self) {
        self.bin_ns = self.bin_ns.saturating_mul(2);
        let mut wider: VecDeque<T> = VecDeque::with_capacity(self.bins.len() / 2 + 1);
        for (i, value) in self.bins.drain(..).enumerate() {
            // a bin with an odd number is the second half of a wider one
            let is_second = (self.first + i as u64) % 2 == 1;
            match wider.back_mut().filter(|_| is_second) {
                Some(sum) => sum.merge(&value),
                None => wider.push_back(value),
            }
        }
        self.bins = wider;
        self.first /= 2;
    }
}

fn times(number: u64, bin_ns: u64) -> Range<u64> {
    let from_ns = number.saturating_mul(bin_ns);
    from_ns..from_ns.saturating_add(bin_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Sums = Bins<u64, 64>;

    fn count(bins: &mut Sums, at_ns: u64) {
        *bins.at(at_ns).unwrap() += 1;
    }

    fn all(bins: &Sums) -> Vec<(u64, u64)> {
        bins.iter().filter(|(_, n)| **n > 0).map(|(times, n)| (times.start, *n)).collect()
    }

    #[test]
    fn a_value_is_in_the_bin_of_its_time() {
        let mut bins = Sums::default();
        [1000, 1003, 1003, 990].into_iter().for_each(|at| count(&mut bins, at));
        assert_eq!(all(&bins), [(990, 1), (1000, 1), (1003, 2)]);
        assert_eq!(bins.iter().count(), 14, "no bins before the first value or after the last");
    }

    #[test]
    fn bins_grow_in_both_directions_and_keep_their_sums() {
        let mut bins = Sums::default();
        let times: Vec<u64> =
            (0..500).map(|i| 1_000_000 + i * 7).chain((0..500).map(|i| 999_999 - i * 5)).collect();
        for (expected, at) in (1..).zip(&times) {
            count(&mut bins, *at);
            assert!(bins.iter().count() <= 64);
            assert_eq!(bins.iter().map(|(_, n)| n).sum::<u64>(), expected);
        }
        for (times_of, n) in bins.iter() {
            assert_eq!(times.iter().filter(|at| times_of.contains(at)).count() as u64, *n, "{times_of:?}");
        }
        assert!(bins.bin_ns < 6000 / 32, "wider than necessary: {}", bins.bin_ns);
    }

    #[test]
    fn a_span_covers_all_bins_from_its_start_to_its_end() {
        let mut bins = Sums::default();
        bins.between(10, 200).for_each(|(times, n)| *n += times.end.min(200) - times.start.max(10));
        assert_eq!(bins.iter().map(|(_, n)| n).sum::<u64>(), 190);
        assert_eq!(bins.between(100, 50).count(), 1, "a span that ends before it starts has no length");
    }

    #[test]
    fn times_can_be_any_distance_apart() {
        let mut bins = Sums::default();
        [u64::MAX, 0, 1 << 40].into_iter().for_each(|at| count(&mut bins, at));
        assert_eq!(bins.between(0, u64::MAX).count(), 64);
        assert_eq!(bins.iter().map(|(_, n)| n).sum::<u64>(), 3);
    }
}
