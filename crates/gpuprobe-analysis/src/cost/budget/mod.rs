//! The overhead budget: when the probes on a process take more of its time than allowed, its expensive functions are
//! sampled: they are probed for a share of the time, in turns, and their counts are scaled. The cost of a function is its
//! calls times the cost of a call.
//!
//! The time of a process is wall-clock time: a process that runs for a second has one second, no matter how many
//! threads it has.

mod estimate;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Api, Class, FunctionId, catalogue};
use serde::Serialize;

pub use self::estimate::Estimate;

/// The part of a budget that calls may take by their measured cost. The rest is for what is not measured: probes also evict
/// from the caches what the program uses. A training loop of PyTorch paid 1.3 to 1.5 times the predicted cost.
const PLANNED_PART: f64 = 2.0 / 3.0;
/// The most turns of a stratum, which bounds how long it is.
pub const MOST_TURNS: u16 = 64;
/// This part of what detachable functions may cost is for the cheaper ones, which are then probed all the time.
const ALWAYS_PROBED: f64 = 0.5;
/// A function is probed all the time again when it would have fit into the budget for so long.
const CHEAP_NS: u64 = 5_000_000_000;
/// The calls of sampled functions are averaged over about this long: one turn says little about a program whose rate
/// changes.
const AVERAGED_NS: f64 = 3e9;
/// Without sampled functions, calls are compared with the budget over this long.
const WINDOW_NS: u64 = 1_000_000_000;

/// Functions that are sampled together, because an operation of one can be part of an operation of another, or ends its
/// gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SampledGroup {
    /// Launches, graph launches and waits.
    Launches,
    /// Copies and memsets.
    Copies,
    /// All versions of one function.
    Function(Api, &'static str),
}

impl SampledGroup {
    /// The group of a function.
    pub fn of(id: FunctionId) -> Option<Self> {
        let f = catalogue().get(id)?;
        Some(match f.class {
            Class::Launch | Class::GraphLaunch | Class::Sync => Self::Launches,
            Class::Memcpy | Class::Memset => Self::Copies,
            _ => Self::Function(f.api, f.name),
        })
    }
}

/// Calls of one function in one process since the probes were attached, scaled where they were sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    pub process: ProcessKey,
    pub function: FunctionId,
    pub calls: u64,
}

/// The cost of one probed call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCost {
    /// Nanoseconds of the calling thread.
    pub ns: f64,
    /// No other figure depends on the function, so it may be sampled.
    pub may_be_sampled: bool,
}

/// Which functions are sampled, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplingPlan {
    pub groups: BTreeSet<SampledGroup>,
    /// One of so many turns is observed, and each call in it stands for so many.
    pub weight: u16,
}

/// A function that was sampled at some time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampledFunction {
    pub api: Api,
    pub function: &'static str,
    /// The share of the time in which its calls are observed now: 1 if it is not sampled any more.
    pub ratio: f64,
    /// How many of its calls were added by scaling, up to the last stratum.
    pub estimated_calls: f64,
    /// The standard error of its number of calls since the start.
    pub standard_error: f64,
    /// The squared standard error up to the last stratum. That of a time window is the difference between its ends, plus
    /// `current_variance` of both ends.
    pub variance: f64,
    pub current_variance: f64,
}

/// The overhead of the probes in one process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProcessCost {
    pub pid: u32,
    /// Distinguishes runs that share a pid.
    pub instance: u64,
    /// The share of its time, as of the last check.
    pub share: f64,
}

/// The state of a budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BudgetReport {
    /// The budget as a share of a process's time; `None` if it was lifted.
    pub share: Option<f64>,
    /// Functions that were sampled at some time. Their figures are estimates.
    pub sampled: Vec<SampledFunction>,
    /// The overhead in each process.
    pub processes: Vec<ProcessCost>,
}

/// The current stratum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stratum {
    pub start_ns: u64,
    pub end_ns: u64,
    pub weight: u16,
}

