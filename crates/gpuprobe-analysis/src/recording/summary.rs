//! The summary of a recording: feeds each event to all analyses.

use std::collections::HashMap;

use gpuprobe_event::trace::{End, SampledCalls};
use gpuprobe_event::{
    Call, Event, Losses, MemoryBySite, Outcome, ProcessChange, ProcessEvent, TensorSummary, Tgid, Tid,
};
use serde::Serialize;

use crate::executions::gpu_time::{GpuTime, GpuTimeAccount};
use crate::gpu_ops::advice::{Advice, advice};
use crate::gpu_ops::gaps::Gaps;
use crate::gpu_ops::process_ops::GpuOps;
use crate::recording::call_errors::{ErrorCount, Errors};
use crate::recording::call_tree::{CallTree, TreeRow};
use crate::recording::collectives::{CollectiveAccount, Collectives};
use crate::recording::functions::{FunctionSummary, Functions};
use crate::recording::gpu_errors::{GpuError, GpuErrorLog};
use crate::recording::gpu_op_replay::{GpuOpReplay, IdleSummary};
use crate::recording::kernel_module::{KernelModuleCalls, KernelModuleSummary};
use crate::recording::memory_ledger::{Ledger, MemorySummary};
use crate::recording::out_of_memory::OutOfMemoryLog;
use crate::recording::processes::{ProcessSummary, Processes};
use crate::recording::ranks::RanksReport;
use crate::recording::site_calls::{CallsBySite, SiteCallTotals};
use crate::recording::slowest::{SlowCall, Slowest};
use crate::stats::loss_counts::{LossCount, happened};
use crate::threads::sample::LastOperation;

/// The summary of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SummaryReport {
    /// The time of the first event, in nanoseconds since the start of the recording.
    pub first_ns: Option<u64>,
    /// The time of the last event, including the ends of calls.
    pub last_ns: Option<u64>,
    /// Only entries of calls were recorded: results and durations are not known.
    pub only_entries: bool,
    /// Calls that returned, including nested ones, without calls into the Linux kernel, which are in `driver`.
    pub calls: u64,
    /// Calls that were not made inside another: those of the programs themselves.
    pub outermost_calls: u64,
    /// Their failures.
    pub outermost_errors: u64,
    /// Their errors at teardown (see [`ErrorCount::is_teardown`]), which are no failures.
    pub teardown_errors: u64,
    /// Time inside outermost calls, summed over all threads.
    pub outermost_ns: u64,
    /// By function, sorted by time, longest first.
    pub functions: Vec<FunctionSummary>,
    /// Outermost calls by function, each with the calls made inside it.
    pub call_tree: Vec<TreeRow>,
    pub memory: MemorySummary,
    /// `memory` comes from the tables of the BPF side, which are complete even if records were lost.
    #[serde(skip)]
    pub memory_from_tables: bool,
    /// Memory that was live when processes exited, or at the end of the recording, by call site.
    pub memory_by_site: MemoryBySite,
    /// Launches and waits by call site, if the stacks of calls were recorded.
    #[serde(skip_serializing_if = "CallsBySite::is_empty")]
    pub calls_by_site: CallsBySite,
    /// Allocations for which a GPU had no room.
    #[serde(skip_serializing_if = "OutOfMemoryLog::is_empty")]
    pub out_of_memory: OutOfMemoryLog,
    /// Tensors of frameworks when processes exited, or at the end of the recording.
    #[serde(skip_serializing_if = "TensorSummary::is_empty")]
    pub tensors: TensorSummary,
    /// GPU operations of all processes.
    pub gpu_ops: GpuOps,
    /// The idle time of streams.
    pub idle: IdleSummary,
    /// What GPUs executed, if agents reported it.
    #[serde(skip_serializing_if = "GpuTime::is_empty")]
    pub gpu_time: GpuTime,
    pub advice: Vec<Advice>,
    /// Collectives by communicator and rank.
    #[serde(skip_serializing_if = "Collectives::is_empty")]
    pub collectives: Collectives,
    /// The ranks of a job, of several recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Box<RanksReport>>,
    /// Calls into the NVIDIA kernel module, if they were recorded.
    pub driver: KernelModuleSummary,
    /// The longest calls.
    pub slowest: Vec<SlowCall>,
    /// Failed calls, most frequent first.
    pub errors: Vec<ErrorCount>,
    pub gpu_errors: Vec<GpuError>,
    /// The number of GPU errors that are not in `gpu_errors`.
    pub other_gpu_errors: u64,
    /// Processes, in the order in which they were first seen.
    pub processes: Vec<ProcessSummary>,
    /// Lost records by cause; empty if nothing was lost.
    pub losses: Vec<LossCount>,
    /// Libraries and functions that were not probed, with the reason.
    pub skipped: Vec<String>,
    /// Functions that were sampled: their figures are estimates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sampled: Vec<SampledCalls>,
}

