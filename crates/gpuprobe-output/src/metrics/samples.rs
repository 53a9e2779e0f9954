//! The series of one metric while they are collected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use gpuprobe_event::counters::LATENCY_BUCKETS;

use super::labels;
use super::process_series::{ProcessLabels, SeriesPlan};

/// A histogram with the buckets of the BPF tables, see [`LATENCY_BUCKETS`]. The counts arrive already in buckets, so a
/// histogram crate would have nothing to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Distribution {
    pub(super) latency: [u64; LATENCY_BUCKETS],
    pub(crate) sum_ns: u64,
    pub(crate) count: u64,
}

impl Distribution {
    const EMPTY: Self = Self { latency: [0; LATENCY_BUCKETS], sum_ns: 0, count: 0 };
}

/// The value of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// A sum, which may leave the range of what is written until all of it is added.
    Decimal(i128, u8),
    /// An index into the distributions.
    Histogram(usize),
}

/// A value to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Series<'a> {
    /// A number and its decimal places.
    Decimal(u64, u8),
    Histogram(&'a Distribution),
}

/// The series of one metric by the values of its labels, in order of arrival. Two sources with the same labels (a
/// process that executes its own program again under the same pid) become one series: Prometheus refuses a scrape with
/// a duplicate series as a whole.
///
/// A busy host has tens of thousands of series for a metric, so they are kept in a few blocks of memory, which the next
/// metric reuses.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    names: &'static [&'static str],
    /// The first labels of all following series, as text, and their number.
    first: (String, usize),
    /// The labels of all series as text, one after the other.
    text: String,
    series: Vec<(Range<usize>, Value)>,
    distributions: Vec<Distribution>,
    /// Indices of series by the hash of their labels, or by the next free number after a collision.
    known: HashMap<u64, usize>,
    hasher: RandomState,
    /// Which processes have series of their own.
    plan: Arc<SeriesPlan>,
}

impl Samples {
    /// Without series, for metrics with the series of this plan.
    pub(super) fn new(plan: Arc<SeriesPlan>) -> Self {
        Self { plan, ..Self::default() }
    }

    pub(super) fn plan(&self) -> Arc<SeriesPlan> {
        Arc::clone(&self.plan)
    }

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

    /// Sets the first labels of all following series. They are formatted once.
    pub(super) fn set_first_labels(&mut self, labels: &[&str]) {
        let (text, count) = &mut self.first;
        text.clear();
        *count = labels.len();
        labels::push(text, 0, self.names, labels);
    }

    /// Sets the first labels of all following series to those of a process, or of several. `ended` is a label of
    /// counters only.
    pub(super) fn set_process(&mut self, process: &ProcessLabels, ended: &str) {
        let [pid, name, id, container, pod, namespace] = &process.0;
        let labels = [pid, name, id, container, pod, namespace, ended];
        let count = if self.names.contains(&"ended") { labels.len() } else { labels.len() - 1 };
        self.set_first_labels(&labels[..count]);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The labels and values of all series.
    pub(crate) fn series(&self) -> impl Iterator<Item = (&str, Series<'_>)> {
        self.series.iter().filter_map(|(labels, value)| {
            let value = match *value {
                Value::Decimal(n, places) => Series::Decimal(written(n), places),
                Value::Histogram(index) => Series::Histogram(self.distributions.get(index)?),
            };
            Some((self.text.get(labels.clone())?, value))
        })
    }

    /// The labels and values of all series that are numbers, without their decimal places.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.series().filter_map(|(labels, value)| match value {
            Series::Decimal(n, _) => Some((labels, n)),
            Series::Histogram(_) => None,
        })
    }

    /// Adds a number that may be negative to a series, whose further labels are text already.
    pub(super) fn add_signed(&mut self, labels: &str, n: i128, places: u8) {
        let start = self.text.len();
        self.text.push_str(&self.first.0);
        if !self.first.0.is_empty() && !labels.is_empty() {
            self.text.push(',');
        }
        self.text.push_str(labels);
        if let Value::Decimal(sum, _) = self.slot_of_text(start, Value::Decimal(0, places)) {
            *sum = sum.saturating_add(n);
        }
    }

    /// Raises the number of a series to this one.
    pub(super) fn at_least(&mut self, labels: &[&str], n: u64, places: u8) {
        if let Value::Decimal(most, _) = self.slot(labels, Value::Decimal(0, places)) {
            *most = i128::from(n).max(*most);
        }
    }

    pub(super) fn number(&mut self, labels: &[&str], n: u64) {
        self.decimal(labels, n, 0);
    }

    /// A time, which is written in seconds.
    pub(super) fn nanoseconds(&mut self, labels: &[&str], n: u64) {
        self.decimal(labels, n, 9);
    }

    /// A number with decimal places, the same for all values of a metric.
    pub(super) fn decimal(&mut self, labels: &[&str], n: u64, places: u8) {
        if let Value::Decimal(sum, _) = self.slot(labels, Value::Decimal(0, places)) {
            *sum = sum.saturating_add(n.into());
        }
    }

    pub(super) fn histogram(&mut self, labels: &[&str], more: &Distribution) {
        let next = self.distributions.len();
        let Value::Histogram(index) = *self.slot(labels, Value::Histogram(next)) else { return };
        if index == next {
            self.distributions.push(Distribution::EMPTY);
        }
        let Some(sum) = self.distributions.get_mut(index) else { return };
        sum.latency.iter_mut().zip(more.latency).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        sum.sum_ns = sum.sum_ns.saturating_add(more.sum_ns);
        sum.count = sum.count.saturating_add(more.count);
    }

    /// The value of the series with these labels; `empty` if it is new.
    fn slot(&mut self, labels: &[&str], empty: Value) -> &mut Value {
        let start = self.text.len();
        self.text.push_str(&self.first.0);
        let names = self.names.get(self.first.1..).unwrap_or_default();
        labels::push(&mut self.text, start, names, labels);
        self.slot_of_text(start, empty)
    }

    /// The same for the labels that are at the end of the text.
    fn slot_of_text(&mut self, start: usize, empty: Value) -> &mut Value {
        let range = start..self.text.len();
        let mut key = self.hasher.hash_one(&self.text[range.clone()]);
        let index = loop {
            match self.known.entry(key) {
                Entry::Vacant(free) => {
                    let index = *free.insert(self.series.len());
                    self.series.push((range, empty));
                    break index;
                }
                Entry::Occupied(taken) => {
                    let index = *taken.get();
                    if self.text[self.series[index].0.clone()] == self.text[range.clone()] {
                        self.text.truncate(start);
                        break index;
                    }
                    // other labels with the same hash
                    key = key.wrapping_add(1);
                }
            }
        };
        &mut self.series[index].1
    }
}

/// A sum as it is written: a forged size can make one larger.
fn written(sum: i128) -> u64 {
    u64::try_from(sum.max(0)).unwrap_or(u64::MAX)
}
