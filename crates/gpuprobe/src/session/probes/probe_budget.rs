//! Enforces `--budget`: every second the calls of each process are multiplied by the cost of a call, and functions
//! that cost too much are detached for a while.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_analysis::{Budget, BudgetReport, CallCost, Called, Decision, UnprobedFunction};
use gpuprobe_capture::{Batch, Capture, CaptureConfig, Collect, ProbeCosts, is_detachable};
use gpuprobe_discover::{Inspector, Skipped};
use gpuprobe_event::counters::{CallCounts, ProcessKey};
use gpuprobe_event::{Api, Event, FunctionId, LossCause, Name, Outcome, Tgid, catalogue};
use gpuprobe_output::over_budget_line;
use gpuprobe_output::units::duration;

use super::helper_commands;
use super::probe_set::Probes;
use crate::terminal::notes::note;

/// How often calls are checked against the budget.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A budget, the cost of a call, and the calls since the last check.
#[derive(Debug)]
pub(crate) struct ProbeBudget {
    budget: Budget,
    costs: ProbeCosts,
    checked: Instant,
    /// Calls received one by one since the last check.
    received: HashMap<Caller, u64>,
    /// Total calls up to the last check, of the callers that called in the interval before it.
    totals: HashMap<Caller, u64>,
    /// Records that did not fit into the ring buffer up to the last check.
    lost: u64,
}

/// A process and the function that it calls.
type Caller = (Tgid, Api, Name);

impl ProbeBudget {
    /// Measures what probes with these settings cost on this machine.
    pub(crate) fn measured(share: f64, config: &CaptureConfig, collect: Collect) -> Result<Self> {
        let costs = ProbeCosts::measure(config, collect, helper_commands::attach_helper(false))?;
        Ok(Self {
            budget: Budget::new(share),
            costs,
            checked: Instant::now(),
            received: HashMap::new(),
            totals: HashMap::new(),
            lost: 0,
        })
    }

    /// Time until the next check.
    pub(crate) fn due(&self) -> Duration {
        CHECK_EVERY.saturating_sub(self.checked.elapsed())
    }

    pub(crate) fn report(&self, capture: &Capture) -> BudgetReport {
        let clock = capture.clock();
        self.budget.report(clock.start_unix(), clock.elapsed_ns())
    }

    /// Decides which functions to detach or attach again.
    fn decide(
        &mut self,
        capture: &Capture,
        called: &[Called],
        collect: impl Fn(FunctionId) -> Collect,
    ) -> Vec<Decision> {
        self.checked = Instant::now();
        let cost = |id: FunctionId| {
            let (f, point) = (catalogue().get(id)?, capture.point_of(id)?);
            Some(CallCost { ns: self.costs.of(f, point, collect(id)), may_be_removed: is_detachable(f) })
        };
        self.budget.check(capture.clock().elapsed_ns(), called, &cost)
    }

    /// Counts the calls of a batch.
    fn take(&mut self, batch: &Batch) {
        for event in &batch.calls {
            if let Event::Call(call) = event
                && call.outcome != Outcome::Begun
            {
                *self.received.entry((call.tgid, call.api, call.name.clone())).or_default() += 1;
            }
        }
    }

    /// Total calls of the callers that called since the last check. Lost records are assumed to be distributed like the
    /// received ones.
    fn called(&mut self, lost: u64) -> Vec<Called> {
        let received = std::mem::take(&mut self.received);
        let all: u64 = received.values().sum();
        let lost = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let for_each = (all.saturating_add(lost)) as f64 / all.max(1) as f64;
        let totals = received.into_iter().map(|(caller, calls)| {
            let before = self.totals.get(&caller).copied().unwrap_or(0);
            (caller, before.saturating_add((calls as f64 * for_each) as u64))
        });
        self.totals = totals.collect();
        let called = |((tgid, api, name), calls): (&Caller, &u64)| {
            let function = catalogue().lookup(*api, None, name)?.id;
            let process = ProcessKey { tgid: *tgid, instance: 0 };
            Some(Called { process, function, calls: *calls })
        };
        self.totals.iter().filter_map(called).collect()
    }
}

fn called(row: &CallCounts) -> Called {
    Called { process: row.process, function: row.function, calls: row.calls }
}