impl SummaryReport {
    /// The time from the first event to the last.
    pub fn span_ns(&self) -> u64 {
        self.last_ns.unwrap_or(0).saturating_sub(self.first_ns.unwrap_or(0))
    }

    /// Removes the figures about the time between operations of a stream, if operations are missing.
    pub fn remove_gaps(&mut self) {
        self.gpu_ops.gaps = Gaps::default();
        self.idle = IdleSummary::default();
        self.advice.clear();
    }
}

/// Collects a [`SummaryReport`]. Its memory grows with functions, processes and live allocations, not with calls.
#[derive(Debug, Default)]
pub struct Summary {
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    calls: u64,
    outermost_calls: u64,
    outermost_ns: u64,
    functions: Functions,
    call_tree: CallTree,
    memory: Ledger,
    gpu_ops: GpuOpReplay,
    gpu_time: GpuTimeAccount,
    collectives: CollectiveAccount,
    calls_by_site: SiteCallTotals,
    driver: KernelModuleCalls,
    slowest: Slowest,
    errors: Errors,
    gpu_errors: GpuErrorLog,
    out_of_memory: OutOfMemoryLog,
    processes: Processes,
    losses: Losses,
    memory_by_site: MemoryBySite,
    tensors: TensorSummary,
    /// Memory as the BPF side counted it, from the last line of the trace.
    counted_memory: Option<Box<MemorySummary>>,
    skipped: Vec<String>,
    sampled: Vec<SampledCalls>,
    /// The summary of calls that only have an entry. Dropped as soon as any call is seen to return.
    begun: Option<Box<Self>>,
}

impl Summary {
    pub fn feed(&mut self, event: &Event) {
        self.gpu_time.feed(event);
        match event {
            Event::Call(call) if call.outcome == Outcome::Begun => return self.begins(call),
            Event::Call(call) => {
                // an instant does not show whether returns are recorded
                if call.outcome != Outcome::Instant {
                    self.begun = None;
                }
                self.call(call);
            }
            Event::Process(change) => {
                self.seen(change.at_ns, change.at_ns);
                self.processes.feed_change(change);
                self.collectives.feed(event);
                if !change.live.is_empty() {
                    self.memory.set(change.tgid, &change.live);
                }
                if change.change != ProcessChange::Start {
                    self.memory.clear(change.tgid);
                    self.gpu_ops.clear(change.tgid);
                    self.driver.clear(change.tgid);
                }
            }
            Event::Loss(loss) => {
                self.losses.add(loss.cause, loss.count);
                self.collectives.feed(event);
            }
            Event::Xid(xid) => {
                self.seen(xid.at_ns, xid.at_ns);
                self.gpu_errors.xid(xid);
            }
            Event::OutOfMemory(event) => {
                self.seen(event.at_ns, event.at_ns);
                self.out_of_memory.add(event);
            }
            Event::Execution(execution) => self.seen(execution.start_ns, execution.end_ns),
            Event::Range(range) => self.seen(range.start_ns, range.end_ns),
            Event::Agent(_) => {}
        }
        if let Some(begun) = &mut self.begun {
            begun.feed(event);
        }
    }

