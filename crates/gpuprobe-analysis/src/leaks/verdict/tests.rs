use gpuprobe_event::counters::{LiveTotals, ProcessKey, SiteMemory};
use gpuprobe_event::{SiteId, Tgid};

use super::*;
use crate::leaks::history::History;

const SECOND: u64 = 1_000_000_000;
const RULES: Rules = Rules { warm_up_ns: 5 * SECOND };

/// The size of one allocation.
const UNIT: u64 = 1 << 16;

/// Judges a call site with this many live allocations at each second, sampled once a second.
fn judged(units: impl IntoIterator<Item = u64>) -> Judgement {
    judged_with(units, None)
}

fn judged_with(units: impl IntoIterator<Item = u64>, oldest_ns: Option<u64>) -> Judgement {
    let (mut history, mut allocations, mut live, mut seconds) = (History::new(0), 0, 0, 0);
    for units in units {
        allocations += units.saturating_sub(live);
        (live, seconds) = (units, seconds + 1);
        let row = SiteMemory {
            process: ProcessKey { tgid: Tgid(1), instance: 1 },
            site: SiteId(1),
            gpu: None,
            live: LiveTotals { live_bytes: live * UNIT, live_allocations: live },
            allocations,
            allocated_bytes: allocations * UNIT,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
        };
        history.sample([row].iter(), seconds * SECOND);
    }
    let points = history.of(SiteId(1)).unwrap();
    judge(&Life { began_ns: 0, ends_ns: history.ends_ns(), points, oldest_ns }, RULES)
}

/// Reproducible pseudo-random numbers.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn steady_growth_is_a_suspect_with_its_evidence() {
    let Judgement { verdict, growth } = judged((1..=40).map(|second| 3 * second));
    assert_eq!(verdict, Verdict::Suspect);
    assert_eq!(growth.over_ns, 30 * SECOND);
    assert_eq!((growth.frees, growth.fell_bytes), (0, 0));
    assert_eq!(growth.allocations, 90);
    assert!(growth.bytes >= 75 * UNIT && growth.bytes <= 90 * UNIT, "{growth:?}");
    assert!((growth.rate() / UNIT as f64 - 3.0).abs() < 0.5, "{}", growth.rate());
}

#[test]
fn a_leak_is_found_after_any_time_once_it_has_warmed_up() {
    for seconds in [13, 14, 20, 33, 63, 64, 65, 100, 127, 128, 129, 1000, 10_000] {
        assert_eq!(judged((1..=seconds).map(|s| s * 2)).verdict, Verdict::Suspect, "{seconds}");
    }
    for seconds in 1..=5 {
        assert_eq!(judged((1..=seconds).map(|s| s * 2)).verdict, Verdict::WarmingUp, "{seconds}");
    }
}

#[test]
fn a_single_allocation_is_unchanged() {
    assert_eq!(judged((0..60).map(|_| 100)).verdict, Verdict::Unchanged);
    assert_eq!(judged((0..60).map(|s| if s == 0 { 1 } else { 100 })).verdict, Verdict::Unchanged);
    assert_eq!(
        judged((0..60).map(|_| 0)),
        Judgement { verdict: Verdict::Unchanged, growth: Growth::default() }
    );
}

#[test]
fn a_slow_start_up_is_no_suspect_afterwards() {
    for (load, after) in [(10, 10), (30, 30), (100, 90), (600, 600)] {
        let Judgement { verdict, .. } = judged((0..load + after).map(|s| 10 * s.min(load)));
        assert!(matches!(verdict, Verdict::Steady | Verdict::Unchanged), "{load} {after}: {verdict:?}");
    }
}

#[test]
fn a_cache_that_fills_up_is_no_suspect() {
    for size in [20.0_f64, 100.0, 5000.0] {
        for time in [3.0, 5.0, 10.0] {
            let fills = |s: u64| (size * (1.0 - (-(s as f64) / time).exp())) as u64;
            let verdict = judged((0..100).map(fills)).verdict;
            assert!(!matches!(verdict, Verdict::Suspect | Verdict::WarmingUp), "{size} {time}: {verdict:?}");
        }
    }
}

#[test]
fn saw_teeth_of_any_period_are_no_suspects() {
    for period in 2..60 {
        for base in [0, 1, 500] {
            let verdict = judged((0..400).map(|s| base + s % period)).verdict;
            assert!(
                matches!(verdict, Verdict::Steady | Verdict::Varying | Verdict::Freed),
                "{period} {base}: {verdict:?}"
            );
        }
    }
}

#[test]
fn a_leak_under_saw_teeth_is_found() {
    for period in [2, 3, 5, 7, 11] {
        let verdict = judged((0..400).map(|s| s / 4 + 300 * (s % period))).verdict;
        assert_eq!(verdict, Verdict::Suspect, "{period}");
    }
}

#[test]
fn noise_around_a_level_is_no_suspect() {
    for seed in 0..300 {
        let mut noise = Noise(seed);
        let length = 20 + noise.below(400);
        let verdict = judged((0..length).map(|_| 1000 + noise.below(100))).verdict;
        assert!(!matches!(verdict, Verdict::Suspect | Verdict::WarmingUp), "{seed}: {verdict:?}");
    }
}

