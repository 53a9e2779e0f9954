//! Adds what GPUs executed to the events of a session.

use gpuprobe_analysis::executions::AgentRecords;
use gpuprobe_capture::{AgentContent, AgentReport, Batch, Capture, CaptureError, Clock, Ending};
use gpuprobe_discover::demangled;
use gpuprobe_event::{Event, LossCause, Losses, ProcessChange};

use super::agents::Agents;
use crate::cli::GraphTimes;

/// When agents collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    Always,
    /// So many seconds of every minute.
    Sampled {
        seconds: u64,
    },
}

impl Schedule {
    /// Whether agents collect at this time since the start.
    fn is_on(self, elapsed_ns: u64) -> bool {
        match self {
            Self::Always => true,
            Self::Sampled { seconds } => elapsed_ns / 1_000_000_000 % 60 < seconds,
        }
    }
}

/// Ids of events that do not come from the BPF programs begin here: far above theirs, and exact as numbers of JSON.
const FIRST_ID: u64 = 1 << 52;

/// The agents of a session, and the events made of what they report.
#[derive(Debug)]
pub(crate) struct GpuTimes {
    pub(crate) agents: Agents,
    records: AgentRecords,
    next_id: u64,
    schedule: Schedule,
    clock: Clock,
    /// Calls that were lost up to this time.
    lost_calls: u64,
    losses_read_ns: u64,
}

impl GpuTimes {
    pub(crate) fn new(graphs: GraphTimes, schedule: Schedule, clock: Clock) -> Self {
        Self {
            agents: Agents::new(graphs == GraphTimes::Nodes),
            records: AgentRecords::new(clock.epoch_ns()),
            next_id: FIRST_ID,
            schedule,
            clock,
            lost_calls: 0,
            losses_read_ns: 0,
        }
    }

    /// What was lost, except for what the capture counts.
    pub(crate) fn losses(&self) -> Losses {
        let mut losses = Losses::default();
        losses.add(LossCause::LostExecution, self.records.without_times());
        losses.add(LossCause::LostAgentBatch, self.agents.unfinished());
        losses
    }

    /// Adds what agents reported since the last time, and lets them collect when it is time.
    pub(crate) fn add_to(&mut self, batch: &mut Batch, capture: &mut Capture) -> Result<(), CaptureError> {
        self.agents.set_wanted(self.schedule.is_on(self.clock.elapsed_ns()), capture);
        // while executions wait for calls that are still to be read, no more are taken in
        let reports = if self.records.is_full() { Vec::new() } else { self.agents.take(capture)? };
        self.add(reports, batch, capture)
    }

    /// Asks all agents to stop, and returns their last reports.
    pub(crate) fn stop(&mut self, capture: &mut Capture) -> Result<Vec<AgentReport>, CaptureError> {
        self.agents.stop(capture)
    }

    /// Adds the last reports, and everything that still waited.
    pub(crate) fn add_last(
        &mut self,
        mut reports: Vec<AgentReport>,
        ending: &mut Ending,
        capture: &mut Capture,
    ) -> Result<(), CaptureError> {
        reports.extend(self.agents.take(capture)?);
        self.add(reports, &mut ending.batch, capture)?;
        let last = self.records.finish();
        let last = self.numbered(last);
        ending.batch.calls.extend(last);
        // agents went on until they had stopped
        ending.batch.calls.retain(|event| match event {
            Event::Execution(execution) => execution.start_ns < ending.at_ns,
            Event::Range(range) => range.start_ns < ending.at_ns,
            _ => true,
        });
        Ok(())
    }

    fn add(
        &mut self,
        reports: Vec<AgentReport>,
        batch: &mut Batch,
        capture: &mut Capture,
    ) -> Result<(), CaptureError> {
        let (lost_calls, now_ns) = (capture.losses()?.get(LossCause::RingFull), self.clock.elapsed_ns());
        if lost_calls > self.lost_calls {
            self.records.lost_calls(self.losses_read_ns, now_ns);
        }
        let before_ns = self.losses_read_ns;
        (self.lost_calls, self.losses_read_ns) = (lost_calls, now_ns);
        for AgentReport { tgid, content, .. } in &reports {
            if let AgentContent::Batch(_, records) = content {
                self.records.announce(*tgid, records);
            }
        }
        let mut last_ns = 0;
        for event in &batch.calls {
            if let Event::Call(call) = event {
                self.records.call(call);
                last_ns = last_ns.max(call.start_ns.saturating_add(call.duration_ns().unwrap_or(0)));
            }
        }
        self.records.calls_are_known(if batch.is_drained { before_ns } else { last_ns });
        let mut events = Vec::new();
        for AgentReport { tgid, content, .. } in reports {
            let AgentContent::Batch(header, records) = content else { continue };
            let Some(name) = self.agents.name(tgid) else { continue };
            events.extend(self.records.batch((tgid, name), &header, records, now_ns, demangled));
        }
        events.extend(self.records.settled(now_ns));
        for (_, process) in &batch.processes {
            events.extend(self.records.process(process));
            if process.change != ProcessChange::Start {
                self.agents.forget(process.tgid, capture);
            }
        }
        let events = self.numbered(events);
        batch.calls.extend(events);
        Ok(())
    }

    /// Gives each event an id.
    fn numbered(&mut self, mut events: Vec<Event>) -> Vec<Event> {
        for event in &mut events {
            let id = match event {
                Event::Execution(execution) => &mut execution.id,
                Event::Range(range) => &mut range.id,
                Event::Agent(state) => &mut state.id,
                _ => continue,
            };
            *id = self.next_id;
            self.next_id += 1;
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_collect_in_the_first_seconds_of_every_minute() {
        let sampled = Schedule::Sampled { seconds: 3 };
        let seconds = [0, 2, 3, 59, 60, 62, 63].map(|second| sampled.is_on(second * 1_000_000_000));
        assert_eq!(seconds, [true, true, false, false, true, true, false]);
        assert!(Schedule::Always.is_on(u64::MAX));
    }
}
