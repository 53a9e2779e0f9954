//! Whether what a place holds is a leak. Holding memory is none, nor is growing for a while: programs load, caches fill,
//! batches come and go. A leak is what keeps rising when all of that is over, and what a place holds at its lowest
//! moments tells it: whatever is given back sooner or later is missing there.

use std::time::Duration;

use serde::Serialize;

use crate::leaks::history::Point;

/// The time after warm-up is looked at in so many parts, each with its lowest moment.
const WINDOWS: usize = 8;
/// Of the steps between these, so many must lead up.
const LEAST_RISES: usize = WINDOWS - 2;

/// When to begin to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a place warms up, from its first allocation on. It is never less than a quarter of its age, so that what
    /// took long to load is not held against it when it has.
    pub warm_up_ns: u64,
}

impl Rules {
    /// With a warm-up of this time.
    pub fn after(warm_up: Duration) -> Self {
        Self { warm_up_ns: u64::try_from(warm_up.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// What is thought of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Too young, or seen too few times, to be judged.
    WarmingUp,
    /// It holds something, and there was no room to follow what it held before.
    NotFollowed,
    /// All that was ever allocated there has been given back, or ended with its context.
    Freed,
    /// Nothing was allocated or freed there after warm-up.
    Unchanged,
    /// Allocations and frees balance: what is held at the lowest moments does not rise any more.
    Steady,
    /// It rises and falls.
    Varying,
    /// It has grown, but not in every part of the time, or everything in it is given back after a while.
    Growing,
    /// What is held at the lowest moments keeps rising.
    #[serde(rename = "leak_suspect")]
    Suspect,
}

impl Verdict {
    /// In a word or two.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WarmingUp => "warming up",
            Self::NotFollowed => "not followed",
            Self::Freed => "all freed",
            Self::Unchanged => "unchanged",
            Self::Steady => "steady",
            Self::Varying => "varying",
            Self::Growing => "growing",
            Self::Suspect => "leak suspect",
        }
    }
}

/// What a place did in the time that was judged, or since its first allocation where it is still warming up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// How long that was.
    pub over_ns: u64,
    /// By how much its lowest level rose from the first part of the time to the last.
    pub bytes: u64,
    /// By how much it fell in between, all falls together.
    pub fell_bytes: u64,
    /// Allocations in this time.
    pub allocations: u64,
    /// Frees in this time.
    pub frees: u64,
    /// Allocations that ended with their context in this time.
    pub ended: u64,
}

impl Growth {
    /// In bytes per second.
    pub fn rate(&self) -> f64 {
        if self.over_ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / self.over_ns as f64 }
    }
}

/// A verdict and what it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// What is thought of the place.
    pub verdict: Verdict,
    /// Why.
    pub growth: Growth,
}

/// The life of one place: points that ended at these times, the first of which began at `began_ns`.
#[derive(Clone, Copy, Debug)]
pub struct Life<'a> {
    /// When the first point began.
    pub began_ns: u64,
    /// When each ended.
    pub ends_ns: &'a [u64],
    /// What was seen.
    pub points: &'a [Point],
    /// When the oldest of what is live was allocated, where that is known.
    pub oldest_ns: Option<u64>,
}

impl Life<'_> {
    fn start_of(&self, point: usize) -> u64 {
        point.checked_sub(1).and_then(|before| self.ends_ns.get(before)).copied().unwrap_or(self.began_ns)
    }

    fn before(&self, point: usize) -> Point {
        point.checked_sub(1).and_then(|before| self.points.get(before)).copied().unwrap_or_default()
    }

    fn growth_since(&self, point: usize, lows: &[u64]) -> Growth {
        let (before, last) = (self.before(point), self.points.last().copied().unwrap_or_default());
        let end = self.ends_ns.last().copied().unwrap_or_default();
        let fall = |pair: &[u64]| pair[0].saturating_sub(pair[1]);
        Growth {
            over_ns: end.saturating_sub(self.start_of(point)),
            bytes: match lows {
                [first, .., last] => last.saturating_sub(*first),
                _ => last.last_bytes.saturating_sub(before.last_bytes),
            },
            fell_bytes: lows.windows(2).map(fall).fold(0, u64::saturating_add),
            allocations: last.allocations.saturating_sub(before.allocations),
            frees: last.frees.saturating_sub(before.frees),
            ended: last.ended.saturating_sub(before.ended),
        }
    }
}

/// Judges a place.
pub fn judge(life: &Life<'_>, rules: Rules) -> Judgement {
    let Some(born) = life.points.iter().position(|p| p.allocations > 0) else {
        return Judgement { verdict: Verdict::Unchanged, growth: Growth::default() };
    };
    let is_over = |last: &Point| last.frees.saturating_add(last.ended) >= last.allocations;
    if life.points.last().is_some_and(|last| last.last_bytes == 0 && is_over(last)) {
        return Judgement { verdict: Verdict::Freed, growth: life.growth_since(born, &[]) };
    }
    let now_ns = life.ends_ns.last().copied().unwrap_or_default();
    let born_ns = life.start_of(born);
    let warm_up_ns = rules.warm_up_ns.max(now_ns.saturating_sub(born_ns) / 4);
    let warm_ns = born_ns.saturating_add(warm_up_ns);
    let is_warm = |point: &usize| life.start_of(*point) >= warm_ns;
    let Some(first) =
        (born..life.points.len()).find(is_warm).filter(|first| life.points.len() - first >= WINDOWS)
    else {
        return Judgement { verdict: Verdict::WarmingUp, growth: life.growth_since(born, &[]) };
    };
    let lows = lows(&life.points[first..]);
    let growth = life.growth_since(first, &lows);
    // halfway through the time that is judged
    let middle_ns = now_ns - growth.over_ns / 2;
    let is_turned_over = life.oldest_ns.is_some_and(|oldest| oldest > middle_ns);
    Judgement { verdict: verdict(&lows, &growth, is_turned_over), growth }
}

fn verdict(lows: &[u64; WINDOWS], growth: &Growth, is_turned_over: bool) -> Verdict {
    let rises = lows.windows(2).filter(|pair| pair[1] > pair[0]).count();
    let fell = growth.fell_bytes;
    let rose = growth.bytes.saturating_add(fell);
    // what fills up slows down
    let late = lows[WINDOWS - 1].saturating_sub(lows[WINDOWS / 2]);
    let goes_on = late >= growth.bytes / 5 && lows[WINDOWS - 1] > lows[WINDOWS - 3];
    if growth.allocations == 0 && growth.frees == 0 && growth.ended == 0 {
        Verdict::Unchanged
    } else if growth.bytes == 0 {
        if fell == 0 { Verdict::Steady } else { Verdict::Varying }
    } else if fell > rose / 10 {
        Verdict::Varying
    } else if !goes_on {
        Verdict::Steady
    } else if rises < LEAST_RISES || is_turned_over {
        Verdict::Growing
    } else {
        Verdict::Suspect
    }
}

/// The lowest moment of each part of the time. There are at least as many points as parts.
fn lows(points: &[Point]) -> [u64; WINDOWS] {
    std::array::from_fn(|window| {
        let (from, to) = (window * points.len() / WINDOWS, (window + 1) * points.len() / WINDOWS);
        points[from..to].iter().map(|p| p.low_bytes).min().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests;
