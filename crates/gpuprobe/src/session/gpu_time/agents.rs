//! The agents inside of processes: finds them, asks them to collect, and makes them let go of CUPTI when something else
//! needs it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuprobe_capture::{AgentContent, AgentReport, Capture, CaptureError};
use gpuprobe_discover::{AgentLibrary, gpu_time_libraries};
use gpuprobe_event::agent::{AgentRecord, AgentRequest, Collection};
use gpuprobe_event::{Tgid, Tid};
use gpuprobe_output::units::printable;

use crate::terminal::notes::note;

const PROC: &str = "/proc";
const MOST_REPORTED: usize = 64;
/// How long agents may take for their last records.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// The agents of the observed processes.
#[derive(Debug)]
pub(crate) struct Agents {
    /// Record each node of a CUDA graph.
    nodes: bool,
    /// Whether agents are asked to collect now.
    is_wanted: bool,
    processes: HashMap<Tgid, Agent>,
    /// Problems that were reported. Many processes may have the same.
    reported: HashSet<String>,
    /// Agents that did not stop in time, so that their last records are missing.
    unfinished: u64,
}

#[derive(Debug)]
struct Agent {
    library: AgentLibrary,
    /// The name of the process. Its last reports may be read when it has exited.
    name: Arc<str>,
    /// Its thread, once it has reported.
    tid: Option<Tid>,
    /// What it does, once it has reported.
    collection: Option<Collection>,
    has_let_go: bool,
}

impl Agents {
    pub(crate) fn new(nodes: bool) -> Self {
        Self { nodes, is_wanted: true, processes: HashMap::new(), reported: HashSet::new(), unfinished: 0 }
    }

    /// The name of a process whose agent was found.
    pub(crate) fn name(&self, tgid: Tgid) -> Option<&Arc<str>> {
        self.processes.get(&tgid).map(|agent| &agent.name)
    }

    /// Agents whose last records are missing.
    pub(crate) fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Asks all agents to collect, or not to.
    pub(crate) fn set_wanted(&mut self, is_wanted: bool, capture: &mut Capture) {
        if self.is_wanted == is_wanted {
            return;
        }
        self.is_wanted = is_wanted;
        for (tgid, agent) in &mut self.processes {
            if !is_wanted {
                capture.withdraw(*tgid, &AgentRequest::ALL);
                agent.has_let_go = false;
            } else if let Err(error) = ask(*tgid, &agent.library, self.nodes, capture) {
                note!("gpuprobe: no GPU times of process {tgid}: {error:#}");
            }
        }
    }

    /// Whether a process has an agent that was not asked yet.
    pub(crate) fn has_new(&self, tgid: Tgid) -> bool {
        !self.processes.contains_key(&tgid)
            && gpu_time_libraries(Path::new(PROC), tgid.0).is_ok_and(|found| found.agent.is_some())
    }

    /// Asks the agent of a process to collect, if it has one.
    pub(crate) fn consider(&mut self, tgid: Tgid, capture: &mut Capture) {
        // the process may have exited
        let Ok(found) = gpu_time_libraries(Path::new(PROC), tgid.0) else { return };
        if let Some(problem) = found.problem {
            let has_room = self.reported.len() < MOST_REPORTED;
            if has_room && self.reported.insert(problem.clone()) {
                note!("gpuprobe: no GPU times of process {tgid}: {problem}");
            }
        }
        let Some(library) = found.agent else { return };
        for cupti in &found.cuptis {
            if let Err(error) = capture.attach_cupti(cupti) {
                note!("gpuprobe: other users of CUPTI in process {tgid} are not noticed: {error:#}");
            }
        }
        if self.processes.contains_key(&tgid) {
            return;
        }
        let asked = match self.is_wanted {
            true => ask(tgid, &library, self.nodes, capture),
            false => capture.attach_agent(&library),
        };
        if let Err(error) = asked {
            note!("gpuprobe: no GPU times of process {tgid}: {error:#}");
            return;
        }
        let agent = Agent { library, name: name_of(tgid), tid: None, collection: None, has_let_go: false };
        self.processes.insert(tgid, agent);
    }

