//! A batch of events taken from the rings.

use std::collections::HashSet;

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Call, Event, Outcome, ProcessChange, ProcessEvent, Tgid, XidEvent};

/// The events since the last batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// Processes that started, executed a program or exited, with the keys of their counters.
    pub processes: Vec<(ProcessKey, ProcessEvent)>,
    pub calls: Vec<Event>,
    /// Processes that are paused until their probes are attached.
    pub paused: Vec<PausedProcess>,
    /// GPU errors.
    pub xids: Vec<XidEvent>,
    /// First calls of processes that are known already: their counters start.
    pub first_calls: Vec<(ProcessKey, ProcessEvent)>,
    /// How many stacks came from unknown call sites. More come until these are known.
    pub stacks: usize,
    /// Whether the ring was empty afterwards.
    pub is_drained: bool,
}

/// The last batch.
#[derive(Debug)]
pub struct Ending {
    /// The last events, and paused processes.
    pub batch: Batch,
    /// Calls that were open then, outer ones before those made inside them.
    pub open: Vec<Call>,
    /// When observation ended, in nanoseconds since the start.
    pub at_ns: u64,
}

impl Ending {
    /// All events, with the open calls as unfinished ones.
    pub fn into_batch(mut self) -> Batch {
        self.batch.calls.extend(self.open.into_iter().map(|call| Event::Call(Box::new(call))));
        self.batch
    }
}

/// The answer to a paused process. The numbers are those of the BPF programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// It is being handled; without this answer it does not wait long.
    Seen = 0,
    /// It must stop itself, because probes cannot be attached while it waits. It asks again when it has stopped.
    Stop = 1,
    /// It may continue. If it is stopped it also needs SIGCONT.
    Continue = 2,
}

/// A process that is paused until the libraries it has mapped are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PausedProcess {
    pub tgid: Tgid,
    /// It is stopped by a signal, and needs SIGCONT to continue.
    pub stopped: bool,
    /// Probes can be attached while it waits like this; otherwise it must be asked to stop first.
    pub may_attach: bool,
    /// It has mapped only its program and its loader yet.
    pub at_exec: bool,
    /// Identifies this wait among all waits of the process.
    pub ticket: u32,
}

impl Batch {
    /// Takes out process events that are later than the last call: earlier calls of these processes are still in the
    /// ring, and must come before an exit.
    pub(crate) fn take_later_processes(&mut self) -> Vec<(ProcessKey, ProcessEvent)> {
        let last_ns = self.calls.last().map_or(0, Event::ended_ns);
        self.processes.extract_if(.., |(_, process)| process.at_ns > last_ns).collect()
    }

    /// Takes out the process events from the first exit or exec after this time on: the ring of calls was read before
    /// that of processes, so the last calls of these processes may have come in between.
    pub(crate) fn take_exits_after(&mut self, at_ns: u64) -> Vec<(ProcessKey, ProcessEvent)> {
        let is_end = |process: &ProcessEvent| process.change != ProcessChange::Start && process.at_ns > at_ns;
        let first = self.processes.iter().position(|(_, process)| is_end(process));
        first.map(|first| self.processes.split_off(first)).unwrap_or_default()
    }

    /// Removes what happened after observation ended. BPF programs that had begun before that may have sent it.
    pub(crate) fn remove_after(&mut self, at_ns: u64) {
        self.calls.retain(|event| starts_at(event) < at_ns);
        self.processes.retain(|(_, process)| process.at_ns < at_ns);
        self.first_calls.retain(|(_, process)| process.at_ns < at_ns);
        self.xids.retain(|xid| xid.at_ns < at_ns);
    }

    /// Removes the records of how calls ended that are known already.
    pub(crate) fn remove_ended(&mut self, known: &[Call]) {
        let known: HashSet<_> = known.iter().map(|call| call.id).collect();
        let is_end = |call: &Call| !matches!(call.outcome, Outcome::Begun | Outcome::Unfinished);
        let is_known =
            |event: &Event| matches!(event, Event::Call(call) if is_end(call) && known.contains(&call.id));
        self.calls.retain(|event| !is_known(event));
    }

    /// Takes out the calls that were not seen to return although their process had not exited.
    pub(crate) fn take_open(&mut self) -> Vec<Call> {
        let has_exited = |call: &Call| {
            let is_end = |process: &ProcessEvent| process.change != ProcessChange::Start;
            self.processes.iter().any(|(_, process)| process.tgid == call.tgid && is_end(process))
        };
        let is_open = |event: &mut Event| match event {
            Event::Call(call) => call.outcome == Outcome::Unfinished && !has_exited(call),
            _ => false,
        };
        let open = self.calls.extract_if(.., is_open).filter_map(|event| match event {
            Event::Call(call) => Some(*call),
            _ => None,
        });
        open.collect()
    }

