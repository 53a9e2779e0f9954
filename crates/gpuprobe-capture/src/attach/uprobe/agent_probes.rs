//! Probes on the agents inside of processes, requests to them, and probes that notice other users of CUPTI.

use std::collections::HashMap;

use gpuprobe_discover::{AgentLibrary, CuptiLibrary, FileId, ProcessFile};
use gpuprobe_event::Tgid;
use gpuprobe_event::agent::AgentRequest;

use super::library::link;
use super::uprobe_attacher::UprobeAttacher;
use crate::attach::helper::helper_client::{LinkId, Patience};
use crate::attach::helper::request::{ProbedFile, Semaphore};
use crate::error::CaptureError;
use crate::load::probe_programs::agent_program;
use crate::wire::number;

/// Links of probes and requests.
#[derive(Debug, Default)]
pub(super) struct AgentLinks {
    files: HashMap<FileId, LinkId>,
    requests: HashMap<(Tgid, AgentRequest), LinkId>,
}

impl AgentLinks {
    pub(super) fn drain(&mut self) -> Vec<LinkId> {
        // what an agent was asked for ends before its batches cannot be read any more
        let requests = self.requests.drain().map(|(_, link)| link);
        requests.chain(self.files.drain().map(|(_, link)| link)).collect()
    }
}

impl UprobeAttacher {
    /// Reads the batches of an agent from now on.
    pub(crate) fn attach_agent(&mut self, agent: &AgentLibrary) -> Result<(), CaptureError> {
        self.attach_points(&agent.file, vec![(agent.emit, number::AGENT_EMIT.into())])
    }

    /// Notices when a program begins to use this file of CUPTI.
    pub(crate) fn attach_cupti(&mut self, cupti: &CuptiLibrary) -> Result<(), CaptureError> {
        let points = cupti.begins.iter().map(|offset| (*offset, number::AGENT_CUPTI.into()));
        // a perf event is for one function
        let most = if agent_program(self.tier()).1.is_perf() { 1 } else { usize::MAX };
        self.attach_points(&cupti.file, points.take(most).collect())
    }

    fn attach_points(&mut self, file: &ProcessFile, points: Vec<(u64, u64)>) -> Result<(), CaptureError> {
        if points.is_empty() || self.agents.files.contains_key(&file.id) {
            return Ok(());
        }
        let (name, kind) = *agent_program(self.tier());
        let mut patience = Patience::new(true, self.tier());
        let link = link(&mut self.helper, name, kind, &probed(file), points, &mut patience)?;
        self.agents.files.insert(file.id, link);
        Ok(())
    }

    /// Asks the agent of a process for something, until it is withdrawn.
    pub(crate) fn request(
        &mut self,
        tgid: Tgid,
        agent: &AgentLibrary,
        request: AgentRequest,
    ) -> Result<(), CaptureError> {
        let Some(point) =
            agent.point(request).filter(|_| !self.agents.requests.contains_key(&(tgid, request)))
        else {
            return Ok(());
        };
        let file = probed(&agent.file);
        let path = file.path.clone();
        let raised = self.helper.raise(Semaphore { file, tgid, point });
        let link = raised.map_err(|source| CaptureError::Attach { path, source: source.into() })?;
        self.agents.requests.insert((tgid, request), link);
        Ok(())
    }

    /// Withdraws requests, without waiting for it.
    pub(crate) fn withdraw(&mut self, tgid: Tgid, requests: &[AgentRequest]) {
        let links = requests.iter().filter_map(|request| self.agents.requests.remove(&(tgid, *request)));
        self.helper.detach_later(links.collect());
    }

    /// Withdraws everything that agents were asked for, and waits for it.
    pub(crate) fn withdraw_all(&mut self) {
        let links = self.agents.requests.drain().map(|(_, link)| link).collect();
        self.helper.detach(links);
    }
}

fn probed(file: &ProcessFile) -> ProbedFile {
    ProbedFile { path: file.path.clone(), expected: Some(file.opened) }
}