impl Stratum {
    fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

type Caller = (ProcessKey, FunctionId);

/// Decides which functions are sampled, and estimates the error of that.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    /// Since when calls are added up.
    since_ns: Option<u64>,
    /// The last totals.
    totals: HashMap<Caller, u64>,
    /// Calls since then.
    calls: HashMap<Caller, u64>,
    /// Calls a nanosecond.
    rates: HashMap<Caller, f64>,
    plan: SamplingPlan,
    /// Since when a sampled group would fit into the budget.
    cheap_since: BTreeMap<SampledGroup, u64>,
    /// For how long probes are attached for a turn, in turns.
    attached_turns: f64,
    estimates: BTreeMap<FunctionId, Estimate>,
    processes: Vec<ProcessCost>,
}

impl Budget {
    /// A budget of this share of each process's time.
    pub fn new(share: f64) -> Self {
        Self {
            share,
            since_ns: None,
            totals: HashMap::new(),
            calls: HashMap::new(),
            rates: HashMap::new(),
            plan: SamplingPlan::default(),
            cheap_since: BTreeMap::new(),
            attached_turns: 1.0,
            estimates: BTreeMap::new(),
            processes: Vec::new(),
        }
    }

    /// Changes the budget, from the next decision on; `None` removes the limit.
    pub fn set_share(&mut self, share: Option<f64>) {
        self.share = share.unwrap_or(f64::INFINITY);
        self.cheap_since.clear();
    }

    /// The share of a process's time that its calls may take by their measured cost.
    fn planned_share(&self) -> f64 {
        self.share * PLANNED_PART
    }

    /// Which functions are sampled now.
    pub fn plan(&self) -> &SamplingPlan {
        &self.plan
    }

    fn is_sampled(&self, id: FunctionId) -> bool {
        SampledGroup::of(id).is_some_and(|group| self.plan.groups.contains(&group))
    }

    /// Takes in the totals of all callers. Rows of exited processes may be missing.
    pub fn note_totals(&mut self, called: &[Called]) {
        let mut totals: HashMap<Caller, u64> = HashMap::with_capacity(called.len());
        for row in called {
            let total = totals.entry((row.process, row.function)).or_default();
            *total = total.saturating_add(row.calls);
        }
        for (caller, total) in &totals {
            let new = total.saturating_sub(self.totals.get(caller).copied().unwrap_or(0));
            self.note_calls(*caller, new);
        }
        self.totals = totals;
    }

    /// Takes in calls since the last time.
    pub fn note_calls(&mut self, caller: (ProcessKey, FunctionId), calls: u64) {
        if calls > 0 {
            let sum = self.calls.entry(caller).or_default();
            *sum = sum.saturating_add(calls);
        }
    }

    /// Whether it is time to decide while nothing is sampled: a second has passed, or the calls since the last decision
    /// have already cost what is allowed in a second. The first time only starts the clock.
    pub fn is_due(&mut self, now_ns: u64, cost: &dyn Fn(FunctionId) -> Option<CallCost>) -> bool {
        let Some(since_ns) = self.since_ns else {
            self.restart(now_ns);
            return false;
        };
        let mut spent: HashMap<ProcessKey, f64> = HashMap::new();
        for ((process, function), calls) in &self.calls {
            *spent.entry(*process).or_default() += cost(*function).map_or(0.0, |c| c.ns) * *calls as f64;
        }
        let most = self.planned_share() * WINDOW_NS as f64;
        now_ns.saturating_sub(since_ns) >= WINDOW_NS || spent.values().any(|ns| *ns > most)
    }

    /// Starts to add up calls at this time.
    pub fn restart(&mut self, now_ns: u64) {
        self.since_ns = Some(now_ns);
        self.calls.clear();
    }

    /// Says for how long probes were attached for a turn of this length.
    pub fn note_attached(&mut self, attached_ns: u64, turn_ns: u64) {
        let turns = attached_ns as f64 / turn_ns.max(1) as f64;
        self.attached_turns += 0.2 * (turns.max(1.0) - self.attached_turns);
    }

    /// Takes in a finished stratum: all calls since the last decision were made in it.
    pub fn finish_stratum(&mut self, stratum: &Stratum) {
        let mut by_function: BTreeMap<FunctionId, f64> = BTreeMap::new();
        let sampled = self.estimates.keys().copied().filter(|id| self.is_sampled(*id));
        by_function.extend(sampled.map(|id| (id, 0.0)));
        for ((_, function), calls) in &self.calls {
            if self.is_sampled(*function) {
                *by_function.entry(*function).or_default() += *calls as f64;
            }
        }
        for (function, calls) in by_function {
            let estimate = self.estimates.entry(function).or_default();
            estimate.add_stratum(calls, stratum.weight, stratum.length_ns() as f64);
        }
    }

