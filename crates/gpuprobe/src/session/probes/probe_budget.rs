//! Enforces `--budget`: the calls of each process are multiplied by the cost of a call, and functions that cost too much
//! are sampled. Time is cut into strata of some turns each; in one turn of each stratum, chosen at random, they are probed.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use gpuprobe_analysis::{Budget, BudgetReport, CallCost, Called, SampledFunction, SampledGroup, Stratum};
use gpuprobe_capture::{Batch, CaptureConfig, Collect, ProbeCosts, Tier, Turn, is_detachable};
use gpuprobe_discover::Inspector;
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::trace::SampledCalls;
use gpuprobe_event::{Api, Event, FunctionId, LossCause, Name, Outcome, Tgid, catalogue};

use super::helper_commands;
use super::probe_set::Probes;
use crate::terminal::notes::note;

/// A reading waits at most this long for the end of a stratum of sampled functions.
pub(crate) const MOST_LATE: Duration = Duration::from_secs(5);
/// How often calls are checked against the budget while nothing is sampled.
const CHECK_EVERY_NS: u64 = 250_000_000;
/// The length of a turn.
const TURN: Duration = Duration::from_millis(50);
/// The same with perf events: the Linux kernel takes a tenth of a second to remove each.
const PERF_TURN: Duration = Duration::from_millis(200);
/// How long calls that are open at the end of a turn have to return. Later ones are lost.
const RETURN_WITHIN_NS: u64 = 250_000_000;
/// How often it is checked whether they have returned.
const RETURN_CHECK_NS: u64 = 2_000_000;
/// A function that takes less than this part of the budget is not worth a note.
const WORTH_A_NOTE: f64 = 0.1;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is sampled; calls are checked at this time.
    Watching {
        check_ns: u64,
    },
    /// Newly sampled functions still have their probes, so that open calls can return; then the turn comes.
    Settling {
        until_ns: u64,
        turn_ns: u64,
    },
    /// The turn begins at this time.
    Waiting {
        turn_ns: u64,
    },
    InTurn {
        turn: Turn,
        attached_ns: u64,
    },
    /// The turn is over. The end of the stratum is next.
    Resting,
}

/// A budget, the cost of a call, and the state of sampling. Times are in nanoseconds since the start.
#[derive(Debug)]
pub(crate) struct ProbeBudget {
    budget: Budget,
    costs: ProbeCosts,
    phase: Phase,
    stratum: Option<Stratum>,
    /// Whether the stratum has just begun, so that all counts belong to finished ones.
    has_just_begun: bool,
    sampled: BTreeSet<FunctionId>,
    /// Sampled functions that have probes only in turns.
    in_turns: BTreeSet<FunctionId>,
    /// The state of the generator of pseudo-random numbers.
    random: u64,
    /// Whether the last attempt to probe sampled functions failed.
    has_failed: bool,
    /// Calls received one by one.
    received: HashMap<Caller, u64>,
    /// Records that did not fit into the ring buffer up to the last check.
    lost: u64,
}

/// A process, the function that it calls, and whether its calls were scaled.
type Caller = (Tgid, Api, Name, bool);

/// How the calls since the last time are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Counters,
    Events,
}

impl ProbeBudget {
    /// Measures what probes with these settings cost on this machine.
    pub(crate) fn measured(share: f64, config: &CaptureConfig, collect: Collect) -> Result<Self> {
        let costs = ProbeCosts::measure(config, collect, helper_commands::attach_helper(false))?;
        Ok(Self {
            budget: Budget::new(share),
            costs,
            phase: Phase::Watching { check_ns: 0 },
            stratum: None,
            has_just_begun: false,
            sampled: BTreeSet::new(),
            in_turns: BTreeSet::new(),
            random: u64::from(std::process::id()),
            has_failed: false,
            received: HashMap::new(),
            lost: 0,
        })
    }