    /// Takes what agents reported.
    pub(crate) fn take(&mut self, capture: &mut Capture) -> Result<Vec<AgentReport>, CaptureError> {
        let reports = capture.take_agent_reports()?;
        for report in &reports {
            let Some(agent) = self.processes.get_mut(&report.tgid) else { continue };
            match &report.content {
                AgentContent::Batch(_, records) => agent.note(report.tgid, records),
                AgentContent::UsesCupti => agent.make_let_go(report, capture)?,
            }
        }
        Ok(reports)
    }

    /// Asks all agents to stop, and returns their last reports.
    pub(crate) fn stop(&mut self, capture: &mut Capture) -> Result<Vec<AgentReport>, CaptureError> {
        capture.withdraw_all();
        let begin = Instant::now();
        let mut reports = self.take(capture)?;
        while self.processes.iter().any(|(tgid, agent)| agent.is_collecting() && is_running(*tgid))
            && begin.elapsed() < STOP_PATIENCE
        {
            capture.rest(Duration::from_millis(5));
            reports.extend(self.take(capture)?);
        }
        for (tgid, _) in
            self.processes.iter().filter(|(tgid, agent)| agent.is_collecting() && is_running(**tgid))
        {
            self.unfinished += 1;
            note!(
                "gpuprobe: the last GPU times of process {tgid} are missing: its agent did not stop in time"
            );
        }
        Ok(reports)
    }

    /// The process has exited or executes another program.
    pub(crate) fn forget(&mut self, tgid: Tgid, capture: &mut Capture) {
        if self.processes.remove(&tgid).is_some() {
            capture.withdraw(tgid, &AgentRequest::ALL);
            capture.forget_agent(tgid);
        }
    }
}

/// Asks the agent of a process to collect.
fn ask(tgid: Tgid, library: &AgentLibrary, nodes: bool, capture: &mut Capture) -> Result<(), CaptureError> {
    capture.attach_agent(library)?;
    if nodes {
        capture.request(tgid, library, AgentRequest::Nodes)?;
    }
    capture.request(tgid, library, AgentRequest::Collect)
}

impl Agent {
    fn note(&mut self, tgid: Tgid, records: &[AgentRecord]) {
        let states = records.iter().filter_map(|record| match record {
            AgentRecord::State(state) => Some(state),
            _ => None,
        });
        for state in states {
            self.tid = Some(Tid(state.tid));
            // the agent sends its state again and again
            let is_new = self.collection.replace(state.collection) != Some(state.collection);
            if is_new && matches!(state.collection, Collection::Refused | Collection::Failed) {
                note!("gpuprobe: no GPU times of process {tgid}: {}", printable(&state.text));
            }
        }
    }

    fn is_collecting(&self) -> bool {
        self.collection == Some(Collection::Collecting)
    }

    /// Something else in the process begins to use CUPTI, which serves one user only.
    fn make_let_go(&mut self, report: &AgentReport, capture: &mut Capture) -> Result<(), CaptureError> {
        // the agent itself calls these functions too, before it has reported its thread or in it
        let is_own = self.tid.is_none_or(|own| own == report.tid);
        if is_own || self.has_let_go || !self.is_collecting() {
            return Ok(());
        }
        self.has_let_go = true;
        capture.request(report.tgid, &self.library, AgentRequest::LetGo)?;
        note!(
            "gpuprobe: process {} uses CUPTI itself now, as a profiler does: its GPU times end here",
            report.tgid
        );
        Ok(())
    }
}

fn name_of(tgid: Tgid) -> Arc<str> {
    let name = std::fs::read_to_string(Path::new(PROC).join(tgid.to_string()).join("comm"));
    Arc::from(name.as_deref().map_or("?", str::trim_end))
}

fn is_running(tgid: Tgid) -> bool {
    Path::new(PROC).join(tgid.to_string()).exists()
}
