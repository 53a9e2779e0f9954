//! What probes cost: times measured in rounds, to medians and to ratios between modes.
//!
//! Machines change their speed from one second to the next. So a mode is compared with its floor round by round, where
//! both ran within milliseconds, and only then is the median taken.

use serde::Serialize;

/// The times of one mode, a number per round.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its short name.
    pub name: &'static str,
    /// What is done, for people.
    pub what: &'static str,
    /// The mode that it is compared with.
    pub floor: Option<&'static str>,
    /// Nanoseconds for one call, or one pair of calls, in each round.
    pub ns: Vec<f64>,
    /// Calls, or allocations, that were made.
    pub made: u64,
    /// Of these, how many the probes saw; nothing where they do not count.
    pub seen: Option<u64>,
    /// CPU time of who takes the calls out of the ring, for one of them in the mean, in nanoseconds.
    pub reader_ns: Option<f64>,
}

/// The middle of many numbers, and where half of them lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// As many are lower as are higher.
    pub median: f64,
    /// A quarter is lower.
    pub low: f64,
    /// A quarter is higher.
    pub high: f64,
}

impl Spread {
    /// Of these numbers; nothing where there are none.
    pub fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.retain(|n| n.is_finite());
        numbers.sort_by(f64::total_cmp);
        // the nearest one
        let at = |part: usize| numbers.get((numbers.len().checked_sub(1)? * part + 2) / 4).copied();
        Some(Self { median: at(2)?, low: at(1)?, high: at(3)? })
    }
}

/// What one mode costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModeCost {
    /// Its short name.
    pub name: &'static str,
    /// What is done, for people.
    pub what: &'static str,
    /// Nanoseconds for one call, or one pair of calls.
    pub ns: Spread,
    /// The mode that it is compared with.
    pub floor: Option<&'static str>,
    /// How many times the cost of that mode.
    pub ratio: Option<Spread>,
    /// Calls, or allocations, that were made.
    pub made: u64,
    /// Of these, how many the probes saw.
    pub seen: Option<u64>,
    /// CPU time of who takes the calls out of the ring, for one of them in the mean, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_ns: Option<f64>,
}

/// A measurement of every mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostReport {
    /// The kernel's release.
    pub kernel: String,
    /// Rounds that were measured.
    pub rounds: usize,
    /// Calls, or pairs, of each mode in a round.
    pub calls_per_round: u32,
    /// One for each way to attach probes, the best first.
    pub tiers: Vec<TierCost>,
}

/// What it costs where probes are attached in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierCost {
    /// How probes were attached.
    pub tier: String,
    /// In the order in which they were given.
    pub modes: Vec<ModeCost>,
    /// What was aimed at.
    pub targets: Vec<Judged>,
}

impl CostReport {
    /// Targets that were missed by so much that it is not the noise of a machine.
    pub fn missed(&self) -> impl Iterator<Item = (&TierCost, &Judged)> {
        let judged = self.tiers.iter().flat_map(|tier| tier.targets.iter().map(move |target| (tier, target)));
        judged.filter(|(_, target)| target.ratio > target.limit * MISSED)
    }
}

/// A target is missed beyond this multiple of it.
const MISSED: f64 = 1.10;

/// How many times the cost of another mode one may have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Target {
    /// The mode.
    pub mode: &'static str,
    /// What it is compared with.
    pub to: &'static str,
    /// The most.
    pub limit: f64,
}

/// A target with what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The mode.
    pub mode: &'static str,
    /// What it is compared with.
    pub to: &'static str,
    /// The most.
    pub limit: f64,
    /// The median of what was measured.
    pub ratio: f64,
}

/// What became of targets, of those for which both modes were measured.
pub fn judge(measured: &[Measured], targets: &[Target]) -> Vec<Judged> {
    let judged = |target: &Target| {
        let &Target { mode, to, limit } = target;
        Some(Judged { mode, to, limit, ratio: ratio(measured, mode, to)?.median })
    };
    targets.iter().filter_map(judged).collect()
}

/// How many times the cost of another mode one has, round by round.
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
    fn half_of_the_numbers_lie_in_the_spread() {
        let spread = Spread::of(vec![50.0, 10.0, 40.0, 20.0, 30.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (20.0, 30.0, 40.0));
        assert_eq!(Spread::of(vec![7.0]).unwrap().high, 7.0);
        assert_eq!(Spread::of(vec![f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn a_machine_that_changes_its_speed_does_not_change_the_ratio() {
        let costs = costs(&[
            mode("floor", None, &[100.0, 200.0, 200.0]),
            mode("x", Some("floor"), &[120.0, 240.0, 260.0]),
        ]);
        assert_eq!(costs[1].ratio.unwrap().median, 1.2);
        assert_eq!((costs[1].ns.median, costs[0].ratio), (240.0, None));
    }

    #[test]
    fn a_mode_that_was_not_measured_is_left_out_and_nothing_is_divided_by_it() {
        let costs = costs(&[mode("floor", None, &[]), mode("x", Some("floor"), &[1.0])]);
        assert_eq!(costs.len(), 1);
        assert_eq!(costs[0].ratio, None);
    }

    #[test]
    fn a_target_is_missed_when_it_is_exceeded_by_more_than_a_tenth() {
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