    /// When something has to be done next, in nanoseconds since the start.
    fn next_ns(&self) -> u64 {
        match self.phase {
            Phase::Watching { check_ns } => check_ns,
            Phase::Settling { until_ns, .. } => until_ns,
            Phase::Waiting { turn_ns } => turn_ns,
            Phase::InTurn { turn, .. } => turn.until_ns,
            Phase::Resting => self.stratum.map_or(0, |stratum| stratum.end_ns),
        }
    }

    /// Time until [`Probes::enforce_budget_by_counters`] has something to do.
    pub(crate) fn due(&self, now_ns: u64) -> Duration {
        let is_open = matches!(self.phase, Phase::InTurn { turn, .. } if turn.until_ns <= now_ns);
        let next_ns = if is_open { now_ns + RETURN_CHECK_NS } else { self.next_ns() };
        Duration::from_nanos(next_ns.saturating_sub(now_ns))
    }

    pub(crate) fn report(&self, now_ns: u64) -> BudgetReport {
        self.budget.report(now_ns, self.stratum.as_ref())
    }

    /// Counts the calls of a batch.
    fn take(&mut self, batch: &Batch) {
        for event in &batch.calls {
            if let Event::Call(call) = event
                && call.outcome != Outcome::Begun
            {
                let caller = (call.tgid, call.api, call.name.clone(), call.weight > 1);
                *self.received.entry(caller).or_default() += u64::from(call.weight);
            }
        }
    }

    /// Passes received calls on. Lost records are assumed to be distributed like the received ones.
    fn note_received(&mut self, lost: u64) {
        let received = std::mem::take(&mut self.received);
        let all: u64 = received.values().sum();
        let lost = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let for_each = (all.saturating_add(lost)) as f64 / all.max(1) as f64;
        for ((tgid, api, name, is_scaled), calls) in received {
            let Some(function) = catalogue().lookup(api, None, &name) else { continue };
            // they were made before the function was sampled, and are in no stratum
            if !is_scaled && self.sampled.contains(&function.id) {
                continue;
            }
            let process = ProcessKey { tgid, instance: 0 };
            self.budget.note_calls((process, function.id), (calls as f64 * for_each) as u64);
        }
    }

    /// A pseudo-random number below a limit (SplitMix64).
    fn random_below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    /// Begins a stratum where the last one ended, so that strata cover all the time. If that was long ago, it has more
    /// turns. Returns when its turn begins.
    fn begin_stratum(&mut self, weight: u16, turn: Duration, now_ns: u64) -> u64 {
        let turn_ns = turn.as_nanos() as u64;
        let start_ns = self.stratum.map_or(now_ns, |stratum| stratum.end_ns.min(now_ns));
        let late = (now_ns - start_ns) / turn_ns;
        let turns = u64::from(weight).saturating_add(late).min(u64::from(u16::MAX / 64));
        let end_ns = start_ns.saturating_add(turns * turn_ns);
        self.stratum = Some(Stratum { start_ns, end_ns, weight: turns as u16 });
        let first = late.min(turns - 1);
        start_ns + (first + self.random_below(turns - first)) * turn_ns
    }
}

impl Probes {
    /// Enforces the budget, if there is one, by the counters of the BPF programs.
    pub(crate) fn enforce_budget_by_counters(&mut self) -> Result<()> {
        self.enforce_budget(Source::Counters)
    }

    /// The same by calls that are received one by one.
    pub(crate) fn enforce_budget_by_events(&mut self, batch: &Batch) -> Result<()> {
        if let Some(budget) = &mut self.budget {
            budget.take(batch);
        }
        self.enforce_budget(Source::Events)
    }

    fn enforce_budget(&mut self, source: Source) -> Result<()> {
        let Some(mut budget) = self.budget.take() else { return Ok(()) };
        let result = self.next_phase(&mut budget, source);
        self.budget = Some(budget);
        result
    }

    /// Reads the counters, so that no calls are missed when the rows of exited processes are removed.
    pub(crate) fn note_counters(&mut self) -> Result<()> {
        if let Some(budget) = &mut self.budget {
            note_counters(&mut budget.budget, &self.capture.all_counts()?);
        }
        Ok(())
    }