    /// All events, in the order in which they ended.
    pub fn into_events(self) -> Vec<Event> {
        let mut events = self.calls;
        events.extend(self.processes.into_iter().map(|(_, process)| Event::Process(process)));
        events.extend(self.xids.into_iter().map(|xid| Event::Xid(Box::new(xid))));
        // cached keys: the times are far apart in memory, and the events are large, so each is read and moved once
        events.sort_by_cached_key(Event::ended_ns);
        events
    }
}

fn starts_at(event: &Event) -> u64 {
    match event {
        Event::Call(call) => call.start_ns,
        Event::Execution(execution) => execution.start_ns,
        Event::Range(range) => range.start_ns,
        _ => Event::ended_ns(event),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use gpuprobe_event::{Api, Class, Effect, Tid};

    use super::*;
    use crate::wire::number;

    fn call(start_ns: u64, duration_ns: u64) -> Event {
        Event::Call(Box::new(Call {
            id: start_ns,
            parent: None,
            depth: 0,
            nested: false,
            weight: 1,
            start_ns,
            outcome: Outcome::Returned { value: 0, duration_ns },
            return_probed: true,
            tgid: Tgid(1),
            tid: Tid(1),
            process: "a".into(),
            api: Api::Runtime,
            name: Cow::Borrowed("cudaFree"),
            class: Class::Free,
            status: Some(0),
            error: None,
            args: None,
            stream: None,
            effect: Effect::None,
            driver: None,
            site: None,
            stack: None,
        }))
    }

    fn exit(at_ns: u64) -> (ProcessKey, ProcessEvent) {
        let process = ProcessEvent {
            id: at_ns,
            at_ns,
            change: ProcessChange::Exit,
            tgid: Tgid(1),
            tid: Tid(1),
            process: "a".into(),
            parent: None,
            ns_pid: None,
            container: None,
            exit_status: Some(0),
            rank: None,
            live: Vec::new(),
        };
        (ProcessKey { tgid: Tgid(1), instance: 1 }, process)
    }

    fn times(batch: Batch) -> Vec<u64> {
        batch.into_events().iter().map(Event::ended_ns).collect()
    }

    #[test]
    fn events_are_in_the_order_in_which_they_ended() {
        let calls = vec![call(10, 5), call(1, 13), call(20, 1), call(2, 100)];
        let batch = Batch { calls, processes: vec![exit(18), exit(200)], ..Batch::default() };
        assert_eq!(times(batch), [14, 15, 18, 21, 102, 200]);
    }

    #[test]
    fn an_exit_is_deferred_until_the_calls_before_it_are_read() {
        let mut batch =
            Batch { calls: vec![call(10, 5)], processes: vec![exit(15), exit(16)], ..Batch::default() };
        assert_eq!(batch.take_later_processes(), [exit(16)]);
        assert_eq!(times(batch), [15, 15]);
        let mut none = Batch { processes: vec![exit(1)], ..Batch::default() };
        assert_eq!(none.take_later_processes(), [exit(1)]);
    }

    #[test]
    fn an_exit_while_the_ring_was_emptied_is_deferred_and_so_is_what_follows_it() {
        let start = |at_ns| {
            let (key, process) = exit(at_ns);
            (key, ProcessEvent { change: ProcessChange::Start, exit_status: None, ..process })
        };
        let processes = vec![exit(3), start(12), exit(15), start(16)];
        let mut batch = Batch { processes, ..Batch::default() };
        assert_eq!(batch.take_exits_after(10), [exit(15), start(16)]);
        assert_eq!(batch.processes, [exit(3), start(12)]);
        assert_eq!(batch.take_exits_after(10), []);
    }

    #[test]
    fn calls_are_open_at_the_end_unless_their_process_had_exited() {
        let unfinished = |tgid: u32| match call(5, 0) {
            Event::Call(call) => {
                Event::Call(Box::new(Call { outcome: Outcome::Unfinished, tgid: Tgid(tgid), ..*call }))
            }
            other => other,
        };
        let mut batch = Batch {
            calls: vec![call(1, 2), unfinished(1), unfinished(2)],
            processes: vec![exit(9)],
            ..Batch::default()
        };
        batch.remove_after(10);
        let open: Vec<_> = batch.take_open().iter().map(|call| call.tgid.0).collect();
        assert_eq!((open, batch.calls.len()), (vec![2], 2));
        batch.remove_after(5);
        assert_eq!((batch.calls.len(), batch.processes.len()), (1, 0), "later events are removed");
    }

    #[test]
    fn launches_that_are_known_already_are_taken_once() {
        let mut batch = Batch { calls: vec![call(1, 2), call(5, 2), call(9, 2)], ..Batch::default() };
        let known = match call(5, 2) {
            Event::Call(call) => *call,
            other => panic!("{other:?}"),
        };
        batch.remove_ended(&[known]);
        assert_eq!(times(batch), [3, 11]);
    }

    #[test]
    fn answers_have_the_numbers_of_the_bpf_programs() {
        let answers = [Answer::Seen, Answer::Stop, Answer::Continue].map(|answer| answer as u64);
        assert_eq!(answers, [number::PAUSE_SEEN, number::PAUSE_STOP, number::PAUSE_ANSWERED].map(u64::from));
    }
}