impl Probes {
    /// Enforces the budget, if there is one and a check is due, by the counters of the BPF programs.
    pub(crate) fn enforce_budget_by_counters(&mut self) -> Result<()> {
        let Some(mut budget) = self.budget.take_if(|budget| budget.due().is_zero()) else { return Ok(()) };
        let (counts, gpu_ops) = (self.capture.counts()?, self.capture.gpu_ops()?);
        let rows: Vec<_> = counts.iter().chain(&gpu_ops.calls).map(called).collect();
        let decisions = budget.decide(&self.capture, &rows, |id| self.collect(id));
        self.budget = Some(budget);
        self.apply(&decisions)
    }

    /// The same by calls that are received one by one.
    pub(crate) fn enforce_budget_by_events(&mut self, batch: &Batch) -> Result<()> {
        let Some(mut budget) = self.budget.take() else { return Ok(()) };
        budget.take(batch);
        let mut decisions = Vec::new();
        if budget.due().is_zero() {
            let rows = budget.called(self.capture.losses()?.get(LossCause::RingFull));
            decisions = budget.decide(&self.capture, &rows, |id| self.collect(id));
        }
        self.budget = Some(budget);
        self.apply(&decisions)
    }

    /// Changes the budget. Without one, all functions are attached again.
    pub(crate) fn set_budget(&mut self, share: Option<f64>) -> Result<()> {
        let now_ns = self.capture.clock().elapsed_ns();
        let back = match (share, &mut self.budget) {
            (Some(share), Some(budget)) => budget.budget.set_share(share, now_ns),
            (None, Some(budget)) => budget.budget.lift(now_ns),
            (_, None) => Vec::new(),
        };
        self.apply(&back)
    }

    /// The state of the budget.
    pub(crate) fn budget_report(&self) -> Option<BudgetReport> {
        self.budget.as_ref().map(|budget| budget.report(&self.capture))
    }

    /// Adds the functions that were detached for their cost, up to the end of a recording, to the skips.
    pub(crate) fn skip_over_budget(&mut self, at_ns: u64) {
        let report = self.budget.as_ref().map(|budget| budget.budget.report(0.0, at_ns));
        for function in report.map(|report| report.unprobed).unwrap_or_default() {
            let UnprobedFunction { since_ns, .. } = function;
            let line = over_budget_line(&function, &duration(since_ns));
            let (name, reason) = line.split_once(": ").unwrap_or((&line, ""));
            self.skip(&Skipped::function(Path::new(name), reason.to_owned()));
        }
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<()> {
        for decision in decisions {
            match *decision {
                Decision::RemoveProbes { function, process, share, wait_ns } => {
                    for id in rows_of_name(function) {
                        self.capture.detach_function(id)?;
                    }
                    note!(
                        "gpuprobe: {} is not counted for {}: its calls take {:.1}% of the time of process {}, over the budget",
                        name_of(function),
                        duration(wait_ns),
                        share * 100.0,
                        process.tgid
                    );
                }
                Decision::RestoreProbes { function } => self.put_back(function),
            }
        }
        Ok(())
    }

    /// If a file can no longer be opened by its earlier path, looks for another path to it.
    fn put_back(&mut self, function: FunctionId) {
        let ids = rows_of_name(function);
        if ids.iter().all(|id| self.capture.reattach_function(*id).is_ok()) {
            return;
        }
        let found = Inspector::new().of_processes(Path::new("/proc")).libraries;
        found.iter().for_each(|library| self.capture.set_open_path(library));
        for id in ids {
            if let Err(error) = self.capture.reattach_function(id) {
                note!("gpuprobe: {} cannot be counted again everywhere: {error:#}", name_of(function));
            }
        }
    }
}

fn name_of(id: FunctionId) -> &'static str {
    catalogue().get(id).map_or("?", |f| f.name)
}

/// All catalogue rows of a function name: signatures differ between library versions, but users know one function.
fn rows_of_name(id: FunctionId) -> Vec<FunctionId> {
    let Some(function) = catalogue().get(id) else { return vec![id] };
    let is_it = |f: &&gpuprobe_event::Function| (f.api, f.name) == (function.api, function.name);
    let mut all: Vec<_> = catalogue().functions().iter().filter(is_it).map(|f| f.id).collect();
    // rows of hooks are not among the catalogue's functions
    if !all.contains(&id) {
        all.push(id);
    }
    all
}