    fn turn_length(&self) -> Duration {
        if self.capture.tier() == Tier::Perf { PERF_TURN } else { TURN }
    }

    fn next_phase(&mut self, budget: &mut ProbeBudget, source: Source) -> Result<()> {
        let now_ns = self.capture.clock().elapsed_ns();
        budget.has_just_begun = false;
        if now_ns < budget.next_ns() {
            return Ok(());
        }
        match budget.phase {
            Phase::Watching { .. } => {
                budget.phase = Phase::Watching { check_ns: now_ns + CHECK_EVERY_NS };
                self.note_calls(budget, source)?;
                if budget.budget.is_due(now_ns, &|id| self.cost(&budget.costs, id)) {
                    self.begin_stratum(budget, now_ns)?;
                }
            }
            Phase::Settling { turn_ns, .. } => {
                self.capture.end_turn();
                budget.phase = Phase::Waiting { turn_ns };
            }
            Phase::Waiting { .. } => self.begin_turn(budget, now_ns),
            Phase::InTurn { turn, attached_ns } => {
                let has_waited = now_ns >= turn.until_ns + RETURN_WITHIN_NS;
                if has_waited || self.capture.open_in_turn()? <= 0 {
                    self.capture.end_turn();
                    let turn_ns = self.turn_length().as_nanos() as u64;
                    budget.budget.note_attached(now_ns.saturating_sub(attached_ns), turn_ns);
                    budget.phase = Phase::Resting;
                }
            }
            Phase::Resting => {
                self.note_calls(budget, source)?;
                if let Some(stratum) = budget.stratum {
                    budget.budget.finish_stratum(&stratum);
                }
                self.begin_stratum(budget, now_ns)?;
            }
        }
        Ok(())
    }

    fn note_calls(&self, budget: &mut ProbeBudget, source: Source) -> Result<()> {
        match source {
            Source::Counters => note_counters(&mut budget.budget, &self.capture.all_counts()?),
            Source::Events => budget.note_received(self.capture.losses()?.get(LossCause::RingFull)),
        }
        Ok(())
    }

    fn cost(&self, costs: &ProbeCosts, id: FunctionId) -> Option<CallCost> {
        let (f, point) = (catalogue().get(id)?, self.capture.point_of(id)?);
        Some(CallCost { ns: costs.of(f, point, self.collect(id)), may_be_sampled: is_detachable(f) })
    }

    /// Decides which functions are sampled, and begins a stratum if there are any.
    fn begin_stratum(&mut self, budget: &mut ProbeBudget, now_ns: u64) -> Result<()> {
        let before = budget.budget.plan().groups.clone();
        let plan = budget.budget.decide(now_ns, &|id| self.cost(&budget.costs, id));
        let is_sampled = |id: &FunctionId| SampledGroup::of(*id).is_some_and(|g| plan.groups.contains(&g));
        let sampled: BTreeSet<_> = self.capture.detachable().into_iter().filter(is_sampled).collect();
        let is_kept = |id: &FunctionId| budget.in_turns.contains(id) || budget.budget.is_called(*id);
        let in_turns: BTreeSet<_> = sampled.iter().copied().filter(is_kept).collect();
        let has_new = in_turns.difference(&budget.in_turns).next().is_some();
        if sampled != budget.sampled || in_turns != budget.in_turns {
            let result = self.capture.set_sampled(&sampled, &in_turns);
            (budget.sampled, budget.in_turns) = (sampled, in_turns);
            self.note_attach_result(budget, result.err().map(Into::into));
            self.note_sampled(budget, &plan.groups.difference(&before).copied().collect(), plan.weight);
        }
        if plan.groups.is_empty() {
            budget.stratum = None;
            budget.phase = Phase::Watching { check_ns: now_ns + CHECK_EVERY_NS };
            return Ok(());
        }
        budget.has_just_begun = true;
        let turn_ns = budget.begin_stratum(plan.weight, self.turn_length(), now_ns);
        let until_ns = now_ns + RETURN_WITHIN_NS;
        // probes that they still have are ignored in the turn
        budget.phase = match has_new && turn_ns > until_ns {
            true => Phase::Settling { until_ns, turn_ns },
            false => Phase::Waiting { turn_ns },
        };
        Ok(())
    }