    /// Takes in the last line of a trace, which has figures that no event has.
    pub fn end(&mut self, end: &End) {
        self.memory_by_site.clone_from(&end.memory_by_site);
        self.tensors.clone_from(&end.tensors);
        self.counted_memory.clone_from(&end.memory);
        self.driver.unified.clone_from(&end.unified);
        self.skipped.clone_from(&end.skipped);
        self.sampled.clone_from(&end.sampled);
    }

    /// The processes with live memory, most memory first. A trace that starts with these events can continue this one.
    pub fn live_memory_events(&self) -> Vec<ProcessEvent> {
        let start = |(tgid, live)| ProcessEvent {
            id: 0,
            at_ns: self.last_ns.unwrap_or(0),
            change: ProcessChange::Start,
            tgid,
            tid: Tid(tgid.0),
            process: self.processes.name_of(tgid).into(),
            parent: None,
            ns_pid: None,
            container: None,
            exit_status: None,
            rank: None,
            live,
        };
        self.memory.live_by_process().into_iter().map(start).collect()
    }

    /// The summary of the events up to now.
    pub fn report(&self) -> SummaryReport {
        if let Some(begun) = &self.begun {
            return SummaryReport {
                only_entries: true,
                memory_by_site: self.memory_by_site.clone(),
                tensors: self.tensors.clone(),
                gpu_time: self.gpu_time.report(),
                skipped: self.skipped.clone(),
                sampled: self.sampled.clone(),
                ..begun.report()
            };
        }
        let processes = self.processes.report();
        let gpu_ops = self.gpu_ops.report();
        let functions = self.functions.report();
        let (gpu_errors, other_gpu_errors) = self.gpu_errors.report();
        SummaryReport {
            gpu_errors,
            other_gpu_errors,
            out_of_memory: self.out_of_memory.clone(),
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            only_entries: false,
            calls: self.calls,
            outermost_calls: self.outermost_calls,
            outermost_errors: self.errors.outermost,
            teardown_errors: self.errors.teardown,
            outermost_ns: self.outermost_ns,
            driver: self.driver.report(&functions),
            functions,
            call_tree: self.call_tree.report(),
            memory_from_tables: self.counted_memory.is_some(),
            memory: self.counted_memory.as_deref().cloned().unwrap_or_else(|| self.memory.report()),
            memory_by_site: self.memory_by_site.clone(),
            calls_by_site: self.calls_by_site.report(),
            tensors: self.tensors.clone(),
            skipped: self.skipped.clone(),
            sampled: self.sampled.clone(),
            advice: advice(&gpu_ops, self.observed_ns(&processes)),
            gpu_ops,
            idle: self.gpu_ops.idle(),
            gpu_time: self.gpu_time.report(),
            collectives: self.collectives.report(),
            ranks: None,
            slowest: self.slowest.report(),
            errors: self.errors.report(),
            processes,
            losses: happened(&self.losses),
        }
    }

    /// The last operation on each stream of each process, including those of calls whose records come later.
    pub fn last_operations(&self, later: &[Call], now_ns: u64) -> HashMap<Tgid, Vec<LastOperation>> {
        self.gpu_ops.last_operations(later, now_ns)
    }

    /// The collectives up to now, including those of calls that have not returned.
    pub fn collectives_with(&self, open: &[Call]) -> Collectives {
        if let Some(begun) = &self.begun {
            return begun.collectives_with(open);
        }
        let mut account = self.collectives.clone();
        for call in open {
            account.feed_call(call);
        }
        account.report()
    }

    /// A call was entered. It is counted when it returns, unless the recording has no returns.
    fn begins(&mut self, call: &Call) {
        if self.calls > 0 {
            return;
        }
        // these are the only analyses with data before the first call
        let initial = |summary: &Self| Self {
            first_ns: summary.first_ns,
            last_ns: summary.last_ns,
            losses: summary.losses.clone(),
            processes: summary.processes.clone(),
            driver: summary.driver.clone(),
            collectives: summary.collectives.clone(),
            ..Self::default()
        };
        let mut begun = self.begun.take().unwrap_or_else(|| Box::new(initial(self)));
        begun.call(call);
        self.begun = Some(begun);
    }

