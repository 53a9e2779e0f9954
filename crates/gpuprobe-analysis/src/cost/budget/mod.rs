//! What probes may cost: which functions go without for a while because their calls, times what each costs, take more of a
//! process's time than was granted, and when they are tried again.
//!
//! The time of a process is that of one thread by the clock: a process that runs for a second has a second, however many
//! threads it has.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Api, FunctionId, catalogue};
use serde::Serialize;

/// How long a function goes without probes the first time.
pub const FIRST_WAIT_NS: u64 = 1_000_000_000;
/// The longest, when it was too dear again each time it was tried.
pub const LONGEST_WAIT_NS: u64 = 256 * FIRST_WAIT_NS;
/// One that was cheap enough for so long, and for as long as it had been left out, begins anew.
const COOL_NS: u64 = 10 * FIRST_WAIT_NS;
/// What takes less than this part of what is granted is not worth leaving out.
const WORTHWHILE: f64 = 0.1;

/// Calls of one function in one process, since the probes came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// The process.
    pub process: ProcessKey,
    /// The function.
    pub function: FunctionId,
    /// How often.
    pub calls: u64,
}

/// What a call costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCost {
    /// Nanoseconds of the calling thread.
    pub ns: f64,
    /// Nothing but its own figures is made of the function.
    pub may_be_left_out: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// The probes of a function go.
    LeaveOut {
        /// Which.
        function: FunctionId,
        /// Whose calls were too many.
        process: ProcessKey,
        /// The part of its time that they took.
        share: f64,
        /// When it is tried again, from now.
        wait_ns: u64,
    },
    /// They come again.
    PutBack {
        /// Which.
        function: FunctionId,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// Since when it has gone without probes, if it does.
    out_since_ns: Option<u64>,
    /// When it was left out last.
    left_ns: u64,
    /// When it got them last.
    back_since_ns: u64,
    wait_ns: u64,
    times: u64,
    /// How long it went without, up to when it got them last.
    missed_ns: u64,
}

/// A function that went without probes at some time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// Its family.
    pub api: Api,
    /// Its name.
    pub function: &'static str,
    /// Whether it has none now.
    pub is_out: bool,
    /// How often it was left out.
    pub times: u64,
    /// For how long, all in all.
    pub missed_ns: u64,
    /// When it was left out last, since the watching began.
    pub since_ns: u64,
}

/// What the probes take of one process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProcessCost {
    /// The process.
    pub pid: u32,
    /// Tells runs apart that share a pid.
    pub instance: u64,
    /// The part of its time, at the last look.
    pub share: f64,
}

/// How it stands with a budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BudgetReport {
    /// When the watching began, in seconds since 1970.
    pub start_unix: f64,
    /// What is granted, as a part of a process's time; nothing where there is no bound any more.
    pub share: Option<f64>,
    /// Functions that were left out at some time: all that is told of them is a lower bound.
    pub left_out: Vec<LeftOut>,
    /// What each process gives for the probes, as they are now.
    pub processes: Vec<ProcessCost>,
}

/// What is granted, and how it has been kept so far.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    looked_ns: Option<u64>,
    calls: HashMap<(ProcessKey, FunctionId), u64>,
    functions: BTreeMap<FunctionId, Standing>,
    processes: Vec<ProcessCost>,
}

impl Budget {
    /// Grants this part of each process's time.
    pub fn new(share: f64) -> Self {
        Self {
            share,
            looked_ns: None,
            calls: HashMap::new(),
            functions: BTreeMap::new(),
            processes: Vec::new(),
        }
    }

    /// Grants another part from now on. Where it is a larger one, what is out comes back and is looked at anew.
    pub fn set_share(&mut self, share: f64, now_ns: u64) -> Vec<Decision> {
        let is_larger = share > self.share;
        self.share = share;
        if !is_larger {
            return Vec::new();
        }
        self.functions.values_mut().for_each(|standing| standing.wait_ns = 0);
        self.put_back(now_ns, |_, _| true)
    }

    /// Grants everything from now on; what is out comes back.
    pub fn lift(&mut self, now_ns: u64) -> Vec<Decision> {
        self.share = f64::INFINITY;
        self.put_back(now_ns, |_, _| true)
    }

    /// How often functions were left out.
    pub fn times(&self) -> u64 {
        self.functions.values().map(|standing| standing.times).sum()
    }

