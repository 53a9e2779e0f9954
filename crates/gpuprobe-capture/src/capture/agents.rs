//! Agents inside of processes.

use gpuprobe_discover::{AgentLibrary, CuptiLibrary};
use gpuprobe_event::Tgid;
use gpuprobe_event::agent::AgentRequest;

use super::Capture;
use crate::error::CaptureError;
use crate::ring::agent_ring::{AgentReport, AgentRing};

impl Capture {
    /// Reads the batches of an agent from now on. Needs [`crate::CaptureConfig::gpu_time`].
    pub fn attach_agent(&mut self, agent: &AgentLibrary) -> Result<(), CaptureError> {
        self.attacher.uprobes.attach_agent(agent)
    }

    /// Reports from now on when a program begins to use this file of CUPTI.
    pub fn attach_cupti(&mut self, cupti: &CuptiLibrary) -> Result<(), CaptureError> {
        self.attacher.uprobes.attach_cupti(cupti)
    }

    /// Asks the agent of a process for something until it is withdrawn, or until gpuprobe ends.
    pub fn request(
        &mut self,
        tgid: Tgid,
        agent: &AgentLibrary,
        request: AgentRequest,
    ) -> Result<(), CaptureError> {
        if let Some(agents) = &self.agents {
            agents.watch(tgid);
        }
        self.attacher.uprobes.request(tgid, agent, request)
    }

    /// Withdraws requests, without waiting for it.
    pub fn withdraw(&mut self, tgid: Tgid, requests: &[AgentRequest]) {
        self.attacher.uprobes.withdraw(tgid, requests);
    }

    /// Withdraws everything that agents were asked for, and waits for it.
    pub fn withdraw_all(&mut self) {
        self.attacher.uprobes.withdraw_all();
    }

    /// What agents have reported since the last time.
    pub fn take_agent_reports(&self) -> Result<Vec<AgentReport>, CaptureError> {
        self.agents.as_ref().map_or_else(|| Ok(Vec::new()), AgentRing::read)
    }

    /// Forgets the agent of an exited process.
    pub fn forget_agent(&self, tgid: Tgid) {
        if let Some(agents) = &self.agents {
            agents.forget(tgid);
        }
    }
}
