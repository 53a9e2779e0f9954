//! What collectives say about the clocks of hosts: a collective cannot end on any rank before all ranks have begun it.

use std::collections::BTreeMap;

use super::matching::{Arrival, Matched};
use crate::recording::collectives::Collective;

/// No bound.
const NONE: i64 = i64::MAX;
/// No spread.
const UNKNOWN: u64 = u64::MAX;
/// Differences that are kept of a pair of clocks.
const MOST_KEPT: usize = 1024;

/// Which ranks must have begun a collective before it can end on which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Each rank needs all others.
    All,
    /// All ranks need the root.
    Root(i32),
    /// Only the root needs the others.
    AtRoot(i32),
}

impl Needs {
    /// `None` if nothing is known: NCCL does nothing for 0 elements.
    fn of(made: &Collective) -> Option<Self> {
        if made.count.is_none_or(|count| count == 0) {
            return None;
        }
        match made.function {
            "ncclAllReduce" | "ncclAllGather" | "ncclReduceScatter" | "ncclAlltoAll" => Some(Self::All),
            "ncclBroadcast" | "ncclBcast" | "ncclScatter" => made.root.map(Self::Root),
            "ncclReduce" | "ncclGather" => made.root.map(Self::AtRoot),
            _ => None,
        }
    }

    fn begins_at(self, arrival: &Arrival) -> bool {
        !matches!(self, Self::Root(root) if !is_rank(arrival, root))
    }

    fn ends_at(self, arrival: &Arrival) -> bool {
        !matches!(self, Self::AtRoot(root) if !is_rank(arrival, root))
    }
}

fn is_rank(arrival: &Arrival, rank: i32) -> bool {
    arrival.rank.is_some_and(|own| i32::try_from(own) == Ok(rank))
}

/// A collective on one clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OnClock {
    /// When the last rank on it that others need had begun.
    pub begin_ns: Option<i64>,
    /// When the first rank on it that needs others had ended.
    pub end_ns: Option<i64>,
    /// That is about when it ended.
    pub waited: bool,
}

/// A collective on each clock, which must overlap; empty if the ranks need not wait for each other. `on` is the clock of
/// a rank and its time of a moment.
pub(super) fn on_clocks(
    matched: &Matched,
    on: impl Fn(&Arrival, u64) -> (usize, i64),
) -> BTreeMap<usize, OnClock> {
    let mut clocks: BTreeMap<usize, OnClock> = BTreeMap::new();
    let Some(needs) = Needs::of(&matched.made).filter(|_| !matched.differs) else { return clocks };
    for arrival in &matched.arrivals {
        let (clock, begin_ns) = on(arrival, arrival.latest_begin_ns());
        let of = clocks.entry(clock).or_default();
        if needs.begins_at(arrival) {
            of.begin_ns = of.begin_ns.max(Some(begin_ns));
        }
        if let Some(end_ns) = arrival.end_ns.filter(|_| needs.ends_at(arrival)) {
            let (_, end_ns) = on(arrival, end_ns);
            if of.end_ns.is_none_or(|known| end_ns < known) {
                // only if all need all do they end at about the same time
                (of.end_ns, of.waited) = (Some(end_ns), arrival.waited && needs == Needs::All);
            }
        }
    }
    clocks
}

/// Differences of two clocks. Of many, an even selection is kept.
#[derive(Clone, Debug, Default)]
struct Differences {
    kept: Vec<i64>,
    seen: u64,
    /// One in so many is kept, less one.
    skipped: u64,
}

impl Differences {
    fn add(&mut self, difference: i64) {
        if self.seen.is_multiple_of(self.skipped + 1) {
            self.kept.push(difference);
        }
        self.seen += 1;
        if self.kept.len() >= MOST_KEPT {
            let mut at = 0;
            self.kept.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.skipped = 2 * self.skipped + 1;
        }
    }