    /// Decides which functions are sampled from now on, by the calls since the last decision.
    pub fn decide(&mut self, now_ns: u64, cost: &dyn Fn(FunctionId) -> Option<CallCost>) -> SamplingPlan {
        let elapsed_ns = self.since_ns.map_or(0, |since| now_ns.saturating_sub(since));
        if elapsed_ns == 0 {
            return self.plan.clone();
        }
        self.update_rates(elapsed_ns as f64);
        self.restart(now_ns);
        let spending = self.spending(cost);
        self.processes = spending.iter().map(|(process, s)| self.process_cost(*process, s)).collect();
        let most = self.planned_share();
        let mut groups: BTreeSet<_> = spending.values().flat_map(|s| s.over_budget(most)).collect();
        self.keep_recent(&mut groups, now_ns);
        let ratio = spending.values().map(|s| s.ratio(most, &groups)).fold(1.0, f64::min);
        self.begin_estimates(&groups, cost);
        let turns = (self.attached_turns / ratio.max(1e-6)).ceil().clamp(2.0, f64::from(MOST_TURNS));
        self.plan = SamplingPlan { weight: if groups.is_empty() { 1 } else { turns as u16 }, groups };
        self.plan.clone()
    }

    /// Functions of new groups have been observed all the time until now.
    fn begin_estimates(
        &mut self,
        groups: &BTreeSet<SampledGroup>,
        cost: &dyn Fn(FunctionId) -> Option<CallCost>,
    ) {
        let is_new = |id: FunctionId| {
            SampledGroup::of(id).is_some_and(|g| groups.contains(&g) && !self.plan.groups.contains(&g))
                && cost(id).is_some_and(|cost| cost.may_be_sampled)
        };
        let mut rates: BTreeMap<FunctionId, f64> = BTreeMap::new();
        for ((_, function), rate) in self.rates.iter().filter(|((_, function), _)| is_new(*function)) {
            *rates.entry(*function).or_default() += rate;
        }
        for (function, rate) in rates {
            self.estimates.entry(function).or_default().begin(rate);
        }
    }

    /// Whether any process has called a function lately.
    pub fn is_called(&self, id: FunctionId) -> bool {
        self.rates.keys().any(|(_, function)| *function == id)
    }

    /// The functions of these groups, each with the process that spends the most on it and the share of its time, as of
    /// the last decision.
    pub fn costs(
        &self,
        groups: &BTreeSet<SampledGroup>,
        cost: &dyn Fn(FunctionId) -> Option<CallCost>,
    ) -> BTreeMap<FunctionId, (ProcessKey, f64)> {
        let mut all: BTreeMap<FunctionId, (ProcessKey, f64)> = BTreeMap::new();
        for ((process, function), rate) in &self.rates {
            let is_one = SampledGroup::of(*function).is_some_and(|group| groups.contains(&group));
            let Some(cost) = cost(*function).filter(|cost| is_one && cost.may_be_sampled) else { continue };
            let most = all.entry(*function).or_insert((*process, 0.0));
            if rate * cost.ns > most.1 {
                *most = (*process, rate * cost.ns);
            }
        }
        all
    }

    /// Groups stay sampled until they have fit into the budget for a while.
    fn keep_recent(&mut self, groups: &mut BTreeSet<SampledGroup>, now_ns: u64) {
        self.cheap_since.retain(|group, _| !groups.contains(group));
        for group in self.plan.groups.iter().filter(|group| !groups.contains(group)) {
            self.cheap_since.entry(*group).or_insert(now_ns);
        }
        let is_recent = |since: &u64| now_ns.saturating_sub(*since) < CHEAP_NS;
        if self.share.is_finite() {
            self.cheap_since.retain(|_, since| is_recent(since));
            groups.extend(self.cheap_since.keys());
        } else {
            self.cheap_since.clear();
        }
    }

