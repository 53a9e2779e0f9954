//! What was pushed of each counter before, for start times and differences.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::label_text::{only, pairs};
use crate::metrics::{BUCKETS, Distribution, Series, bucket_counts};

/// Whether points have totals or differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temporality {
    /// Totals since the start of a series.
    #[default]
    Cumulative,
    /// What was added since the reading before.
    Delta,
}

/// The totals of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Totals {
    Number(u64),
    Histogram(Box<Buckets>),
}

/// A histogram with the buckets that are pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buckets {
    pub(super) counts: [u64; BUCKETS],
    pub(super) sum_ns: u64,
    pub(super) count: u64,
}

impl From<&Distribution> for Buckets {
    fn from(of: &Distribution) -> Self {
        Self { counts: bucket_counts(of), sum_ns: of.sum_ns, count: of.count }
    }
}

impl From<Series<'_>> for Totals {
    fn from(series: Series<'_>) -> Self {
        match series {
            Series::Decimal(n, _) => Self::Number(n),
            Series::Histogram(distribution) => Self::Histogram(Box::new(distribution.into())),
        }
    }
}

impl Totals {
    /// Both together.
    fn plus(&self, more: &Self) -> Self {
        self.with(more, u64::saturating_add)
    }

    /// What was added since then; nothing if it fell.
    fn beyond(&self, before: &Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => Self::Number(of(*a, *b)),
            (Self::Histogram(a), Self::Histogram(b)) => {
                let mut counts = a.counts;
                counts.iter_mut().zip(b.counts).for_each(|(count, other)| *count = of(*count, other));
                let (sum_ns, count) = (of(a.sum_ns, b.sum_ns), of(a.count, b.count));
                Self::Histogram(Box::new(Buckets { counts, sum_ns, count }))
            }
            // a metric has one kind of values
            _ => self.clone(),
        }
    }

    /// What was added since then; `None` if it fell, so that it has begun again.
    fn since(&self, before: &Self) -> Option<Self> {
        match (self, before) {
            (Self::Number(now), Self::Number(before)) => Some(Self::Number(now.checked_sub(*before)?)),
            (Self::Histogram(now), Self::Histogram(before)) => {
                let mut counts = now.counts;
                for (count, before) in counts.iter_mut().zip(before.counts) {
                    *count = count.checked_sub(before)?;
                }
                let sum_ns = now.sum_ns.checked_sub(before.sum_ns)?;
                let count = now.count.checked_sub(before.count)?;
                Some(Self::Histogram(Box::new(Buckets { counts, sum_ns, count })))
            }
            _ => None,
        }
    }
}

/// A point of a counter: what it counted from a time on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) start_ns: u64,
    pub(super) totals: Totals,
}

#[derive(Debug)]
struct Baseline {
    start_ns: u64,
    totals: Totals,
    /// The reading in which it was last seen.
    seen: u64,
}

/// The last totals of series that have ended.
#[derive(Debug)]
pub(super) struct Gone {
    labels: Vec<&'static str>,
    /// By these labels; `None` if some do not have them.
    sums: Option<HashMap<String, Totals>>,
}

/// The counters of all readings so far. Series that end are forgotten, so there are as many as /metrics has.
#[derive(Debug)]
pub(super) struct Baselines {
    temporality: Temporality,
    series: HashMap<&'static str, HashMap<Box<str>, Baseline>>,
    /// The time of the reading before; at first, when gpuprobe started to count.
    before_ns: u64,
    now_ns: u64,
    reading: u64,
}

impl Baselines {
    pub(super) fn new(temporality: Temporality, start_ns: u64) -> Self {
        Self { temporality, series: HashMap::new(), before_ns: start_ns, now_ns: start_ns, reading: 0 }
    }

    pub(super) fn temporality(&self) -> Temporality {
        self.temporality
    }