    /// The median, and half of the distance between the quartiles: [`UNKNOWN`] if these are few.
    fn median(&self) -> Option<(i64, u64)> {
        const FEW: usize = 8;
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let at = |quarters: usize| sorted.get((sorted.len().saturating_sub(1)) * quarters / 4).copied();
        let (low, median, high) = (at(1)?, at(2)?, at(3)?);
        Some((median, if sorted.len() < FEW { UNKNOWN } else { low.abs_diff(high) / 2 }))
    }
}

/// What is known about the corrections of clocks: numbers that are added to their times so that all agree.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    clocks: usize,
    /// By how much the correction of one clock exceeds that of another at most; [`NONE`] if that is not known.
    most_ns: Vec<i64>,
    ends: BTreeMap<(usize, usize), Differences>,
    /// Collectives that each clock has in common with others.
    common: Vec<u64>,
}

/// The correction of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Correction {
    pub ns: i64,
    /// How far it may be off; `None` if nothing is known about it.
    pub uncertainty_ns: Option<u64>,
    /// What it is at least and at most, if collectives do not contradict each other.
    pub range_ns: (Option<i64>, Option<i64>),
    /// Collectives that it has in common with other clocks.
    pub collectives: u64,
}

impl Bounds {
    pub(super) fn new(clocks: usize) -> Self {
        let most_ns = vec![NONE; clocks * clocks];
        Self { clocks, most_ns, ends: BTreeMap::new(), common: vec![0; clocks] }
    }

    /// Takes in a collective.
    pub(super) fn add(&mut self, on: &BTreeMap<usize, OnClock>) {
        if on.len() < 2 {
            return;
        }
        let mut are_bounded = false;
        for (one, begin_ns) in on.iter().filter_map(|(clock, of)| Some((*clock, of.begin_ns?))) {
            for (other, end_ns) in on.iter().filter_map(|(clock, of)| Some((*clock, of.end_ns?))) {
                let most_ns = self.most_ns.get_mut(one * self.clocks + other).filter(|_| one != other);
                if let Some(most_ns) = most_ns {
                    *most_ns = (*most_ns).min(end_ns.saturating_sub(begin_ns));
                    are_bounded = true;
                }
            }
        }
        if are_bounded {
            for clock in on.keys() {
                self.common.get_mut(*clock).into_iter().for_each(|common| *common += 1);
            }
        }
        let mut ends =
            on.iter().filter(|(_, of)| of.waited).filter_map(|(clock, of)| Some((*clock, of.end_ns?)));
        let Some((first, first_ns)) = ends.next() else { return };
        for (other, end_ns) in ends {
            self.ends.entry((first, other)).or_default().add(first_ns.saturating_sub(end_ns));
        }
    }

    /// The corrections of all clocks, so that that of the first is 0. The ends of collectives that hosts waited for give
    /// the correction, because they are at about the same time on all ranks. It is moved into the range in which every
    /// collective overlaps, and if no ends are known, it is the middle of that range.
    pub(super) fn solve(&self) -> Vec<Correction> {
        let closed = self.closed(0);
        let by_ends = self.by_ends();
        let needs_range =
            by_ends.iter().zip(&self.common).any(|(ends, common)| ends.is_none() && *common > 0);
        let relaxed = if closed.is_none() && needs_range { self.relaxed() } else { None };
        let correction = |clock: usize| {
            let range = |of: &Vec<i64>| self.range(of, clock);
            let known = closed.as_ref().map_or((None, None), range);
            let widest = known_or(closed.as_ref().or(relaxed.as_ref()).map(range));
            let (ns, spread_ns) = match (by_ends.get(clock).copied().flatten(), widest) {
                (Some((ns, spread_ns)), range) => {
                    (within(ns, range), Some(spread_ns).filter(|ns| *ns != UNKNOWN))
                }
                (None, (Some(least), Some(most))) => (middle(least, most), None),
                (None, range) => (within(0, range), None),
            };
            let width = match widest {
                (Some(least), Some(most)) => Some(ns.abs_diff(least).max(ns.abs_diff(most))),
                _ => None,
            };
            Correction {
                ns,
                uncertainty_ns: spread_ns.into_iter().chain(width).min(),
                range_ns: known,
                collectives: self.common.get(clock).copied().unwrap_or(0),
            }
        };
        (0..self.clocks).map(correction).collect()
    }

