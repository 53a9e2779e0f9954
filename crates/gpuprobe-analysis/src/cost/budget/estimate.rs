//! Estimates from sampled turns.
//!
//! Time is cut into strata of some turns each, and one turn of each stratum, chosen at random, is observed. Its calls
//! stand for all calls of the stratum: their number times the turns of the stratum is an estimate without bias, whatever
//! the program does. How far off it is follows from how much neighbouring strata differ, which includes programs whose
//! rate changes.

use std::collections::VecDeque;

/// The error is derived from this many of the latest strata. More make it steadier, fewer let it follow the program.
const RECENT: usize = 64;
/// The 97.5% quantile of the normal distribution.
const NORMAL: f64 = 1.96;
/// The same of Student's t-distribution, for 1, 2, ... degrees of freedom.
const STUDENT: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
];

/// The estimated calls of one function. The sums are for all strata so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Calls that were added by scaling.
    added: f64,
    variance: f64,
    /// The first stratum, until another one shows how much strata differ: its calls and its length.
    first: Option<(f64, f64)>,
    /// Calls a nanosecond in the last stratum, or before the first.
    rate: Option<f64>,
    /// Whether that is not an estimate.
    is_rate_exact: bool,
    /// Half the squared differences between the rates of neighbouring strata.
    recent: VecDeque<f64>,
}

impl Estimate {
    /// Begins to sample a function of which all calls were observed until now: `rate` of them a nanosecond. The first
    /// strata are compared with it.
    pub fn begin(&mut self, rate: f64) {
        self.rate = Some(rate);
        self.is_rate_exact = true;
    }

    /// Adds a stratum of `length_ns` in which there were so many `calls`, after scaling by `weight`.
    pub fn add_stratum(&mut self, calls: f64, weight: u16, length_ns: f64) {
        if length_ns <= 0.0 {
            return;
        }
        self.added += calls * (1.0 - 1.0 / f64::from(weight.max(1)));
        let rate = calls / length_ns;
        let Some(before) = self.rate.replace(rate) else {
            self.first = Some((calls, length_ns));
            return;
        };
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        // the difference of two estimates varies twice as much as one of them
        let estimates = if std::mem::take(&mut self.is_rate_exact) { 1.0 } else { 2.0 };
        self.recent.push_back((rate - before).powi(2) / estimates);
        if let Some((_, length_ns)) = self.first.take() {
            self.variance += self.rate_variance() * length_ns.powi(2);
        }
        self.variance += self.rate_variance() * length_ns.powi(2);
    }

    /// The variance of the rate of a stratum. With few strata it is itself uncertain, so it is larger by as much as
    /// the interval of 95% has to be wider.
    fn rate_variance(&self) -> f64 {
        let count = self.recent.len();
        let mean = self.recent.iter().sum::<f64>() / count.max(1) as f64;
        // the differences overlap, so they are worth about two thirds of as many independent ones
        let freedom = (count * 2 / 3).max(1);
        mean * (STUDENT.get(freedom - 1).copied().unwrap_or(2.0).max(NORMAL) / NORMAL).powi(2)
    }

    /// Calls that were added by scaling.
    pub fn added(&self) -> f64 {
        self.added
    }

    /// The variance of the estimated calls in all finished strata: it adds up, so that of a time window is the
    /// difference between its ends.
    pub fn variance(&self) -> f64 {
        self.variance
    }