    /// Begins a reading at a time.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.reading += 1;
        self.now_ns = now_ns;
        // a clock that was set back must not make a point end before it begins
        self.before_ns = self.before_ns.min(now_ns);
    }

    /// The point of a series, which counted since the start of gpuprobe or since a time that is not known. `None` if
    /// its first total says nothing about what was added.
    pub(super) fn point(
        &mut self,
        family: &'static str,
        labels: &str,
        totals: Totals,
        is_since_start: bool,
    ) -> Option<Point> {
        let (reading, now_ns, before_ns) = (self.reading, self.now_ns, self.before_ns);
        let of_family = self.series.entry(family).or_default();
        let Some(known) = of_family.get_mut(labels) else {
            // a series that was not there at the reading before counted from then on; if it is older than gpuprobe, its
            // first point has equal times, which means that the start is not known
            let start_ns = if is_since_start { before_ns } else { now_ns };
            of_family.insert(labels.into(), Baseline { start_ns, totals: totals.clone(), seen: reading });
            let has_point = is_since_start || self.temporality == Temporality::Cumulative;
            return has_point.then_some(Point { start_ns, totals });
        };
        let added = totals.since(&known.totals);
        if added.is_none() {
            known.start_ns = before_ns;
        }
        known.start_ns = known.start_ns.min(now_ns);
        known.totals = totals.clone();
        known.seen = reading;
        Some(match self.temporality {
            Temporality::Cumulative => Point { start_ns: known.start_ns, totals },
            Temporality::Delta => Point { start_ns: before_ns, totals: added.unwrap_or(totals) },
        })
    }

    /// The point of a sum over series that have ended, which is a new series each time it rises. Most of it was in other
    /// series before, so its start is not known; only what was not in them is a difference.
    pub(super) fn point_of_ended(
        &mut self,
        family: &'static str,
        labels: &str,
        totals: Totals,
        gone: &Gone,
    ) -> Option<Point> {
        let is_new = self.series.get(family).is_none_or(|series| !series.contains_key(labels));
        let point = self.point(family, labels, totals.clone(), false);
        if !is_new || self.temporality == Temporality::Cumulative {
            return point;
        }
        // the series that ended may have had other names, which are `other` here: then nothing is known to be new
        let before = gone.sums.as_ref()?.get(&only(labels, &gone.labels))?;
        Some(Point { start_ns: self.before_ns, totals: totals.beyond(before) })
    }

    /// The last totals of the series of a metric that are not in this reading, summed by these of their labels. To be
    /// called when the series that are were added.
    pub(super) fn gone(&self, family: &str, labels: Vec<&'static str>) -> Gone {
        let mut sums: HashMap<String, Totals> = HashMap::new();
        let gone = self.series.get(family).into_iter().flatten().filter(|(_, b)| b.seen != self.reading);
        for (text, Baseline { totals, .. }) in gone {
            // of processes with common series the names are not known
            if !pairs(text).any(|(label, _)| label == "process") {
                return Gone { labels, sums: None };
            }
            match sums.entry(only(text, &labels)) {
                Entry::Occupied(mut sum) => *sum.get_mut() = sum.get().plus(totals),
                Entry::Vacant(free) => drop(free.insert(totals.clone())),
            }
        }
        Gone { labels, sums: Some(sums) }
    }

    /// Ends a reading: series that were not in it are forgotten.
    pub(super) fn end(&mut self) {
        let reading = self.reading;
        for of_family in self.series.values_mut() {
            of_family.retain(|_, baseline| baseline.seen == reading);
        }
        self.series.retain(|_, of_family| !of_family.is_empty());
        self.before_ns = self.now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(baselines: &mut Baselines, n: u64, is_since_start: bool) -> Option<(u64, Totals)> {
        let point = baselines.point("f", "l", Totals::Number(n), is_since_start)?;
        Some((point.start_ns, point.totals))
    }

    fn read(baselines: &mut Baselines, at: u64, n: Option<u64>) -> Option<(u64, Totals)> {
        baselines.begin(at);
        let point = n.and_then(|n| number(baselines, n, true));
        baselines.end();
        point
    }

    #[test]
    fn totals_begin_with_gpuprobe_or_at_the_reading_before_the_first() {
        let mut all = Baselines::new(Temporality::Cumulative, 10);
        assert_eq!(read(&mut all, 20, Some(5)), Some((10, Totals::Number(5))));
        assert_eq!(read(&mut all, 30, Some(7)), Some((10, Totals::Number(7))));
        assert_eq!(read(&mut all, 40, None), None);
        assert_eq!(read(&mut all, 50, Some(3)), Some((40, Totals::Number(3))), "it begins again");
        assert_eq!(read(&mut all, 60, Some(2)), Some((50, Totals::Number(2))), "it fell");
        assert_eq!(read(&mut all, 70, Some(2)), Some((50, Totals::Number(2))));
        assert_eq!(read(&mut all, 30, Some(4)), Some((30, Totals::Number(4))), "the clock was set back");
        read(&mut all, 80, None);
        assert!(all.series.is_empty());
    }

    #[test]
    fn differences_add_up_to_the_totals() {
        let mut all = Baselines::new(Temporality::Delta, 10);
        let points = [(20, 5), (30, 7), (40, 7), (50, 2)].map(|(at, n)| read(&mut all, at, Some(n)));
        let expected = [(10, 5), (20, 2), (30, 0), (40, 2)].map(|(at, n)| Some((at, Totals::Number(n))));
        assert_eq!(points, expected);
    }

    /// Two processes that end, and the sum over those that have: at each reading its label has another value.
    fn pushed(temporality: Temporality) -> Vec<Option<(u64, u64)>> {
        let mut all = Baselines::new(temporality, 10);
        let mut pushed = Vec::new();
        for (at, one, two, ended) in [
            (20, Some(5), Some(1), 0),
            (30, Some(7), Some(2), 0),
            (40, None, Some(3), 9),
            (50, None, None, 13),
        ] {
            all.begin(at);
            let mut points = Vec::new();
            for (pid, n) in [(1, one), (2, two)] {
                let labels = format!("pid=\"{pid}\",process=\"p\",f=\"g\"");
                points.extend(n.map(|n| all.point("own", &labels, Totals::Number(n), true)));
            }
            let gone = all.gone("own", vec!["process", "f"]);
            let labels = format!("process=\"p\",ended=\"{at}\",f=\"g\"");
            let sum = (ended > 0).then(|| all.point_of_ended("own", &labels, Totals::Number(ended), &gone));
            points.extend(sum);
            all.end();
            pushed.extend(points.into_iter().map(|point| match point?.totals {
                Totals::Number(n) => Some((at, n)),
                other => panic!("{other:?}"),
            }));
        }
        pushed
    }

    #[test]
    fn what_moves_to_a_sum_of_ended_series_is_no_difference() {
        let at = |at, n| Some((at, n));
        let expected = [at(20, 5), at(20, 1), at(30, 2), at(30, 1), at(40, 1), at(40, 2), at(50, 1)];
        assert_eq!(pushed(Temporality::Delta), expected);
        let totals = [at(20, 5), at(20, 1), at(30, 7), at(30, 2), at(40, 3), at(40, 9), at(50, 13)];
        assert_eq!(pushed(Temporality::Cumulative), totals);
    }

    #[test]
    fn a_counter_that_is_older_than_gpuprobe_has_no_known_start() {
        let two_readings = |temporality| {
            let mut all = Baselines::new(temporality, 10);
            [(20, 500), (30, 503)].map(|(at, n)| {
                all.begin(at);
                let point = number(&mut all, n, false);
                all.end();
                point
            })
        };
        let totals = [(20, 500), (20, 503)].map(|(at, n)| Some((at, Totals::Number(n))));
        assert_eq!(two_readings(Temporality::Cumulative), totals);
        assert_eq!(two_readings(Temporality::Delta), [None, Some((20, Totals::Number(3)))]);
    }

    #[test]
    fn histograms_are_subtracted_bucket_by_bucket() {
        let buckets = |first, last| {
            let mut counts = [0; BUCKETS];
            (counts[0], counts[BUCKETS - 1]) = (first, last);
            Totals::Histogram(Box::new(Buckets { counts, sum_ns: 100 * first, count: first + last }))
        };
        assert_eq!(buckets(5, 3).since(&buckets(2, 1)), Some(buckets(3, 2)));
        assert_eq!(buckets(5, 3).since(&buckets(2, 4)), None, "one bucket fell");
        assert_eq!(buckets(5, 3).since(&Totals::Number(1)), None);
    }
}
