//! What probes may take of processes, kept: calls are looked at every second, and what is too dear goes without for a while.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_analysis::{Budget, BudgetReport, CallCost, Called, Decision, LeftOut};
use gpuprobe_capture::{Batch, Capture, CaptureConfig, Collect, ProbeCosts, may_be_left_out};
use gpuprobe_discover::{Inspector, Skipped};
use gpuprobe_event::counters::{CallCounts, ProcessKey};
use gpuprobe_event::{Api, Event, FunctionId, LossCause, Name, Outcome, Tgid, catalogue};
use gpuprobe_output::left_out;
use gpuprobe_output::units::duration;

use crate::guard;
use crate::notes::note;
use crate::probes::Probes;

/// How often calls are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A budget, and what it is kept by.
#[derive(Debug)]
pub(crate) struct KeptBudget {
    budget: Budget,
    costs: ProbeCosts,
    looked: Instant,
    /// Calls that were told one by one since the last look.
    told: HashMap<Caller, u64>,
    /// All calls up to it of who called between the last two looks.
    made: HashMap<Caller, u64>,
    /// Records that had found the ring full by then.
    lost: u64,
}

/// Who calls what.
type Caller = (Tgid, Api, Name);

impl KeptBudget {
    /// Measures what probes cost here, as these settings will have them.
    pub(crate) fn measured(share: f64, config: &CaptureConfig, collect: Collect) -> Result<Self> {
        let costs = ProbeCosts::measure(config, collect, guard::command(false))?;
        Ok(Self {
            budget: Budget::new(share),
            costs,
            looked: Instant::now(),
            told: HashMap::new(),
            made: HashMap::new(),
            lost: 0,
        })
    }

    /// How long it is until calls are to be looked at again.
    pub(crate) fn due(&self) -> Duration {
        LOOK_EVERY.saturating_sub(self.looked.elapsed())
    }

    pub(crate) fn report(&self, capture: &Capture) -> BudgetReport {
        let clock = capture.clock();
        self.budget.report(clock.start_unix(), clock.elapsed_ns())
    }

    /// What is to be done about calls up to now.
    fn look(
        &mut self,
        capture: &Capture,
        called: &[Called],
        collect: impl Fn(FunctionId) -> Collect,
    ) -> Vec<Decision> {
        self.looked = Instant::now();
        let cost = |id: FunctionId| {
            let (f, point) = (catalogue().get(id)?, capture.point_of(id)?);
            Some(CallCost { ns: self.costs.of(f, point, collect(id)), may_be_left_out: may_be_left_out(f) })
        };
        self.budget.look(capture.clock().elapsed_ns(), called, &cost)
    }

    /// Counts calls that are told one by one.
    fn take(&mut self, batch: &Batch) {
        for event in &batch.calls {
            if let Event::Call(call) = event
                && call.outcome != Outcome::Begun
            {
                *self.told.entry((call.tgid, call.api, call.name.clone())).or_default() += 1;
            }
        }
    }

    /// Calls up to now, of who called since the last look. What found the ring full was probably like the rest.
    fn called(&mut self, lost: u64) -> Vec<Called> {
        let told = std::mem::take(&mut self.told);
        let all: u64 = told.values().sum();
        let lost = lost.saturating_sub(std::mem::replace(&mut self.lost, lost));
        let for_each = (all.saturating_add(lost)) as f64 / all.max(1) as f64;
        let made = told.into_iter().map(|(caller, calls)| {
            let before = self.made.get(&caller).copied().unwrap_or(0);
            (caller, before.saturating_add((calls as f64 * for_each) as u64))
        });
        self.made = made.collect();
        let called = |((tgid, api, name), calls): (&Caller, &u64)| {
            let function = catalogue().lookup(*api, None, name)?.id;
            let process = ProcessKey { tgid: *tgid, instance: 0 };
            Some(Called { process, function, calls: *calls })
        };
        self.made.iter().filter_map(called).collect()
    }
}

fn called(row: &CallCounts) -> Called {
    Called { process: row.process, function: row.function, calls: row.calls }
}

