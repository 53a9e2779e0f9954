//! The overhead budget: when the probes on a process take more of its time than allowed, the most expensive functions
//! lose their probes for a while. The cost of a function is its calls times the cost of a call.
//!
//! The time of a process is wall-clock time: a process that runs for a second has one second, no matter how many
//! threads it has.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Api, FunctionId, catalogue};
use serde::Serialize;

/// How long a function is without probes the first time.
pub const FIRST_WAIT_NS: u64 = 1_000_000_000;
/// The longest time, for a function that was too expensive each time it was tried again.
pub const LONGEST_WAIT_NS: u64 = 256 * FIRST_WAIT_NS;
/// A function that was cheap enough for this long, and for at least its last waiting time, starts with the first wait
/// again.
const CHEAP_NS: u64 = 10 * FIRST_WAIT_NS;
/// A function that takes less than this part of the budget keeps its probes.
const WORTHWHILE: f64 = 0.1;

/// Calls of one function in one process since the probes were attached.
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
    /// No other figure depends on the function, so its probes may be removed.
    pub may_be_removed: bool,
}

/// A change to the probes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Remove the probes of a function.
    RemoveProbes {
        function: FunctionId,
        /// The process whose calls were too expensive.
        process: ProcessKey,
        /// The share of its time that they took.
        share: f64,
        /// The time until the function is tried again.
        wait_ns: u64,
    },
    /// Attach the probes again.
    RestoreProbes { function: FunctionId },
}

#[derive(Clone, Copy, Debug, Default)]
struct FunctionState {
    /// Since when it has been without probes; `None` if it has them.
    out_since_ns: Option<u64>,
    /// When its probes were last removed.
    removed_ns: u64,
    /// When its probes were last attached again.
    back_since_ns: u64,
    wait_ns: u64,
    times: u64,
    /// Total time without probes, up to `back_since_ns`.
    missed_ns: u64,
}

/// A function that was without probes at some time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnprobedFunction {
    pub api: Api,
    pub function: &'static str,
    /// It is without probes now.
    pub is_unprobed: bool,
    /// How often its probes were removed.
    pub times: u64,
    /// Total time without probes.
    pub missed_ns: u64,
    /// When its probes were last removed, relative to the start of observation.
    pub since_ns: u64,
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
    /// The start of observation, in seconds since 1970.
    pub start_unix: f64,
    /// The budget as a share of a process's time; `None` if it was lifted.
    pub share: Option<f64>,
    /// Functions that were without probes at some time. All figures of these are lower bounds.
    pub unprobed: Vec<UnprobedFunction>,
    /// The overhead in each process, with the probes as they are now.
    pub processes: Vec<ProcessCost>,
}

/// Decides which functions lose their probes and when they get them back.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    checked_ns: Option<u64>,
    calls: HashMap<(ProcessKey, FunctionId), u64>,
    functions: BTreeMap<FunctionId, FunctionState>,
    processes: Vec<ProcessCost>,
}

impl Budget {
    /// A budget of this share of each process's time.
    pub fn new(share: f64) -> Self {
        Self {
            share,
            checked_ns: None,
            calls: HashMap::new(),
            functions: BTreeMap::new(),
            processes: Vec::new(),
        }
    }

    /// Changes the budget. If it grows, all functions get their probes back and start with the first wait again.
    pub fn set_share(&mut self, share: f64, now_ns: u64) -> Vec<Decision> {
        let is_larger = share > self.share;
        self.share = share;
        if !is_larger {
            return Vec::new();
        }
        self.functions.values_mut().for_each(|state| state.wait_ns = 0);
        self.put_back(now_ns, |_, _| true)
    }

    /// Removes the limit. All functions get their probes back.
    pub fn lift(&mut self, now_ns: u64) -> Vec<Decision> {
        self.share = f64::INFINITY;
        self.put_back(now_ns, |_, _| true)
    }

    /// How often probes of functions were removed.
    pub fn times(&self) -> u64 {
        self.functions.values().map(|state| state.times).sum()
    }