    /// The variance that is not final: that of a first stratum, whose error is not known yet, and that of the current
    /// one, of which this part has passed: the turn, in which all its calls are counted, may be over or yet to come.
    pub fn current_variance(&self, length_ns: f64, passed: f64) -> f64 {
        let passed = passed.clamp(0.0, 1.0);
        let of_first = self.first.map_or(0.0, |(calls, _)| calls.powi(2));
        of_first + (self.rate.unwrap_or(0.0) * length_ns).powi(2) * passed * (1.0 - passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of pseudo-random numbers (SplitMix64), so that every run is the same.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.next() % limit
        }

        fn unit(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    const WINDOWS: u32 = 200;
    const TURN_NS: f64 = 50e6;
    const WEIGHT: u16 = 10;
    /// Twenty turns are a second.
    const PER_SECOND: u64 = 20;

    /// Calls of a program in one turn, by the number of the turn since its start.
    type Program = fn(&mut Random, u64, &mut f64) -> f64;

    fn steady(random: &mut Random, _: u64, _: &mut f64) -> f64 {
        4000.0 + random.unit() * 40.0
    }

    /// Bursts of a tenth of a second at random times, about one a second.
    fn bursty(random: &mut Random, _: u64, left: &mut f64) -> f64 {
        if *left <= 0.0 && random.below(PER_SECOND) == 0 {
            *left = 2.0;
        }
        *left -= 1.0;
        if *left >= 0.0 { 5000.0 } else { 10.0 }
    }

    /// A second of many calls, then a second of few.
    fn phases(random: &mut Random, turn: u64, _: &mut f64) -> f64 {
        let rate = if (turn / PER_SECOND).is_multiple_of(2) { 4000.0 } else { 40.0 };
        rate * (0.95 + 0.1 * random.unit())
    }

    /// Sixteen threads with different periods.
    fn threads(_: &mut Random, turn: u64, _: &mut f64) -> f64 {
        (3..19).filter(|period| (turn / *period).is_multiple_of(2)).count() as f64 * 300.0
    }

    /// A rate that drifts at random.
    fn drift(random: &mut Random, _: u64, rate: &mut f64) -> f64 {
        *rate = (*rate + random.unit() - 0.5).clamp(0.0, 10.0);
        500.0 + *rate * 200.0
    }

    /// Windows of `strata`, after as many for the error to be known: how many contain the true number, the error of
    /// the whole, and the mean of the stated error relative to the calls.
    fn simulate(program: Program, seed: u64, strata: u64) -> (u32, f64, f64) {
        let (mut random, mut state, mut turn) = (Random(seed), 0.0, 0);
        let mut estimate = Estimate::default();
        let (mut within, mut all_true, mut all_found, mut stated) = (0, 0.0, 0.0, 0.0);
        for window in 0..=WINDOWS {
            let before = estimate.variance();
            let (mut actual, mut found) = (0.0, 0.0);
            for _ in 0..strata {
                let chosen = random.below(u64::from(WEIGHT));
                let mut counted = 0.0;
                for slot in 0..u64::from(WEIGHT) {
                    let calls = program(&mut random, turn, &mut state).round();
                    turn += 1;
                    actual += calls;
                    counted += if slot == chosen { calls * f64::from(WEIGHT) } else { 0.0 };
                }
                estimate.add_stratum(counted, WEIGHT, TURN_NS * f64::from(WEIGHT));
                found += counted;
            }
            if window > 0 {
                let error = (estimate.variance() - before).sqrt();
                within += u32::from((found - actual).abs() <= NORMAL * error);
                (all_true, all_found) = (all_true + actual, all_found + found);
                stated += error / actual.max(1.0) / f64::from(WINDOWS);
            }
        }
        (within * 100 / WINDOWS, (all_found / all_true - 1.0).abs(), stated)
    }

    #[test]
    fn the_true_number_is_within_the_stated_error_in_95_of_100_windows() {
        let programs: [(&str, Program); 5] = [
            ("steady", steady),
            ("bursty", bursty),
            ("phases", phases),
            ("threads", threads),
            ("drift", drift),
        ];
        for (name, program) in programs {
            for (seed, strata) in [(11, 20), (12, 40), (13, 120)] {
                let (within, error, stated) = simulate(program, seed, strata);
                eprintln!("{name} {strata}: {within} of 100, error {error:.4}, stated {stated:.4}");
                // the number of such windows is itself random: with 200 windows its deviation is 1.5 of 100
                assert!(within >= 92, "{name}, windows of {strata} strata: {within} of 100");
                let deviation = stated / f64::from(WINDOWS).sqrt();
                assert!(error < 4.0 * deviation + 1e-4, "{name}: no bias: {error}, stated {deviation}");
            }
        }
        let (_, _, stated) = simulate(steady, 21, 120);
        assert!(stated < 0.001, "the error of a steady program is small: {stated}");
    }

    #[test]
    fn the_first_stratum_alone_says_nothing_about_its_error() {
        let mut estimate = Estimate::default();
        assert_eq!((estimate.variance(), estimate.added()), (0.0, 0.0));
        estimate.add_stratum(1000.0, 10, 1e9);
        assert_eq!((estimate.current_variance(0.0, 0.0), estimate.added()), (1_000_000.0, 900.0));
        assert_eq!(estimate.variance(), 0.0, "it only grows");
        estimate.add_stratum(1000.0, 10, 1e9);
        assert_eq!((estimate.current_variance(0.0, 0.0), estimate.added()), (0.0, 1800.0));
        estimate.add_stratum(1100.0, 10, 1e9);
        let two_thirds_of_two = STUDENT[0] / NORMAL;
        let expected = 2500.0 * two_thirds_of_two.powi(2);
        assert!((estimate.variance() / expected - 1.0).abs() < 1e-9, "{}", estimate.variance());
        estimate.add_stratum(1.0, 10, 0.0);
        assert_eq!(estimate.added(), 2790.0, "a stratum without length is ignored");
    }

    #[test]
    fn a_first_stratum_is_compared_with_the_rate_before_it_also_if_no_call_was_seen_in_it() {
        let mut estimate = Estimate::default();
        estimate.begin(1e-6);
        assert_eq!(estimate.current_variance(1e9, 0.5), 250_000.0, "it may be seen in the rest");
        estimate.add_stratum(0.0, 10, 1e9);
        let error = estimate.variance().sqrt();
        assert!(error * NORMAL >= 1000.0, "{error}");
        assert_eq!(estimate.current_variance(0.0, 0.0), 0.0);
    }

    #[test]
    fn in_the_middle_of_a_stratum_its_turn_may_have_been_or_not() {
        let mut estimate = Estimate::default();
        assert_eq!(estimate.current_variance(1e9, 0.5), 0.0);
        estimate.add_stratum(1000.0, 10, 1e9);
        estimate.add_stratum(1000.0, 10, 1e9);
        assert_eq!(estimate.current_variance(1e9, 0.5), 250_000.0);
        assert_eq!(estimate.current_variance(1e9, 1.0), 0.0);
        assert_eq!(estimate.current_variance(1e9, 7.0), 0.0);
    }
}