    fn update_rates(&mut self, elapsed_ns: f64) {
        let smoothing = elapsed_ns / (elapsed_ns + AVERAGED_NS);
        let mut rates = std::mem::take(&mut self.rates);
        for caller in self.calls.keys() {
            let is_new = !rates.contains_key(caller);
            // what was not sampled until now has been observed all the time
            rates.entry(*caller).or_insert(if is_new { -1.0 } else { 0.0 });
        }
        for ((process, function), rate) in &mut rates {
            let calls = self.calls.get(&(*process, *function)).copied().unwrap_or(0) as f64 / elapsed_ns;
            let is_averaged = *rate >= 0.0 && self.is_sampled(*function);
            *rate = if is_averaged { *rate + smoothing * (calls - *rate) } else { calls };
        }
        // less than a call in a quarter of an hour
        rates.retain(|_, rate| *rate > 1e-12);
        self.rates = rates;
    }

    /// What each process would spend if all were probed all the time.
    fn spending(&self, cost: &dyn Fn(FunctionId) -> Option<CallCost>) -> BTreeMap<ProcessKey, Spending> {
        let mut all: BTreeMap<ProcessKey, Spending> = BTreeMap::new();
        for ((process, function), rate) in &self.rates {
            let Some(cost) = cost(*function) else { continue };
            let spending = all.entry(*process).or_default();
            match SampledGroup::of(*function).filter(|_| cost.may_be_sampled) {
                Some(group) => *spending.groups.entry(group).or_default() += rate * cost.ns,
                None => spending.always += rate * cost.ns,
            }
        }
        all
    }

    fn process_cost(&self, process: ProcessKey, spending: &Spending) -> ProcessCost {
        let share = |(group, share): (&SampledGroup, &f64)| match self.plan.groups.contains(group) {
            true => share * self.attached_turns / f64::from(self.plan.weight.max(1)),
            false => *share,
        };
        let share = spending.always + spending.groups.iter().map(share).sum::<f64>();
        ProcessCost { pid: process.tgid.0, instance: process.instance, share }
    }

    pub fn report(&self, now_ns: u64, stratum: Option<&Stratum>) -> BudgetReport {
        let sampled = |(id, estimate): (&FunctionId, &Estimate)| {
            let f = catalogue().get(*id)?;
            let stratum = stratum.filter(|_| self.is_sampled(*id));
            let (length, passed) = stratum.map_or((0.0, 0.0), |stratum| {
                let length = stratum.length_ns() as f64;
                (length, now_ns.saturating_sub(stratum.start_ns) as f64 / length.max(1.0))
            });
            let current_variance = estimate.current_variance(length, passed);
            Some(SampledFunction {
                api: f.api,
                function: f.name,
                ratio: stratum.map_or(1.0, |stratum| 1.0 / f64::from(stratum.weight.max(1))),
                estimated_calls: estimate.added(),
                standard_error: (estimate.variance() + current_variance).sqrt(),
                variance: estimate.variance(),
                current_variance,
            })
        };
        BudgetReport {
            share: Some(self.share).filter(|share| share.is_finite()),
            sampled: self.estimates.iter().filter_map(sampled).collect(),
            processes: self.processes.clone(),
        }
    }
}

/// What the probes on one process cost, as shares of its time.
#[derive(Debug, Default)]
struct Spending {
    /// Functions that are never sampled.
    always: f64,
    groups: BTreeMap<SampledGroup, f64>,
}

impl Spending {
    /// The groups to sample: none if everything fits into the budget. The cheapest are probed all the time.
    fn over_budget(&self, budget: f64) -> Vec<SampledGroup> {
        let allowed = budget - self.always;
        if self.groups.values().sum::<f64>() <= allowed {
            return Vec::new();
        }
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let mut sum = 0.0;
        let is_expensive = |(_, share): &(&SampledGroup, &f64)| {
            sum += **share;
            sum > ALWAYS_PROBED * allowed
        };
        groups.into_iter().filter(is_expensive).map(|(group, _)| *group).collect()
    }

    /// The share of the time in which these groups may be probed.
    fn ratio(&self, budget: f64, sampled: &BTreeSet<SampledGroup>) -> f64 {
        let (inside, outside): (Vec<_>, Vec<_>) =
            self.groups.iter().partition(|(group, _)| sampled.contains(group));
        let sum =
            |groups: Vec<(&SampledGroup, &f64)>| groups.into_iter().map(|(_, share)| share).sum::<f64>();
        let (inside, outside) = (sum(inside), sum(outside));
        if inside <= 0.0 { 1.0 } else { ((budget - self.always - outside) / inside).clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests;
