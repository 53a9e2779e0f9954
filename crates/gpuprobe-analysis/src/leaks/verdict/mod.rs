//! Whether a call site leaks. Live memory alone is no leak, and neither is growth for a while: programs load, caches
//! fill, batches come and go. A leak keeps growing after all of that. It shows in the minima of live memory over
//! time, because memory that is freed sooner or later is not part of them.

use std::time::Duration;

use serde::Serialize;

use crate::leaks::history::Point;

/// The time after warm-up is divided into this many windows, each with its minimum.
const WINDOWS: usize = 8;
/// The number of steps between windows that must rise.
const LEAST_RISES: usize = WINDOWS - 2;

/// When judging starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The warm-up time of a call site from its first allocation on. The warm-up is at least a quarter of the site's
    /// age, so that a slow start-up is not taken for growth later.
    pub warm_up_ns: u64,
}

impl Rules {
    pub fn after(warm_up: Duration) -> Self {
        Self { warm_up_ns: u64::try_from(warm_up.as_nanos()).unwrap_or(u64::MAX) }
    }
}

/// The assessment of a call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Too young, or sampled too few times.
    WarmingUp,
    /// It has live memory, but there was no room for its history.
    NotFollowed,
    /// Everything allocated there was freed by a call or with its context.
    Freed,
    /// Nothing was allocated or freed there after warm-up.
    Unchanged,
    /// Allocations and frees balance: the minima do not rise any more.
    Steady,
    /// The minima rise and fall.
    Varying,
    /// It has grown, but not in enough windows, or all its allocations are freed after a while.
    Growing,
    /// The minima keep rising.
    #[serde(rename = "leak_suspect")]
    Suspect,
}

impl Verdict {
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

/// The activity of a call site in the time that was judged, or since its first allocation if it is still warming up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// The length of that time.
    pub over_ns: u64,
    /// The increase of the minimum from the first window to the last.
    pub bytes: u64,
    /// The sum of all decreases between windows.
    pub fell_bytes: u64,
    pub allocations: u64,
    pub frees: u64,
    /// Allocations that were freed with their context.
    pub freed_with_context: u64,
}

impl Growth {
    /// Bytes per second.
    pub fn rate(&self) -> f64 {
        if self.over_ns == 0 { 0.0 } else { self.bytes as f64 * 1e9 / self.over_ns as f64 }
    }
}

/// A verdict and its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    pub verdict: Verdict,
    pub growth: Growth,
}

/// The history of one call site.
#[derive(Clone, Copy, Debug)]
pub struct Life<'a> {
    /// The start of the first point.
    pub began_ns: u64,
    /// The end of each point.
    pub ends_ns: &'a [u64],
    pub points: &'a [Point],
    /// When the oldest live allocation was made, if known.
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
            freed_with_context: last.freed_with_context.saturating_sub(before.freed_with_context),
        }
    }
}

/// Judges a call site.
pub fn judge(life: &Life<'_>, rules: Rules) -> Judgement {
    let Some(first_used) = life.points.iter().position(|p| p.allocations > 0) else {
        return Judgement { verdict: Verdict::Unchanged, growth: Growth::default() };
    };
    let all_freed = |last: &Point| last.frees.saturating_add(last.freed_with_context) >= last.allocations;
    if life.points.last().is_some_and(|last| last.last_bytes == 0 && all_freed(last)) {
        return Judgement { verdict: Verdict::Freed, growth: life.growth_since(first_used, &[]) };
    }
    let now_ns = life.ends_ns.last().copied().unwrap_or_default();
    let born_ns = life.start_of(first_used);
    let warm_up_ns = rules.warm_up_ns.max(now_ns.saturating_sub(born_ns) / 4);
    let warm_ns = born_ns.saturating_add(warm_up_ns);
    let is_warm = |point: &usize| life.start_of(*point) >= warm_ns;
    let Some(first) =
        (first_used..life.points.len()).find(is_warm).filter(|first| life.points.len() - first >= WINDOWS)
    else {
        return Judgement { verdict: Verdict::WarmingUp, growth: life.growth_since(first_used, &[]) };
    };
    let lows = lows(&life.points[first..]);
    let growth = life.growth_since(first, &lows);
    // the middle of the time that is judged
    let middle_ns = now_ns - growth.over_ns / 2;
    let is_recycled = life.oldest_ns.is_some_and(|oldest| oldest > middle_ns);
    Judgement { verdict: verdict(&lows, &growth, is_recycled), growth }
}

fn verdict(lows: &[u64; WINDOWS], growth: &Growth, is_recycled: bool) -> Verdict {
    let rises = lows.windows(2).filter(|pair| pair[1] > pair[0]).count();
    let fell = growth.fell_bytes;
    let rose = growth.bytes.saturating_add(fell);
    // a cache that fills up grows more slowly towards the end
    let late = lows[WINDOWS - 1].saturating_sub(lows[WINDOWS / 2]);
    let still_grows = late >= growth.bytes / 5 && lows[WINDOWS - 1] > lows[WINDOWS - 3];
    if growth.allocations == 0 && growth.frees == 0 && growth.freed_with_context == 0 {
        Verdict::Unchanged
    } else if growth.bytes == 0 {
        if fell == 0 { Verdict::Steady } else { Verdict::Varying }
    } else if fell > rose / 10 {
        Verdict::Varying
    } else if !still_grows {
        Verdict::Steady
    } else if rises < LEAST_RISES || is_recycled {
        Verdict::Growing
    } else {
        Verdict::Suspect
    }
}

/// The minimum of each window. There are at least as many points as windows.
fn lows(points: &[Point]) -> [u64; WINDOWS] {
    std::array::from_fn(|window| {
        let (from, to) = (window * points.len() / WINDOWS, (window + 1) * points.len() / WINDOWS);
        points[from..to].iter().map(|p| p.low_bytes).min().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests;
