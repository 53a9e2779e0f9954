//! The cost of probes as measured by `gpuprobe bench`: medians of rounds, and ratios between modes.
//!
//! The speed of a machine changes from one second to the next. A mode is therefore compared with its floor round by
//! round, where both ran within milliseconds of each other, and the median is taken over these ratios.

use serde::Serialize;

/// The times of one mode, one number per round.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// A short name.
    pub name: &'static str,
    /// A description for people.
    pub what: &'static str,
    /// The name of the mode that it is compared with.
    pub floor: Option<&'static str>,
    /// Nanoseconds for one call, or one pair of calls, in each round.
    pub ns: Vec<f64>,
    /// Calls, or allocations, made.
    pub made: u64,
    /// How many of these the probes saw; `None` if the probes do not count.
    pub seen: Option<u64>,
    /// CPU time of the ring reader per call on average, in nanoseconds.
    pub reader_ns: Option<f64>,
}

/// The median of a set of numbers and its quartiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
}

impl Spread {
    /// `None` if none of the numbers is finite.
    pub fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.retain(|n| n.is_finite());
        numbers.sort_by(f64::total_cmp);
        // the nearest rank
        let at = |part: usize| numbers.get((numbers.len().checked_sub(1)? * part + 2) / 4).copied();
        Some(Self { median: at(2)?, low: at(1)?, high: at(3)? })
    }
}

/// The cost of one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModeCost {
    /// A short name.
    pub name: &'static str,
    /// A description for people.
    pub what: &'static str,
    /// Nanoseconds for one call, or one pair of calls.
    pub ns: Spread,
    /// The name of the mode that it is compared with.
    pub floor: Option<&'static str>,
    /// The cost relative to that mode.
    pub ratio: Option<Spread>,
    /// Calls, or allocations, made.
    pub made: u64,
    /// How many of these the probes saw.
    pub seen: Option<u64>,
    /// CPU time of the ring reader per call on average, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_ns: Option<f64>,
}

/// The measurements of every mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostReport {
    /// The release of the Linux kernel.
    pub kernel: String,
    pub rounds: usize,
    /// Calls, or pairs of calls, of each mode in a round.
    pub calls_per_round: u32,
    /// One for each attach tier, the best first.
    pub tiers: Vec<TierCost>,
}

/// The costs in one attach tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierCost {
    /// The name of the tier.
    pub tier: String,
    /// In the order of the measurements.
    pub modes: Vec<ModeCost>,
    pub targets: Vec<Judged>,
}

impl CostReport {
    /// Targets that were missed by more than the noise of a machine.
    pub fn missed(&self) -> impl Iterator<Item = (&TierCost, &Judged)> {
        let judged = self.tiers.iter().flat_map(|tier| tier.targets.iter().map(move |target| (tier, target)));
        judged.filter(|(_, target)| target.ratio > target.limit * MISSED)
    }
}

/// A target is missed if the ratio exceeds its limit by this factor.
const MISSED: f64 = 1.10;

/// The highest allowed cost of a mode relative to another mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Target {
    pub mode: &'static str,
    /// The mode that it is compared with.
    pub to: &'static str,
    /// The highest allowed ratio.
    pub limit: f64,
}

/// A target with the measured ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub mode: &'static str,
    /// The mode that it is compared with.
    pub to: &'static str,
    /// The highest allowed ratio.
    pub limit: f64,
    /// The median of the measured ratios.
    pub ratio: f64,
}

/// The measured ratios of those targets for which both modes were measured.
pub fn judge(measured: &[Measured], targets: &[Target]) -> Vec<Judged> {
    let judged = |target: &Target| {
        let &Target { mode, to, limit } = target;
        Some(Judged { mode, to, limit, ratio: ratio(measured, mode, to)?.median })
    };
    targets.iter().filter_map(judged).collect()
}

/// The cost of a mode relative to another, computed round by round.
fn ratio(measured: &[Measured], mode: &str, to: &str) -> Option<Spread> {
    let named = |name: &str| measured.iter().find(|measured| measured.name == name);
    let pairs = named(mode)?.ns.iter().zip(&named(to)?.ns);
    Spread::of(pairs.map(|(ns, floor)| ns / floor).collect())
}

/// The costs of modes that were measured in the same rounds.
pub fn costs(measured: &[Measured]) -> Vec<ModeCost> {
    let cost = |mode: &Measured| {
        Some(ModeCost {
            name: mode.name,
            what: mode.what,
            ns: Spread::of(mode.ns.clone())?,
            floor: mode.floor,
            ratio: mode.floor.and_then(|floor| ratio(measured, mode.name, floor)),
            made: mode.made,
            seen: mode.seen,
            reader_ns: mode.reader_ns,
        })
    };
    measured.iter().filter_map(cost).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(name: &'static str, floor: Option<&'static str>, ns: &[f64]) -> Measured {
        Measured { name, what: "", floor, ns: ns.to_vec(), made: 0, seen: None, reader_ns: None }
    }

    #[test]
    fn half_of_the_numbers_lie_between_the_quartiles() {
        let spread = Spread::of(vec![50.0, 10.0, 40.0, 20.0, 30.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (20.0, 30.0, 40.0));
        assert_eq!(Spread::of(vec![7.0]).unwrap().high, 7.0);
        assert_eq!(Spread::of(vec![f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn a_change_of_machine_speed_does_not_change_the_ratio() {
        let costs = costs(&[
            mode("floor", None, &[100.0, 200.0, 200.0]),
            mode("x", Some("floor"), &[120.0, 240.0, 260.0]),
        ]);
        assert_eq!(costs[1].ratio.unwrap().median, 1.2);
        assert_eq!((costs[1].ns.median, costs[0].ratio), (240.0, None));
    }

    #[test]
    fn a_mode_without_measurements_is_omitted_and_gives_no_ratio() {
        let costs = costs(&[mode("floor", None, &[]), mode("x", Some("floor"), &[1.0])]);
        assert_eq!(costs.len(), 1);
        assert_eq!(costs[0].ratio, None);
    }

    #[test]
    fn a_target_is_missed_when_it_is_exceeded_by_more_than_ten_per_cent() {
        let target = |mode, limit| Target { mode, to: "floor", limit };
        let measured = [mode("floor", None, &[100.0]), mode("x", None, &[130.0]), mode("y", None, &[143.0])];
        let targets = [target("x", 1.2), target("y", 1.25), target("z", 1.0), target("x", 1.1)];
        let targets = judge(&measured, &targets);
        assert_eq!(targets.iter().map(|judged| judged.ratio).collect::<Vec<_>>(), [1.3, 1.43, 1.3]);
        let tiers = vec![TierCost { tier: "session".to_owned(), modes: Vec::new(), targets }];
        let report = CostReport { kernel: String::new(), rounds: 1, calls_per_round: 1, tiers };
        let missed: Vec<_> = report.missed().map(|(_, missed)| (missed.mode, missed.limit)).collect();
        assert_eq!(missed, [("y", 1.25), ("x", 1.1)]);
    }
}