    fn call(&mut self, call: &Call) {
        let duration_ns = call.duration_ns().unwrap_or(0);
        self.seen(call.start_ns, call.start_ns.saturating_add(duration_ns));
        self.driver.feed(call);
        let has_exited = self.processes.feed_call(call);
        if call.is_in_linux() {
            return;
        }
        let is_counted = call.outcome != Outcome::Unfinished;
        let weight = u64::from(call.weight);
        self.calls += if is_counted { weight } else { 0 };
        if is_counted && call.parent.is_none() {
            self.outermost_calls += weight;
            self.outermost_ns = self.outermost_ns.saturating_add(duration_ns.saturating_mul(weight));
        }
        self.functions.feed(call);
        self.call_tree.feed(call);
        self.memory.feed(call, has_exited);
        self.gpu_ops.feed(call);
        self.collectives.feed_call(call);
        self.calls_by_site.feed(call);
        self.slowest.feed(call);
        self.errors.feed(call);
        self.gpu_errors.call(call);
    }

    /// An upper bound for the sum of the lifetimes of all processes that made calls.
    fn observed_ns(&self, processes: &[ProcessSummary]) -> u64 {
        let span_ns = self.last_ns.unwrap_or(0).saturating_sub(self.first_ns.unwrap_or(0));
        let calling = processes.iter().filter(|process| process.calls > 0).count();
        span_ns.saturating_mul(calling as u64)
    }

    fn seen(&mut self, from_ns: u64, to_ns: u64) {
        self.first_ns = Some(self.first_ns.map_or(from_ns, |first| first.min(from_ns)));
        self.last_ns = Some(self.last_ns.map_or(to_ns, |last| last.max(to_ns)));
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Class, LossCause, LossEvent};

    use super::*;
    use crate::recording::memory_ledger::Total;
    use crate::recording::processes::ProcessEnd;
    use crate::samples::{alloc, call, inside, launch, process, took};

    fn fed(events: &[Event]) -> SummaryReport {
        let mut summary = Summary::default();
        events.iter().for_each(|e| summary.feed(e));
        summary.report()
    }

    #[test]
    fn no_events_give_an_empty_summary() {
        assert_eq!(fed(&[]), SummaryReport::default());
    }

    #[test]
    fn times_between_operations_are_removed_if_operations_are_missing() {
        let at = |start_ns, call: Call| Event::Call(Box::new(Call { start_ns, ..call }));
        let waited = Call { class: Class::Sync, ..took(call(Api::Driver, "cuCtxSynchronize", 0), 10) };
        let mut report = fed(&[
            at(0, took(launch("cuLaunchKernel", Some(5)), 10)),
            at(20, waited),
            at(50, took(launch("cuLaunchKernel", Some(5)), 10)),
        ]);
        assert_eq!((report.idle.streams[0].idle_ns, report.gpu_ops.gaps.streams), (20, 1));
        report.remove_gaps();
        assert_eq!((report.idle, report.gpu_ops.gaps), (IdleSummary::default(), Gaps::default()));
    }

    #[test]
    fn sums_are_taken_over_outermost_calls() {
        let inner = inside(took(call(Api::Driver, "cuMemAlloc_v2", 2), 300), 1);
        let outer = took(call(Api::Runtime, "cudaMalloc", 2), 500);
        let failed = |c: Call| Event::Call(Box::new(Call { status: Some(2), ..c }));
        let report = fed(&[failed(inner), failed(outer)]);
        assert_eq!((report.calls, report.outermost_calls, report.outermost_errors), (2, 1, 1));
        assert_eq!(report.outermost_ns, 500);
        assert_eq!((report.first_ns, report.last_ns), (Some(100), Some(600)));
    }

