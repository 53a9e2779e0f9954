//! The series of one metric, as they are collected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use gpuprobe_event::counters::LATENCY_BUCKETS;

use super::labels;

/// A histogram with the kernel's buckets, see [`LATENCY_BUCKETS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Distribution {
    pub(super) latency: [u64; LATENCY_BUCKETS],
    pub(super) sum_ns: u64,
    pub(super) count: u64,
}

impl Distribution {
    const EMPTY: Self = Self { latency: [0; LATENCY_BUCKETS], sum_ns: 0, count: 0 };
}

/// The value of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Decimal(u64, u8),
    /// A place among the distributions.
    Histogram(usize),
}

/// A value as it is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Series<'a> {
    /// A number with so many decimal places.
    Decimal(u64, u8),
    Histogram(&'a Distribution),
}

/// The series of one metric by the values of its labels, in the order in which they came. Two sources with the same
/// labels (a process that runs its own program again under the same pid) become one series: a scrape with a series twice
/// is refused as a whole.
///
/// Of a crowded host there are tens of thousands for a metric, so they lie in a few blocks of memory, which the next
/// metric uses again.
#[derive(Debug, Default)]
pub(super) struct Samples {
    names: &'static [&'static str],
    /// The first labels of all series that follow, as they are written, and how many they are.
    first: (String, usize),
    /// Labels of all series as they are written, one after the other.
    text: String,
    series: Vec<(Range<usize>, Value)>,
    distributions: Vec<Distribution>,
    /// Places of series by the hash of their labels, or by the next number that is free.
    known: HashMap<u64, usize>,
    hasher: RandomState,
}

impl Samples {
    /// Begins a metric whose labels have these names.
    pub(super) fn begin(&mut self, names: &'static [&'static str]) {
        self.names = names;
        self.first.0.clear();
        self.first.1 = 0;
        self.text.clear();
        self.series.clear();
        self.distributions.clear();
        self.known.clear();
    }

    /// Begins series of this metric whose first labels have these values. What they share is written once.
    pub(super) fn of(&mut self, labels: &[&str]) {
        let (text, count) = &mut self.first;
        text.clear();
        *count = labels.len();
        labels::push(text, 0, self.names, labels);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Labels and values.
    pub(super) fn series(&self) -> impl Iterator<Item = (&str, Series<'_>)> {
        self.series.iter().filter_map(|(labels, value)| {
            let value = match *value {
                Value::Decimal(n, places) => Series::Decimal(n, places),
                Value::Histogram(place) => Series::Histogram(self.distributions.get(place)?),
            };
            Some((self.text.get(labels.clone())?, value))
        })
    }

    pub(super) fn number(&mut self, labels: &[&str], n: u64) {
        self.decimal(labels, n, 0);
    }

    /// A time, which is written in seconds.
    pub(super) fn nanoseconds(&mut self, labels: &[&str], n: u64) {
        self.decimal(labels, n, 9);
    }

    /// All values of a metric have the same decimal places.
    pub(super) fn decimal(&mut self, labels: &[&str], n: u64, places: u8) {
        if let Value::Decimal(sum, _) = self.slot(labels, Value::Decimal(0, places)) {
            *sum = sum.saturating_add(n);
        }
    }

    pub(super) fn histogram(&mut self, labels: &[&str], more: &Distribution) {
        let next = self.distributions.len();
        let Value::Histogram(place) = *self.slot(labels, Value::Histogram(next)) else { return };
        if place == next {
            self.distributions.push(Distribution::EMPTY);
        }
        let Some(sum) = self.distributions.get_mut(place) else { return };
        sum.latency.iter_mut().zip(more.latency).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        sum.sum_ns = sum.sum_ns.saturating_add(more.sum_ns);
        sum.count = sum.count.saturating_add(more.count);
    }

    /// The value of the series with these labels, which is `empty` where it is new.
    fn slot(&mut self, labels: &[&str], empty: Value) -> &mut Value {
        let start = self.text.len();
        self.text.push_str(&self.first.0);
        let names = self.names.get(self.first.1..).unwrap_or_default();
        labels::push(&mut self.text, start, names, labels);
        let range = start..self.text.len();
        let mut key = self.hasher.hash_one(&self.text[range.clone()]);
        let place = loop {
            match self.known.entry(key) {
                Entry::Vacant(free) => {
                    let place = *free.insert(self.series.len());
                    self.series.push((range, empty));
                    break place;
                }
                Entry::Occupied(taken) => {
                    let place = *taken.get();
                    if self.text[self.series[place].0.clone()] == self.text[range.clone()] {
                        self.text.truncate(start);
                        break place;
                    }
                    // other labels with the same hash
                    key = key.wrapping_add(1);
                }
            }
        };
        &mut self.series[place].1
    }
}