    fn begin_turn(&mut self, budget: &mut ProbeBudget, now_ns: u64) {
        let weight = budget.stratum.map_or(1, |stratum| stratum.weight);
        let (turn, result) = self.capture.begin_turn(weight, self.turn_length());
        budget.phase = Phase::InTurn { turn, attached_ns: now_ns };
        self.note_attach_result(budget, result.err().map(Into::into));
    }

    /// If a file can no longer be opened by its earlier path, looks for another path to it. A file that no process maps
    /// was deleted after its last process had exited: its probes are about to be removed.
    fn note_attach_result(&mut self, budget: &mut ProbeBudget, error: Option<anyhow::Error>) {
        let had_failed = std::mem::replace(&mut budget.has_failed, error.is_some());
        let Some(error) = error else { return };
        let found = Inspector::new().of_processes(Path::new("/proc")).libraries;
        budget.has_failed = self.capture.set_open_paths(&found);
        if budget.has_failed && !had_failed {
            note!("gpuprobe: sampled functions are not counted everywhere: {error}");
        }
    }

    fn note_sampled(&self, budget: &ProbeBudget, groups: &BTreeSet<SampledGroup>, weight: u16) {
        let costs = budget.budget.costs(groups, &|id| self.cost(&budget.costs, id));
        let least = WORTH_A_NOTE * budget.report(0).share.unwrap_or(0.0);
        for (function, (process, share)) in costs.into_iter().filter(|(_, (_, share))| *share >= least) {
            note!(
                "gpuprobe: {} is sampled, now 1/{weight} of the time: to count all its calls would cost process {} {:.1}% of its time",
                catalogue().get(function).map_or("?", |f| f.name),
                process.tgid,
                share * 100.0
            );
        }
    }

    /// Changes the budget. Without one, all functions are probed all the time, after the current stratum.
    pub(crate) fn set_budget(&mut self, share: Option<f64>) {
        if let Some(budget) = &mut self.budget {
            budget.budget.set_share(share);
        }
    }

    /// The state of the budget.
    pub(crate) fn budget_report(&self) -> Option<BudgetReport> {
        let now_ns = self.capture.clock().elapsed_ns();
        self.budget.as_ref().map(|budget| budget.report(now_ns))
    }

    /// Whether all counts are of finished strata. In between, the calls of a stratum are counted too early or too late.
    pub(crate) fn is_between_strata(&self) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.stratum.is_none() || budget.has_just_begun)
    }

    /// The functions that were sampled, at the end of a recording.
    pub(crate) fn sampled_calls(&mut self) -> Vec<SampledCalls> {
        let now_ns = self.capture.clock().elapsed_ns();
        let Some(budget) = &mut self.budget else { return Vec::new() };
        budget.note_received(budget.lost);
        let stratum = budget.stratum;
        stratum.iter().for_each(|stratum| budget.budget.finish_stratum(stratum));
        let sampled = budget.report(now_ns).sampled;
        let calls = |function: SampledFunction| SampledCalls {
            api: Some(function.api),
            function: function.function.to_owned(),
            estimated_calls: function.estimated_calls as u64,
            standard_error: function.standard_error.ceil() as u64,
        };
        sampled.into_iter().map(calls).collect()
    }

    /// Time until the budget has something to do.
    pub(crate) fn budget_due(&self) -> Option<Duration> {
        let now_ns = self.capture.clock().elapsed_ns();
        self.budget.as_ref().map(|budget| budget.due(now_ns))
    }
}

fn note_counters(budget: &mut Budget, rows: &[gpuprobe_event::counters::CallCounts]) {
    let called: Vec<_> = rows
        .iter()
        .map(|row| Called { process: row.process, function: row.function, calls: row.calls })
        .collect();
    budget.note_totals(&called);
}
