//! Names for the processes of several hosts: the host and the rank.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Event, ProcessChange, Rank, Tgid};

use super::clocks::Origin;
use crate::recording::collectives::Collectives;

/// Processes with a name. Others keep their own.
const MOST: usize = 1 << 16;

/// What a process is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessName {
    /// Its number in the job.
    pub rank: Option<u32>,
    /// `node1 rank 3`.
    pub name: Arc<str>,
    /// `node1 rank 3 (pid 4711)`.
    pub with_pid: Arc<str>,
}

/// Collects the names of all processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// The rank from the environment, and the own name.
    known: HashMap<Tgid, (Option<Rank>, Arc<str>)>,
}

impl Names {
    pub(super) fn feed(&mut self, event: &Event) {
        let (tgid, name) = match event {
            Event::Call(call) => (call.tgid, &call.process),
            Event::Process(change) => (change.tgid, &change.process),
            Event::Execution(execution) => (execution.tgid, &execution.process),
            Event::Range(range) => (range.tgid, &range.process),
            Event::OutOfMemory(event) => (event.tgid, &event.process),
            Event::Agent(state) => (state.tgid, &state.process),
            Event::Loss(_) | Event::Xid(_) => return,
        };
        if self.known.len() >= MOST && !self.known.contains_key(&tgid) {
            return;
        }
        let known = self.known.entry(tgid).or_insert_with(|| (None, Arc::clone(name)));
        if let Event::Process(change) = event
            && change.change != ProcessChange::Exit
        {
            // a fork has the name and the environment of its parent until it calls exec
            *known = (change.rank.clone(), Arc::clone(name));
        }
    }

    /// The names of all processes. A process whose environment has no rank of the whole job, or of which that was not
    /// recorded, has the rank of its largest communicator.
    pub(super) fn finish(self, origins: &[Origin], collectives: &Collectives) -> HashMap<Tgid, ProcessName> {
        let mut in_communicator: HashMap<Tgid, (Option<u32>, u32)> = HashMap::new();
        for communicator in &collectives.communicators {
            for rank in &communicator.ranks {
                let Some(number) = rank.rank else { continue };
                let known = in_communicator.entry(rank.pid).or_insert((communicator.size, number));
                if known.0 < communicator.size {
                    *known = (communicator.size, number);
                }
            }
        }
        let named = |(tgid, (rank, process)): (Tgid, (Option<Rank>, Arc<str>))| {
            let host = match origins.get(tgid.recording()) {
                Some(origin) if !origin.host.is_empty() => origin.host.clone(),
                _ => format!("trace {}", tgid.recording() + 1),
            };
            let in_communicator = in_communicator.get(&tgid).map(|(_, number)| *number);
            let of_job = rank.as_ref().filter(|rank| !rank.is_local()).map(|rank| rank.number);
            let number = of_job.or(in_communicator);
            let name = match (number, &rank) {
                (Some(number), _) => format!("{host} rank {number}"),
                (None, Some(local)) => format!("{host} local rank {}", local.number),
                (None, None) => format!("{host} {process}"),
            };
            let with_pid = Arc::from(format!("{name} (pid {tgid})"));
            (tgid, ProcessName { rank: number, name: Arc::from(name), with_pid })
        };
        self.known.into_iter().map(named).collect()
    }
}
