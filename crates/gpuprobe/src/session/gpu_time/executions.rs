//! Turns what agents report into events.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_capture::{AgentContent, AgentReport, Clock};
use gpuprobe_discover::demangled;
use gpuprobe_event::agent::{Activity, ActivityKind, AgentRecord, AgentState, RangeRecord};
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{AgentEvent, Event, Execution, ExecutionKind, RangeEvent, Tgid, Tid};

/// Ids of events that do not come from the BPF programs begin here: far above theirs, and exact as numbers of JSON.
const FIRST_ID: u64 = 1 << 52;

/// Makes events of what agents report.
#[derive(Debug)]
pub(crate) struct Executions {
    clock: Clock,
    names: HashMap<(Tgid, u64), Arc<str>>,
    processes: HashMap<Tgid, Arc<str>>,
    next_id: u64,
}

impl Executions {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, names: HashMap::new(), processes: HashMap::new(), next_id: FIRST_ID }
    }

    pub(crate) fn events(&mut self, reports: Vec<AgentReport>) -> Vec<Event> {
        let mut events = Vec::new();
        for AgentReport { tgid, content, .. } in reports {
            let AgentContent::Records(records) = content else { continue };
            for record in records {
                match record {
                    AgentRecord::Name { id, text } => {
                        self.names.insert((tgid, id), Arc::from(demangled(&text)));
                    }
                    AgentRecord::Activity(activity) => events.push(self.execution(tgid, &activity)),
                    AgentRecord::State(state) => events.push(self.state(tgid, &state)),
                    AgentRecord::Range(range) => events.push(self.range(tgid, &range)),
                }
            }
        }
        events
    }

    fn execution(&mut self, tgid: Tgid, activity: &Activity) -> Event {
        let kind = match activity.kind {
            ActivityKind::Kernel => ExecutionKind::Kernel {
                name: self.names.get(&(tgid, activity.name)).cloned(),
                grid: activity.grid,
                block: activity.block,
                shared_bytes: activity.shared_bytes,
            },
            ActivityKind::Copy => {
                ExecutionKind::Copy { direction: direction(activity.copy_kind), bytes: activity.bytes }
            }
            ActivityKind::Memset => ExecutionKind::Memset { bytes: activity.bytes },
            ActivityKind::Graph => ExecutionKind::Graph,
        };
        Event::Execution(Box::new(Execution {
            id: self.new_id(),
            tgid,
            process: self.process(tgid),
            kind,
            start_ns: self.clock.since_start(activity.start_ns),
            end_ns: self.clock.since_start(activity.end_ns),
            gpu: activity.device,
            context: activity.context,
            stream: activity.stream,
            correlation: activity.correlation,
            graph: Some(activity.graph).filter(|graph| *graph != 0),
            submission: None,
        }))
    }

    fn state(&mut self, tgid: Tgid, state: &AgentState) -> Event {
        Event::Agent(Box::new(AgentEvent {
            id: self.new_id(),
            tgid,
            tid: Tid(state.tid),
            process: self.process(tgid),
            begin_ns: self.clock.since_start(state.begin_ns),
            end_ns: self.clock.since_start(state.end_ns),
            collection: state.collection,
            graphs: state.graphs,
            code: state.code,
            text: Arc::from(state.text.as_str()),
        }))
    }

    fn range(&mut self, tgid: Tgid, range: &RangeRecord) -> Event {
        let name = |id: u64| self.names.get(&(tgid, id)).cloned();
        let (domain, name) = (name(range.domain).filter(|_| range.domain != 0), name(range.name));
        Event::Range(Box::new(RangeEvent {
            id: self.new_id(),
            tgid,
            tid: Tid(range.tid),
            process: self.process(tgid),
            kind: range.kind,
            start_ns: self.clock.since_start(range.start_ns),
            end_ns: self.clock.since_start(range.end_ns),
            domain,
            name: name.unwrap_or_default(),
            color: range.color,
        }))
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn process(&mut self, tgid: Tgid) -> Arc<str> {
        let name =
            || std::fs::read_to_string(format!("/proc/{tgid}/comm")).unwrap_or_else(|_| "?".to_owned());
        Arc::clone(self.processes.entry(tgid).or_insert_with(|| Arc::from(name().trim_end())))
    }

    /// Forgets an exited process.
    pub(crate) fn forget(&mut self, tgid: Tgid) {
        self.processes.remove(&tgid);
        self.names.retain(|(of, _), _| *of != tgid);
    }
}

/// The direction of `CUpti_ActivityMemcpyKind`. Those between arrays and memory are those of the memory.
fn direction(kind: u8) -> CopyDirection {
    match kind {
        1 | 3 => CopyDirection::HostToDevice,
        2 | 4 => CopyDirection::DeviceToHost,
        5..=8 => CopyDirection::DeviceToDevice,
        9 => CopyDirection::HostToHost,
        10 => CopyDirection::Peer,
        _ => CopyDirection::Unknown,
    }
}