    /// Compares the calls with those of the last check and decides which probes to change. The first check only stores
    /// the counts.
    pub fn check(
        &mut self,
        now_ns: u64,
        called: &[Called],
        cost: &dyn Fn(FunctionId) -> Option<CallCost>,
    ) -> Vec<Decision> {
        let before = self.checked_ns.replace(now_ns);
        let mut spent: BTreeMap<ProcessKey, Vec<(FunctionId, CallCost)>> = BTreeMap::new();
        let mut calls = HashMap::with_capacity(called.len());
        for row in called {
            let known = calls.entry((row.process, row.function)).or_insert(0u64);
            *known += row.calls;
        }
        for (key, total) in &calls {
            let new = total.saturating_sub(self.calls.get(key).copied().unwrap_or(0));
            let (process, function) = *key;
            // the new calls of a function without probes were made before these were removed
            let is_unprobed = self.functions.get(&function).is_some_and(|f| f.out_since_ns.is_some());
            if let Some(cost) = cost(function).filter(|_| new > 0 && !is_unprobed) {
                let all = CallCost { ns: cost.ns * new as f64, ..cost };
                spent.entry(process).or_default().push((function, all));
            }
        }
        self.calls = calls;
        let Some(elapsed_ns) = before.map(|before| now_ns.saturating_sub(before)).filter(|ns| *ns > 0) else {
            return Vec::new();
        };
        let mut decisions = self.put_back(now_ns, |state, without_ns| without_ns >= state.wait_ns);
        self.processes.clear();
        for (process, functions) in spent {
            decisions.extend(self.decide_for_process(process, functions, elapsed_ns, now_ns));
        }
        decisions
    }

    fn put_back(&mut self, now_ns: u64, is_due: impl Fn(&FunctionState, u64) -> bool) -> Vec<Decision> {
        let mut back = Vec::new();
        for (&function, state) in &mut self.functions {
            let Some(since) = state.out_since_ns else { continue };
            let without_ns = now_ns.saturating_sub(since);
            if is_due(state, without_ns) {
                state.out_since_ns = None;
                state.back_since_ns = now_ns;
                state.missed_ns = state.missed_ns.saturating_add(without_ns);
                back.push(Decision::RestoreProbes { function });
            }
        }
        back
    }

    /// Removes the most expensive functions first, until the rest fits into the budget.
    fn decide_for_process(
        &mut self,
        process: ProcessKey,
        mut functions: Vec<(FunctionId, CallCost)>,
        elapsed_ns: u64,
        now_ns: u64,
    ) -> Vec<Decision> {
        let budget_ns = self.share * elapsed_ns as f64;
        let mut total_ns: f64 = functions.iter().map(|(_, cost)| cost.ns).sum();
        functions.sort_by(|(a, x), (b, y)| y.ns.total_cmp(&x.ns).then(a.cmp(b)));
        let mut decisions = Vec::new();
        for (function, cost) in functions.into_iter().filter(|(_, cost)| cost.may_be_removed) {
            if total_ns <= budget_ns || cost.ns < WORTHWHILE * budget_ns {
                break;
            }
            total_ns -= cost.ns;
            // the probes may already have been removed because of another process
            if let Some(wait_ns) = self.leave_out(function, now_ns) {
                let share = cost.ns / elapsed_ns as f64;
                decisions.push(Decision::RemoveProbes { function, process, share, wait_ns });
            }
        }
        let share = total_ns.max(0.0) / elapsed_ns as f64;
        self.processes.push(ProcessCost { pid: process.tgid.0, instance: process.instance, share });
        decisions
    }

    /// Returns how long the function is without probes, or `None` if it already is.
    fn leave_out(&mut self, function: FunctionId, now_ns: u64) -> Option<u64> {
        let state = self.functions.entry(function).or_default();
        if state.out_since_ns.is_some() {
            return None;
        }
        let was_cheap = now_ns.saturating_sub(state.back_since_ns) > state.wait_ns.max(CHEAP_NS);
        state.wait_ns = if state.times == 0 || was_cheap {
            FIRST_WAIT_NS
        } else {
            state.wait_ns.saturating_mul(2).clamp(FIRST_WAIT_NS, LONGEST_WAIT_NS)
        };
        state.times += 1;
        state.removed_ns = now_ns;
        state.out_since_ns = Some(now_ns);
        Some(state.wait_ns)
    }

    pub fn report(&self, start_unix: f64, now_ns: u64) -> BudgetReport {
        let unprobed = |(id, state): (&FunctionId, &FunctionState)| {
            let f = catalogue().get(*id)?;
            let out_ns = state.out_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
            Some(UnprobedFunction {
                api: f.api,
                function: f.name,
                is_unprobed: state.out_since_ns.is_some(),
                times: state.times,
                missed_ns: state.missed_ns.saturating_add(out_ns),
                since_ns: state.removed_ns,
            })
        };
        let unprobed = self.functions.iter().filter_map(unprobed).collect();
        BudgetReport {
            start_unix,
            share: Some(self.share).filter(|share| share.is_finite()),
            unprobed,
            processes: self.processes.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