    /// Looks at the calls up to now, and decides what is to be done. The first look only remembers.
    pub fn look(
        &mut self,
        now_ns: u64,
        called: &[Called],
        cost: &dyn Fn(FunctionId) -> Option<CallCost>,
    ) -> Vec<Decision> {
        let before = self.looked_ns.replace(now_ns);
        let mut spent: BTreeMap<ProcessKey, Vec<(FunctionId, CallCost)>> = BTreeMap::new();
        let mut calls = HashMap::with_capacity(called.len());
        for row in called {
            let known = calls.entry((row.process, row.function)).or_insert(0u64);
            *known += row.calls;
        }
        for (key, total) in &calls {
            let new = total.saturating_sub(self.calls.get(key).copied().unwrap_or(0));
            let (process, function) = *key;
            // of what has no probes only the last calls before they went are seen
            let is_out = self.functions.get(&function).is_some_and(|f| f.out_since_ns.is_some());
            if let Some(cost) = cost(function).filter(|_| new > 0 && !is_out) {
                let all = CallCost { ns: cost.ns * new as f64, ..cost };
                spent.entry(process).or_default().push((function, all));
            }
        }
        self.calls = calls;
        let Some(elapsed_ns) = before.map(|before| now_ns.saturating_sub(before)).filter(|ns| *ns > 0) else {
            return Vec::new();
        };
        let mut decisions = self.put_back(now_ns, |standing, without_ns| without_ns >= standing.wait_ns);
        self.processes.clear();
        for (process, functions) in spent {
            decisions.extend(self.of_process(process, functions, elapsed_ns, now_ns));
        }
        decisions
    }

    fn put_back(&mut self, now_ns: u64, comes: impl Fn(&Standing, u64) -> bool) -> Vec<Decision> {
        let mut back = Vec::new();
        for (&function, standing) in &mut self.functions {
            let Some(since) = standing.out_since_ns else { continue };
            let without_ns = now_ns.saturating_sub(since);
            if comes(standing, without_ns) {
                standing.out_since_ns = None;
                standing.back_since_ns = now_ns;
                standing.missed_ns = standing.missed_ns.saturating_add(without_ns);
                back.push(Decision::PutBack { function });
            }
        }
        back
    }

    /// The dearest go first, until what is left fits.
    fn of_process(
        &mut self,
        process: ProcessKey,
        mut functions: Vec<(FunctionId, CallCost)>,
        elapsed_ns: u64,
        now_ns: u64,
    ) -> Vec<Decision> {
        let granted_ns = self.share * elapsed_ns as f64;
        let mut total_ns: f64 = functions.iter().map(|(_, cost)| cost.ns).sum();
        functions.sort_by(|(a, x), (b, y)| y.ns.total_cmp(&x.ns).then(a.cmp(b)));
        let mut decisions = Vec::new();
        for (function, cost) in functions.into_iter().filter(|(_, cost)| cost.may_be_left_out) {
            if total_ns <= granted_ns || cost.ns < WORTHWHILE * granted_ns {
                break;
            }
            total_ns -= cost.ns;
            // another process may have been the reason already
            if let Some(wait_ns) = self.leave_out(function, now_ns) {
                let share = cost.ns / elapsed_ns as f64;
                decisions.push(Decision::LeaveOut { function, process, share, wait_ns });
            }
        }
        let share = total_ns.max(0.0) / elapsed_ns as f64;
        self.processes.push(ProcessCost { pid: process.tgid.0, instance: process.instance, share });
        decisions
    }

    /// How long it is left out, if it is not already.
    fn leave_out(&mut self, function: FunctionId, now_ns: u64) -> Option<u64> {
        let standing = self.functions.entry(function).or_default();
        if standing.out_since_ns.is_some() {
            return None;
        }
        let was_cool = now_ns.saturating_sub(standing.back_since_ns) > standing.wait_ns.max(COOL_NS);
        standing.wait_ns = if standing.times == 0 || was_cool {
            FIRST_WAIT_NS
        } else {
            standing.wait_ns.saturating_mul(2).clamp(FIRST_WAIT_NS, LONGEST_WAIT_NS)
        };
        standing.times += 1;
        standing.left_ns = now_ns;
        standing.out_since_ns = Some(now_ns);
        Some(standing.wait_ns)
    }

    /// How it stands.
    pub fn report(&self, start_unix: f64, now_ns: u64) -> BudgetReport {
        let left_out = |(id, standing): (&FunctionId, &Standing)| {
            let f = catalogue().get(*id)?;
            let out_ns = standing.out_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
            Some(LeftOut {
                api: f.api,
                function: f.name,
                is_out: standing.out_since_ns.is_some(),
                times: standing.times,
                missed_ns: standing.missed_ns.saturating_add(out_ns),
                since_ns: standing.left_ns,
            })
        };
        let left_out = self.functions.iter().filter_map(left_out).collect();
        BudgetReport {
            start_unix,
            share: Some(self.share).filter(|share| share.is_finite()),
            left_out,
            processes: self.processes.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