#[test]
fn a_leak_under_noise_is_found() {
    for seed in 0..300 {
        let mut noise = Noise(seed);
        let verdict = judged((0..200).map(|s| 10 * s + noise.below(100))).verdict;
        assert_eq!(verdict, Verdict::Suspect, "{seed}");
    }
}

/// A random walk is sometimes taken for a leak; this must be rare.
#[test]
fn a_random_walk_is_rarely_a_suspect() {
    const WALKS: u64 = 1000;
    let suspects = (0..WALKS).filter(|seed| {
        let (mut noise, mut level) = (Noise(*seed), 1000_u64);
        let mut step = || {
            level = (level + noise.below(11)).saturating_sub(5);
            level
        };
        judged((0..200).map(|_| step())).verdict == Verdict::Suspect
    });
    let suspects = suspects.count() as u64;
    assert!(suspects * 20 < WALKS, "{suspects} of {WALKS}");
}

#[test]
fn a_leak_that_stopped_is_no_suspect_any_more() {
    let verdict = judged((0..200).map(|s: u64| if s < 100 { s } else { 100 })).verdict;
    assert_eq!(verdict, Verdict::Steady);
    let verdict = judged((0..200).map(|s: u64| if s < 190 { s } else { 1 })).verdict;
    assert_eq!(verdict, Verdict::Varying);
}

#[test]
fn a_few_steps_up_are_growth_but_no_suspect_yet() {
    assert_eq!(judged((0..90).map(|s| 1 + s / 25)).verdict, Verdict::Growing);
    assert_eq!(judged((0..800).map(|s| 1 + s / 25)).verdict, Verdict::Suspect, "after a long time");
}

#[test]
fn growth_of_only_young_allocations_is_no_suspect() {
    let rising = || (1..=40).map(|second| 3 * second);
    assert_eq!(judged_with(rising(), Some(3 * SECOND)).verdict, Verdict::Suspect);
    assert_eq!(judged_with(rising(), Some(38 * SECOND)).verdict, Verdict::Growing);
}

#[test]
fn a_call_site_without_live_memory_has_freed_everything_at_any_age() {
    assert_eq!(judged([5, 0]).verdict, Verdict::Freed);
    assert_eq!(judged((0..=200).map(|s| if s < 200 { s } else { 0 })).verdict, Verdict::Freed);
}

#[test]
fn memory_freed_with_its_context_is_no_leak_and_no_free() {
    let point = |live: u64, freed_with_context| Point {
        low_bytes: live,
        last_bytes: live,
        allocations: 80,
        frees: 80 - live - freed_with_context,
        freed_with_context,
    };
    let judged = |points: &[Point]| {
        let ends_ns: Vec<u64> = (1..=points.len() as u64).map(|second| second * SECOND).collect();
        judge(&Life { began_ns: 0, ends_ns: &ends_ns, points, oldest_ns: None }, RULES)
    };
    let Judgement { verdict, growth } = judged(&[point(80, 0), point(0, 80)]);
    assert_eq!(
        (verdict, growth.allocations, growth.frees, growth.freed_with_context),
        (Verdict::Freed, 80, 0, 80)
    );
    // one allocation in another context stays, and the end of a context is a change
    let mut points = vec![point(80, 0); 30];
    points.extend([point(1, 79); 10]);
    let Judgement { verdict, growth } = judged(&points);
    assert_eq!((verdict, growth.frees, growth.freed_with_context), (Verdict::Varying, 0, 79));
}

#[test]
fn falling_is_not_growing() {
    assert_eq!(judged((0..100).map(|s| 1000 - s)).verdict, Verdict::Varying);
    assert_eq!(judged((0..100).map(|s| 1000 - s)).growth.bytes, 0);
}

/// Random curves, including implausible ones: a suspect has always grown, and nothing panics.
#[test]
fn a_suspect_has_always_grown() {
    for seed in 0..500 {
        let mut noise = Noise(seed);
        let (length, bound, drift) = (1 + noise.below(300), 1 + noise.below(1 << 20), noise.below(1 << 10));
        let Judgement { verdict, growth } = judged((0..length).map(|s| s * drift + noise.below(bound)));
        if verdict == Verdict::Suspect {
            assert!(growth.bytes > 0 && growth.allocations >= LEAST_RISES as u64, "{seed} {growth:?}");
            assert!(growth.fell_bytes <= growth.bytes, "{seed} {growth:?}");
        }
    }
    let point = Point {
        low_bytes: u64::MAX,
        last_bytes: u64::MAX,
        allocations: u64::MAX,
        frees: 0,
        freed_with_context: u64::MAX,
    };
    let mut points = vec![Point { allocations: 1, ..Point::default() }; 20];
    points.extend([point; 20]);
    let ends_ns: Vec<u64> = (0..40).map(|i| u64::MAX - 1000 + i).collect();
    for (ends_ns, points) in [(&ends_ns[..], &points[..]), (&[], &points), (&ends_ns, &[]), (&[], &[])] {
        judge(&Life { began_ns: u64::MAX, ends_ns, points, oldest_ns: Some(0) }, RULES);
    }
}