    #[test]
    fn memory_live_at_exit_is_freed_by_exit_and_losses_are_summed() {
        let report = fed(&[
            Event::Process(process(ProcessChange::Start, 0, None)),
            Event::Call(Box::new(alloc(0x10, 4096, 50))),
            Event::Process(process(ProcessChange::Exit, 90, Some(0))),
            Event::Loss(LossEvent { at_ns: 95, cause: LossCause::RingFull, count: 3 }),
            Event::Loss(LossEvent { at_ns: 96, cause: LossCause::RingFull, count: 2 }),
        ]);
        assert_eq!(Total::from(&report.memory.freed_by_exit[0]), Total { count: 1, bytes: 4096 });
        assert_eq!(report.memory.live, []);
        assert_eq!(report.processes[0].end, Some(ProcessEnd::Code(0)));
        assert_eq!(report.losses, [LossCount { cause: LossCause::RingFull, count: 5 }]);
        assert_eq!((report.first_ns, report.last_ns), (Some(0), Some(90)));
    }

    #[test]
    fn implausible_counts_do_not_overflow() {
        let loss = Event::Loss(LossEvent { at_ns: 0, cause: LossCause::TooDeep, count: u64::MAX });
        let alloc = Event::Call(Box::new(alloc(0x10, u64::MAX, u64::MAX)));
        let report = fed(&[loss.clone(), loss, alloc.clone(), alloc]);
        assert_eq!(report.losses, [LossCount { cause: LossCause::TooDeep, count: u64::MAX }]);
        assert_eq!(report.memory.allocated, Total { count: 2, bytes: u64::MAX });
        assert_eq!(report.last_ns, Some(u64::MAX));
    }

    #[test]
    fn a_trace_can_continue_with_the_live_memory_of_another() {
        let mut first = Summary::default();
        first.feed(&Event::Process(process(ProcessChange::Start, 0, None)));
        first.feed(&Event::Call(Box::new(alloc(0x10, 4096, 50))));
        first.feed(&Event::Call(Box::new(alloc(0x20, 10, 60))));
        let free = Event::Call(Box::new(crate::samples::free(0x10, Some(4096), 70)));
        let live_memory_events: Vec<_> = first.live_memory_events().into_iter().map(Event::Process).collect();
        assert_eq!(live_memory_events.len(), 1);
        let report = fed(&[live_memory_events, vec![free]].concat());
        assert_eq!(Total::from(&report.memory.live[0]), Total { count: 1, bytes: 10 });
        assert_eq!(report.processes[0].name, first.report().processes[0].name);
    }

    #[test]
    fn entries_are_counted_if_no_call_is_seen_to_return() {
        let begun =
            |call: Call| Event::Call(Box::new(Call { outcome: Outcome::Begun, status: None, ..call }));
        let launch = || call(Api::Driver, "cuLaunchKernel", 0);
        let mut events = vec![
            Event::Process(process(ProcessChange::Start, 20, None)),
            begun(launch()),
            begun(inside(call(Api::Driver, "cuCtxGetDevice", 0), 1)),
            Event::Process(process(ProcessChange::Exit, 900, Some(3))),
        ];
        let report = fed(&events);
        assert_eq!((report.only_entries, report.calls, report.outermost_calls), (true, 2, 1));
        assert_eq!((report.first_ns, report.last_ns, report.functions.len()), (Some(20), Some(900), 2));
        assert_eq!(report.processes.len(), 1);
        assert_eq!((report.processes[0].calls, report.processes[0].end), (2, Some(ProcessEnd::Code(3))));
        // an instant does not change that
        let instant = Call { outcome: Outcome::Instant, ..call(Api::Kernel, "sched:sched_switch", 0) };
        events.insert(0, Event::Call(Box::new(instant.clone())));
        events.push(Event::Call(Box::new(instant)));
        let report = fed(&events);
        assert_eq!((report.only_entries, report.calls, report.driver.commands[0].calls), (true, 2, 2));
        events = events[1..events.len() - 1].to_vec();
        // the entry and the return of a call are one call
        events.insert(3, Event::Call(Box::new(launch())));
        let report = fed(&events);
        assert_eq!((report.only_entries, report.calls, report.functions[0].unfinished), (false, 1, 0));
    }

    #[test]
    fn a_fork_frees_nothing() {
        let report = fed(&[
            Event::Call(Box::new(alloc(0x10, 4096, 50))),
            Event::Process(process(ProcessChange::Start, 60, None)),
        ]);
        assert_eq!(Total::from(&report.memory.live[0]), Total { count: 1, bytes: 4096 });
    }
}
