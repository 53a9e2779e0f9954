//! Adds what GPUs executed to the events of a session.

use gpuprobe_capture::{AgentReport, Batch, Capture, CaptureError, Clock, Ending};
use gpuprobe_event::{Event, ProcessChange};

use super::agents::Agents;
use super::executions::Executions;
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

/// The agents of a session, and the events made of what they report.
#[derive(Debug)]
pub(crate) struct GpuTimes {
    pub(crate) agents: Agents,
    executions: Executions,
    schedule: Schedule,
    clock: Clock,
}

impl GpuTimes {
    pub(crate) fn new(graphs: GraphTimes, schedule: Schedule, clock: Clock) -> Self {
        let agents = Agents::new(graphs == GraphTimes::Nodes);
        Self { agents, executions: Executions::new(clock), schedule, clock }
    }

    /// Adds what agents reported since the last time, and lets them collect when it is time.
    pub(crate) fn add_to(&mut self, batch: &mut Batch, capture: &mut Capture) -> Result<(), CaptureError> {
        self.agents.set_wanted(self.schedule.is_on(self.clock.elapsed_ns()), capture);
        let reports = self.agents.take(capture)?;
        self.add(reports, batch);
        for (_, process) in &batch.processes {
            if process.change != ProcessChange::Start {
                self.agents.forget(process.tgid, capture);
                self.executions.forget(process.tgid);
            }
        }
        Ok(())
    }

    /// Asks all agents to stop, and returns their last reports.
    pub(crate) fn stop(&mut self, capture: &mut Capture) -> Result<Vec<AgentReport>, CaptureError> {
        self.agents.stop(capture)
    }

    /// Adds the last reports.
    pub(crate) fn add_last(
        &mut self,
        reports: Vec<AgentReport>,
        ending: &mut Ending,
        capture: &mut Capture,
    ) -> Result<(), CaptureError> {
        self.add(reports, &mut ending.batch);
        self.add_to(&mut ending.batch, capture)?;
        // agents went on until they had stopped
        ending.batch.calls.retain(|event| match event {
            Event::Execution(execution) => execution.start_ns < ending.at_ns,
            Event::Range(range) => range.start_ns < ending.at_ns,
            _ => true,
        });
        Ok(())
    }

    fn add(&mut self, reports: Vec<AgentReport>, batch: &mut Batch) {
        batch.calls.extend(self.executions.events(reports));
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