impl Probes {
    /// Keeps to the budget, where there is one and a look is due, by what the kernel side has counted.
    pub(crate) fn keep_counted(&mut self) -> Result<()> {
        let Some(mut kept) = self.budget.take_if(|kept| kept.due().is_zero()) else { return Ok(()) };
        let (counts, work) = (self.capture.counts()?, self.capture.work()?);
        let rows: Vec<_> = counts.iter().chain(&work.calls).map(called).collect();
        let decisions = kept.look(&self.capture, &rows, |id| self.collect(id));
        self.budget = Some(kept);
        self.follow(&decisions)
    }

    /// The same by calls that are told one by one.
    pub(crate) fn keep_told(&mut self, batch: &Batch) -> Result<()> {
        let Some(mut kept) = self.budget.take() else { return Ok(()) };
        kept.take(batch);
        let mut decisions = Vec::new();
        if kept.due().is_zero() {
            let rows = kept.called(self.capture.losses()?.get(LossCause::RingFull));
            decisions = kept.look(&self.capture, &rows, |id| self.collect(id));
        }
        self.budget = Some(kept);
        self.follow(&decisions)
    }

    /// From now on, probes may take another part. Without any, everything comes back.
    pub(crate) fn set_budget(&mut self, share: Option<f64>) -> Result<()> {
        let now_ns = self.capture.clock().elapsed_ns();
        let back = match (share, &mut self.budget) {
            (Some(share), Some(kept)) => kept.budget.set_share(share, now_ns),
            (None, Some(kept)) => kept.budget.lift(now_ns),
            (_, None) => Vec::new(),
        };
        self.follow(&back)
    }

    /// How it stands with the budget.
    pub(crate) fn budget_report(&self) -> Option<BudgetReport> {
        self.budget.as_ref().map(|kept| kept.report(&self.capture))
    }

    /// Notes functions that were left out, up to the end of a recording, among what was not watched.
    pub(crate) fn skip_left_out(&mut self, at_ns: u64) {
        let report = self.budget.as_ref().map(|kept| kept.budget.report(0.0, at_ns));
        for function in report.map(|report| report.left_out).unwrap_or_default() {
            let LeftOut { since_ns, .. } = function;
            let line = left_out(&function, &duration(since_ns));
            let (name, reason) = line.split_once(": ").unwrap_or((&line, ""));
            self.skip(&Skipped::function(Path::new(name), reason.to_owned()));
        }
    }

    fn follow(&mut self, decisions: &[Decision]) -> Result<()> {
        for decision in decisions {
            match *decision {
                Decision::LeaveOut { function, process, share, wait_ns } => {
                    for id in namesakes(function) {
                        self.capture.leave_out(id)?;
                    }
                    note!(
                        "gpuprobe: {} is not counted for {}: its calls take {:.1}% of the time of process {}, over the budget",
                        name_of(function),
                        duration(wait_ns),
                        share * 100.0,
                        process.tgid
                    );
                }
                Decision::PutBack { function } => self.put_back(function),
            }
        }
        Ok(())
    }

    /// Where a file cannot be opened by the name that it had, it is looked for by another.
    fn put_back(&mut self, function: FunctionId) {
        let ids = namesakes(function);
        if ids.iter().all(|id| self.capture.put_back(*id).is_ok()) {
            return;
        }
        let found = Inspector::new().of_processes(Path::new("/proc")).libraries;
        found.iter().for_each(|library| self.capture.can_be_opened(library));
        for id in ids {
            if let Err(error) = self.capture.put_back(id) {
                note!("gpuprobe: {} cannot be counted again everywhere: {error:#}", name_of(function));
            }
        }
    }
}

fn name_of(id: FunctionId) -> &'static str {
    catalogue().get(id).map_or("?", |f| f.name)
}

/// All rows of a name: signatures differ between versions of a library, and people know one function.
fn namesakes(id: FunctionId) -> Vec<FunctionId> {
    let Some(function) = catalogue().get(id) else { return vec![id] };
    let is_it = |f: &&gpuprobe_event::Function| (f.api, f.name) == (function.api, function.name);
    let mut all: Vec<_> = catalogue().functions().iter().filter(is_it).map(|f| f.id).collect();
    // a hook's row is behind all others
    if !all.contains(&id) {
        all.push(id);
    }
    all
}
