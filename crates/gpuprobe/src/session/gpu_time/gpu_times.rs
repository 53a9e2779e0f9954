//! Adds what GPUs executed to the events of a session.

use gpuprobe_capture::{AgentReport, Batch, Capture, CaptureError, Clock, Ending};
use gpuprobe_event::{Event, ProcessChange};

use super::agents::Agents;
use super::executions::Executions;
use crate::cli::GraphTimes;

/// The agents of a session, and the events made of what they report.
#[derive(Debug)]
pub(crate) struct GpuTimes {
    pub(crate) agents: Agents,
    executions: Executions,
}

impl GpuTimes {
    pub(crate) fn new(graphs: GraphTimes, clock: Clock) -> Self {
        Self { agents: Agents::new(graphs == GraphTimes::Nodes), executions: Executions::new(clock) }
    }

    /// Adds what agents reported since the last time.
    pub(crate) fn add_to(&mut self, batch: &mut Batch, capture: &mut Capture) -> Result<(), CaptureError> {
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
