//! Reads a whole trace file.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use gpuprobe_analysis::{GpuOps, Summary, SummaryReport};
use gpuprobe_event::trace::{End, Line, Meta, Reader};
use gpuprobe_event::{
    AgentEvent, Api, Call, Event, Execution, LossEvent, OutOfMemoryEvent, Outcome, ProcessChange,
    ProcessEvent, RangeEvent,
};
use serde_json::Value;

/// How often something happened, by name.
pub type Counts = BTreeMap<String, u64>;

/// All lines of a trace, by type and in their order.
#[derive(Debug)]
pub struct Recording {
    pub meta: Meta,
    pub calls: Vec<Call>,
    pub processes: Vec<ProcessEvent>,
    pub losses: Vec<LossEvent>,
    pub out_of_memory: Vec<OutOfMemoryEvent>,
    /// What GPUs executed.
    pub executions: Vec<Execution>,
    pub ranges: Vec<RangeEvent>,
    pub agent_states: Vec<AgentEvent>,
    pub end: Option<End>,
    /// The number of lines that could not be parsed.
    pub damaged: u64,
}

impl Recording {
    /// Reads a file, which may be compressed. Its first line must be that of a trace.
    pub fn read(path: &Path) -> Self {
        let shown = path.display().to_string();
        let file = File::open(path).unwrap_or_else(|e| panic!("{shown}: {e}"));
        if path.extension().is_some_and(|extension| extension == "zst") {
            let lines = zstd::Decoder::new(file).unwrap_or_else(|e| panic!("{shown}: {e}"));
            return Self::of_lines(BufReader::new(lines), &shown);
        }
        Self::of_lines(BufReader::new(file), &shown)
    }

    /// Reads lines from a command's output. The first line must be that of a trace.
    pub fn of_lines(lines: impl BufRead, shown: &str) -> Self {
        let mut reader = Reader::new(lines).unwrap_or_else(|e| panic!("{shown}: {e}"));
        let (mut calls, mut processes, mut losses, mut end) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut out_of_memory = Vec::new();
        let (mut executions, mut ranges, mut agent_states) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(line) = reader.read().unwrap_or_else(|e| panic!("{shown}: {e}")) {
            assert!(end.is_none(), "lines after the end");
            match line {
                Line::Event(Event::Call(call)) => calls.push(*call),
                Line::Event(Event::Process(process)) => processes.push(process),
                Line::Event(Event::Loss(loss)) => losses.push(loss),
                Line::Event(Event::OutOfMemory(event)) => out_of_memory.push(*event),
                Line::Event(Event::Execution(execution)) => executions.push(*execution),
                Line::Event(Event::Range(range)) => ranges.push(*range),
                Line::Event(Event::Agent(state)) => agent_states.push(*state),
                // the GPUs of the tests have none
                Line::Event(Event::Xid(xid)) => panic!("{shown}: {xid:?}"),
                Line::End(line) => end = Some(line),
            }
        }
        let meta = reader.meta().clone();
        Self {
            meta,
            calls,
            processes,
            losses,
            out_of_memory,
            executions,
            ranges,
            agent_states,
            end,
            damaged: reader.damaged(),
        }
    }

    /// Checks that every line can be parsed, nothing was lost, and the end line has the right count.
    pub fn assert_whole(&self) -> &End {
        assert_eq!(self.losses, [], "losses");
        let end = self.assert_ended();
        assert_eq!(end.lost, BTreeMap::new(), "lost, by the end line");
        assert_eq!(end.skipped, Vec::<String>::new(), "skipped");
        end
    }