    /// Bounds that follow from others, all relaxed by so much; `None` if they contradict each other.
    fn closed(&self, by_ns: i64) -> Option<Vec<i64>> {
        let clocks = self.clocks;
        let relax = |most_ns: &i64| if *most_ns == NONE { NONE } else { most_ns.saturating_add(by_ns) };
        let mut most_ns: Vec<i64> = self.most_ns.iter().map(relax).collect();
        (0..clocks).for_each(|clock| most_ns[clock * clocks + clock] = 0);
        for through in 0..clocks {
            for one in 0..clocks {
                let first_ns = most_ns[one * clocks + through];
                if first_ns == NONE {
                    continue;
                }
                for other in 0..clocks {
                    let second_ns = most_ns[through * clocks + other];
                    let sum_ns = if second_ns == NONE { NONE } else { first_ns.saturating_add(second_ns) };
                    let known_ns = &mut most_ns[one * clocks + other];
                    *known_ns = (*known_ns).min(sum_ns);
                }
            }
            if (0..clocks).any(|clock| most_ns[clock * clocks + clock] < 0) {
                return None;
            }
        }
        Some(most_ns)
    }

    /// The bounds, relaxed by as little as makes them agree.
    fn relaxed(&self) -> Option<Vec<i64>> {
        /// The precision of the result.
        const STEP_NS: i64 = 1000;
        let steps = (0..i64::BITS - 12).map(|bit| STEP_NS << bit);
        let mut most_ns = steps.into_iter().find(|by_ns| self.closed(*by_ns).is_some())?;
        let mut least_ns = most_ns / 2;
        while most_ns - least_ns > STEP_NS {
            let by_ns = middle(least_ns, most_ns);
            *(if self.closed(by_ns).is_some() { &mut most_ns } else { &mut least_ns }) = by_ns;
        }
        self.closed(most_ns)
    }

    /// What the correction of a clock is at least and at most.
    fn range(&self, closed: &[i64], clock: usize) -> (Option<i64>, Option<i64>) {
        let at = |one: usize, other: usize| {
            closed.get(one * self.clocks + other).copied().filter(|most_ns| *most_ns != NONE)
        };
        (at(0, clock).map(i64::saturating_neg), at(clock, 0))
    }

    /// The corrections by the ends of collectives, each with its spread, along the pairs with most differences.
    fn by_ends(&self) -> Vec<Option<(i64, u64)>> {
        let mut known: Vec<Option<(i64, u64)>> = vec![None; self.clocks];
        if let Some(first) = known.first_mut() {
            *first = Some((0, 0));
        }
        let is_known =
            |known: &[Option<(i64, u64)>], clock: usize| known.get(clock).is_some_and(Option::is_some);
        loop {
            let leads_on = |pair: &&(usize, usize)| is_known(&known, pair.0) != is_known(&known, pair.1);
            let next =
                self.ends.keys().filter(leads_on).max_by_key(|pair| self.ends.get(pair).map(|of| of.seen));
            let Some(&(one, other)) = next else { return known };
            let median = self.ends.get(&(one, other)).and_then(Differences::median).unwrap_or_default();
            let (from, to, ns) = match is_known(&known, one) {
                true => (one, other, median.0),
                false => (other, one, median.0.saturating_neg()),
            };
            let (before, spread_ns) = known.get(from).copied().flatten().unwrap_or_default();
            let sum = (before.saturating_add(ns), spread_ns.saturating_add(median.1));
            known.get_mut(to).into_iter().for_each(|to| *to = Some(sum));
        }
    }
}

