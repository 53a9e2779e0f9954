//! What comes out of the kernel in one look.

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Event, ProcessEvent, Tgid};

/// What came since the last look.
#[derive(Debug, Default)]
pub struct Batch {
    /// Processes that began, changed their program or ended, with the keys of their counters.
    pub processes: Vec<(ProcessKey, ProcessEvent)>,
    /// Calls.
    pub calls: Vec<Event>,
    /// Processes that wait for their probes.
    pub holds: Vec<Hold>,
    /// First calls of processes that were told of before: their counters begin.
    pub first_calls: Vec<(ProcessKey, ProcessEvent)>,
    /// Stacks of allocations by ways that were not known. More of them come until they are.
    pub stacks: usize,
}

/// How far user space is with a process that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// It will be dealt with; without this it does not wait long.
    Seen = 0,
    /// It must stop, for probes cannot be attached while it waits; it asks again when it has.
    Stop = 1,
    /// It may go on. One that is stopped needs SIGCONT as well.
    GoOn = 2,
}

/// A process that waits until what it has mapped is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which process.
    pub tgid: Tgid,
    /// It has been stopped by a signal, and needs SIGCONT to go on.
    pub stopped: bool,
    /// It waits in a way that lets probes be attached; otherwise it has to be told to stop first.
    pub may_attach: bool,
    /// Nothing but its program and its loader is mapped yet.
    pub at_exec: bool,
    /// Which of all waits this is.
    pub ticket: u32,
}

impl Batch {
    /// Everything that happened, in the order in which it was over.
    pub fn into_events(self) -> Vec<Event> {
        let mut events = self.calls;
        events.extend(self.processes.into_iter().map(|(_, process)| Event::Process(process)));
        // the times lie far apart in memory, and the events are large: each is looked at and moved once
        events.sort_by_cached_key(happened_at);
        events
    }
}

/// When an event was over, for those that take time.
fn happened_at(event: &Event) -> u64 {
    match event {
        Event::Call(call) => call.start_ns + call.duration_ns().unwrap_or(0),
        Event::Process(process) => process.at_ns,
        Event::Loss(loss) => loss.at_ns,
    }
}