    /// Checks that every line can be parsed and the end line has the right count.
    pub fn assert_ended(&self) -> &End {
        assert_eq!(self.damaged, 0, "damaged lines");
        let end = self.end.as_ref().unwrap_or_else(|| panic!("the trace has no end"));
        let of_host = self.calls.len() + self.processes.len() + self.losses.len() + self.out_of_memory.len();
        let lines = of_host + self.executions.len() + self.ranges.len() + self.agent_states.len();
        // The begin record of a call whose return is not observed is a line, but not counted as a call.
        let calls = self.calls.iter().filter(|call| call.outcome != Outcome::Begun).count();
        assert_eq!((end.events, end.calls), (lines as u64, calls as u64), "the end line's counts");
        let mut ids: Vec<u64> = self.calls.iter().map(|c| c.id).collect();
        ids.extend(self.processes.iter().map(|p| p.id));
        ids.extend(self.executions.iter().map(|e| e.id));
        ids.extend(self.agent_states.iter().map(|s| s.id));
        let events = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), events, "event ids are unique");
        end
    }

    /// The calls of one process.
    pub fn of(&self, pid: u32) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |c| c.tgid.0 == pid)
    }

    /// Launches, copies and gaps of the summary.
    pub fn work(&self) -> GpuOps {
        self.summary().gpu_ops
    }

    /// The summary, computed from the calls and then from the process events.
    pub fn summary(&self) -> SummaryReport {
        let mut summary = Summary::default();
        self.calls.iter().for_each(|call| summary.feed(&Event::Call(Box::new(call.clone()))));
        self.processes.iter().for_each(|process| summary.feed(&Event::Process(process.clone())));
        summary.report()
    }

    /// Calls by function of one process and one API.
    pub fn counts(&self, pid: u32, api: Api) -> Counts {
        let mut counts = Counts::new();
        for call in self.of(pid).filter(|c| c.api == api) {
            *counts.entry(call.name.to_string()).or_default() += 1;
        }
        counts
    }

    pub fn by_id(&self) -> HashMap<u64, &Call> {
        self.calls.iter().map(|c| (c.id, c)).collect()
    }

    /// The events of one process, in order, with exit statuses.
    pub fn changes(&self, pid: u32) -> Vec<(ProcessChange, Option<i32>)> {
        let of_pid = self.processes.iter().filter(|p| p.tgid.0 == pid);
        of_pid.map(|p| (p.change, p.exit_status)).collect()
    }

    /// Live allocations and bytes of one process at the end of the trace.
    pub fn live(&self, pid: u32) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        for call in self.of(pid).filter(|c| crate::ledger::affects_memory(c)) {
            if let Some(allocation) = call.effect.allocation() {
                let replaced = allocation.replaced.map_or(0, |replaced| replaced.bytes);
                let replacing = u64::from(allocation.replaced.is_some());
                (count, bytes) = (count + 1 - replacing, bytes + allocation.bytes - replaced);
            }
            if let Some(freed) = call.effect.freed() {
                (count, bytes) = (count - freed.allocations, bytes - freed.bytes);
            }
        }
        (count, bytes)
    }
}

/// The kind of memory of an allocation, or the direction of a copy.
pub fn kind_of(call: &Call) -> Option<&'static str> {
    let memory = call.effect.allocation().map(|allocation| allocation.kind.as_str());
    memory.or_else(|| call.effect.transfer().map(|transfer| transfer.direction.as_str()))
}

pub fn counts_of(object: &Value) -> Counts {
    let object = object.as_object().unwrap_or_else(|| panic!("no object: {object}"));
    object.iter().map(|(name, n)| (name.clone(), number(n))).collect()
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

pub fn pid_of(printed: &Value) -> u32 {
    u32::try_from(number(&printed["pid"])).unwrap_or_else(|e| panic!("{e}"))
}

/// The CUDA driver functions that these runtime calls call: one each, and no copies.
pub fn inner_counts(calls: &Counts) -> Counts {
    let mut inner = Counts::new();
    for (name, n) in calls {
        if let Some(driver) = gpuprobe_standin::inner_call(name) {
            *inner.entry(driver.to_owned()).or_default() += n;
        }
    }
    inner
}