fn known_or(range: Option<(Option<i64>, Option<i64>)>) -> (Option<i64>, Option<i64>) {
    range.unwrap_or((None, None))
}

fn middle(least: i64, most: i64) -> i64 {
    least.midpoint(most)
}

fn within(ns: i64, (least, most): (Option<i64>, Option<i64>)) -> i64 {
    ns.max(least.unwrap_or(i64::MIN)).min(most.unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: i64 = 1000;

    fn collective(times: &[(usize, i64, i64, bool)]) -> BTreeMap<usize, OnClock> {
        let on = |(clock, begin_ns, end_ns, waited): &(usize, i64, i64, bool)| {
            (*clock, OnClock { begin_ns: Some(*begin_ns), end_ns: Some(*end_ns), waited: *waited })
        };
        times.iter().map(on).collect()
    }

    #[test]
    fn without_ends_the_middle_of_the_range_is_taken() {
        let mut bounds = Bounds::new(3);
        // the second clock is 1000 us behind: it comes last, and then first
        bounds.add(&collective(&[(0, 2000 * US, 2110 * US, false), (1, 1100 * US, 1110 * US, false)]));
        bounds.add(&collective(&[(0, 3090 * US, 3120 * US, false), (1, 2000 * US, 2120 * US, false)]));
        let solved = bounds.solve();
        let range = (Some(970 * US), Some(1010 * US));
        assert_eq!((solved[1].ns, solved[1].range_ns, solved[1].collectives), (990 * US, range, 2));
        assert_eq!(solved[1].uncertainty_ns, Some(20_000));
        assert_eq!((solved[2].ns, solved[2].uncertainty_ns, solved[2].range_ns), (0, None, (None, None)));
    }

    #[test]
    fn a_clock_is_compared_with_the_first_through_others() {
        let mut bounds = Bounds::new(3);
        for step in 0..20 {
            let at = step * 10_000 * US;
            bounds
                .add(&collective(&[(0, at, at + 100 * US, true), (1, at + 7000 * US, at + 7100 * US, true)]));
            bounds
                .add(&collective(&[(1, at, at + 50 * US, true), (2, at - 9000 * US, at - 8950 * US, true)]));
        }
        let solved = bounds.solve();
        assert_eq!(solved.iter().map(|of| of.ns).collect::<Vec<_>>(), [0, -7000 * US, 2000 * US]);
        assert_eq!(solved[2].range_ns, (Some(1850 * US), Some(2150 * US)));
        assert_eq!((solved[2].uncertainty_ns, solved[0].uncertainty_ns), (Some(0), Some(0)));
    }

    #[test]
    fn bounds_that_contradict_each_other_are_relaxed_evenly() {
        let mut bounds = Bounds::new(2);
        bounds.add(&collective(&[(0, 0, 10 * US, false), (1, 0, 10 * US, false)]));
        // the second clock has gained 100 us
        bounds.add(&collective(&[(0, 500 * US, 510 * US, false), (1, 600 * US, 610 * US, false)]));
        let [_, second] = &bounds.solve()[..] else { panic!("two clocks") };
        assert_eq!(second.range_ns, (None, None));
        assert!((-52 * US..=-48 * US).contains(&second.ns), "{second:?}");
        assert!(second.uncertainty_ns.is_some_and(|ns| ns < 5000), "{second:?}");
    }

    #[test]
    fn many_differences_are_kept_evenly() {
        let mut differences = Differences::default();
        (0..100_000).for_each(|n| differences.add(n));
        let (median, spread) = differences.median().unwrap();
        assert!(differences.kept.len() < MOST_KEPT && median.abs_diff(50_000) < 500, "{median}");
        assert!(spread.abs_diff(25_000) < 500, "{spread}");
        assert_eq!(Differences::default().median(), None);
    }
}
