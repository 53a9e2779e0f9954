//! Turns what agents report into events: names are resolved, executions are matched with the calls that submitted them.

mod agent_process;

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::agent::{AgentRecord, BatchHeader, Collection};
use gpuprobe_event::{Call, Event, ProcessChange, ProcessEvent, Tgid};

use self::agent_process::AgentProcess;
use super::submission::Submissions;

/// What the agents of all processes report. The caller numbers the events that it gets.
#[derive(Debug, Default)]
pub struct AgentRecords {
    /// When the recording began, by the clock of the agents (`CLOCK_MONOTONIC`).
    origin_ns: u64,
    submissions: Submissions,
    processes: HashMap<Tgid, AgentProcess>,
    without_times: u64,
    /// All calls that returned before this time are known.
    calls_ns: u64,
}

impl AgentRecords {
    /// Processes whose submissions are followed.
    const MOST_PROCESSES: usize = 1 << 12;

    pub fn new(origin_ns: u64) -> Self {
        Self { origin_ns, ..Self::default() }
    }

    /// Looks at what an agent reports before the calls that were read at the same time are taken in: if the agent
    /// collects, all of them wait for executions.
    pub fn announce(&mut self, tgid: Tgid, records: &[AgentRecord]) {
        let is_beginning = |record: &AgentRecord| match record {
            AgentRecord::State(state) => state.collection == Collection::Collecting,
            _ => false,
        };
        if records.iter().any(is_beginning)
            && let Some(process) = self.process_of(tgid)
        {
            process.matcher.expect_executions();
        }
    }

    /// Takes in a call. Calls come in the order of their returns.
    pub fn call(&mut self, call: &Call) {
        let Some(submission) = self.submissions.of(call) else { return };
        if let Some(process) = self.process_of(call.tgid) {
            process.matcher.submitted(submission);
        }
    }

    /// All calls that returned before this time, since the recording began, were taken in or lost.
    pub fn calls_are_known(&mut self, until_ns: u64) {
        self.calls_ns = self.calls_ns.max(until_ns);
    }

    /// Whether so many executions wait that no more should be taken in now.
    pub fn is_full(&self) -> bool {
        self.processes.values().any(AgentProcess::is_full)
    }

    /// Records of calls that returned between these times were lost.
    pub fn lost_calls(&mut self, from_ns: u64, to_ns: u64) {
        self.processes.values_mut().for_each(|process| process.matcher.lost_submissions(from_ns, to_ns));
    }

    /// Takes in a batch of the agent of a process. `now_ns` is the time since the recording began; `demangled` makes
    /// the name of a CUDA kernel readable.
    pub fn batch(
        &mut self,
        (tgid, name): (Tgid, &Arc<str>),
        header: &BatchHeader,
        records: impl IntoIterator<Item = AgentRecord>,
        now_ns: u64,
        demangled: impl Fn(&str) -> String,
    ) -> Vec<Event> {
        let (origin_ns, calls_ns) = (self.origin_ns, self.calls_ns);
        let mut events = Vec::new();
        let Some(process) = self.process_of(tgid) else { return events };
        process.name = Arc::clone(name);
        process.header(header, now_ns);
        for record in records {
            match record {
                AgentRecord::Name { id, text } => process.names.insert(id, &demangled(&text)),
                AgentRecord::Activity(activity) => process.activity(activity, origin_ns, now_ns),
                AgentRecord::Range(range) => process.ranges.push_back((range, now_ns)),
                AgentRecord::State(state) => process.state(tgid, &state, origin_ns, &mut events),
            }
        }
        if process.is_full() {
            process.settle(tgid, origin_ns, Some(u64::MAX), calls_ns, &mut events);
        }
        self.without_times += process.take_without_times();
        events
    }

    /// The executions and ranges that wait no longer for others, or for their names. To be called about every second.
    pub fn settled(&mut self, now_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for (tgid, process) in &mut self.processes {
            process.settle(*tgid, self.origin_ns, Some(now_ns), self.calls_ns, &mut events);
            self.without_times += process.take_without_times();
        }
        events
    }

    /// A process started, exited or runs another program: what it still has waited for is complete.
    pub fn process(&mut self, change: &ProcessEvent) -> Vec<Event> {
        let mut events = Vec::new();
        if change.change != ProcessChange::Start
            && let Some(mut process) = self.processes.remove(&change.tgid)
        {
            process.flush(change.tgid, self.origin_ns, &mut events);
            self.without_times += process.take_without_times();
            self.submissions.clear(change.tgid);
        }
        events
    }

    /// Everything that waits. The recording ends.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for (tgid, process) in &mut self.processes {
            process.flush(*tgid, self.origin_ns, &mut events);
            self.without_times += process.take_without_times();
        }
        events
    }

    /// Executions that are not among the events, because CUPTI could not say when they were.
    pub fn without_times(&self) -> u64 {
        self.without_times
    }

    fn process_of(&mut self, tgid: Tgid) -> Option<&mut AgentProcess> {
        let has_room = self.processes.len() < Self::MOST_PROCESSES;
        (has_room || self.processes.contains_key(&tgid)).then(|| self.processes.entry(tgid).or_default())
    }
}

#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
