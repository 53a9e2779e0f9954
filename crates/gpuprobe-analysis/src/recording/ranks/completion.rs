//! When collectives had ended on the GPU of a rank, as far as calls and executions show it.
//!
//! The return of `ncclAllReduce` is not the end of the collective: it was only submitted. It has ended when
//!
//! - the CUDA kernel that the call launched has ended, if executions are recorded, or
//! - a wait for its stream returned that began after the collective was submitted, or a query found the stream empty, or
//! - the same for an event that was recorded on its stream afterwards, or for a stream that waits for such an event:
//!   PyTorch waits for the stream of the computation, which waits for the stream of NCCL by an event.
//!
//! Nothing is concluded from calls that failed, from collectives that were captured into a graph, and from waits for a
//! whole GPU in processes with several ranks. What there is no room for is forgotten, so its end is not known.

use std::collections::{HashMap, VecDeque};

use gpuprobe_event::agent::Collection;
use gpuprobe_event::{Call, Class, Event, Execution, Outcome, ProcessChange, Tgid, Tid, catalogue};

use crate::gpu_ops::streams::{of_handle, stream_of};
use crate::recording::collectives::MadeCollective;
use crate::recording::collectives::collective::{function, handle};

const MOST_PROCESSES: usize = 1 << 13;
/// Of one process.
const MOST_STREAMS: usize = 256;
const MOST_EVENTS: usize = 4096;
const MOST_THREADS: usize = 1024;
/// Collectives of one stream that have not ended.
const MOST_OPEN: usize = 4096;
/// Waits of a stream for events.
const MOST_AFTER: usize = 64;
/// Launches of a thread whose outer call has not returned.
const MOST_LAUNCHES: usize = 64;
/// Launches whose execution was not read yet.
const MOST_LAUNCHED: usize = 1 << 16;
/// A shorter wait may have found the collective ended long before.
const SHORT_WAIT_NS: u64 = 10_000;

/// A collective of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Token {
    pub communicator: usize,
    pub member: usize,
    pub place: u64,
}

impl Token {
    pub(super) fn of(made: &MadeCollective) -> Self {
        Self { communicator: made.communicator, member: made.member, place: made.place }
    }
}

/// What became known about a collective of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It began at this time, and not when its function was called: it is part of a group of calls.
    Begun { at_ns: u64 },
    /// It had ended by this time. `waited`: it ended shortly before, because the host waited for it.
    Ended { at_ns: u64, waited: bool },
    /// Its CUDA kernel ran.
    Ran { start_ns: u64, end_ns: u64 },
}

/// All collectives of a rank on one stream up to this one.
#[derive(Clone, Copy, Debug)]
struct Mark {
    stream: u64,
    last: Token,
}

#[derive(Debug, Default)]
struct Stream {
    /// What was submitted to it and has not ended, with the time when it had been submitted.
    open: VecDeque<(u64, Token)>,
    /// What it waits for.
    after: VecDeque<(u64, Mark)>,
}

/// What an event depends on, as of its last record.
#[derive(Debug)]
struct Recorded {
    at_ns: u64,
    marks: Vec<Mark>,
}

#[derive(Debug, Default)]
struct Thread {
    /// Groups of calls that are open.
    groups: u32,
    /// Collectives in the group, with their streams.
    grouped: Vec<(Token, u64)>,
    /// Launches, each with the call that it was made in, and whether it was captured.
    launches: VecDeque<(u64, u64, bool)>,
}

#[derive(Debug, Default)]
struct Process {
    streams: HashMap<u64, Stream>,
    events: HashMap<u64, Recorded>,
    threads: HashMap<Tid, Thread>,
    /// The rank that it has in each communicator.
    members: HashMap<usize, usize>,
    has_several_ranks: bool,
    has_executions: bool,
}

/// Follows the collectives of all processes until they have ended.
#[derive(Debug, Default)]
pub(super) struct Completions {
    processes: HashMap<Tgid, Process>,
    launched: HashMap<u64, Vec<Token>>,
}

impl Completions {
    /// Takes in an event, after [`Self::made`] if it makes a collective.
    pub(super) fn feed(&mut self, event: &Event, out: &mut Vec<(Token, Progress)>) {
        match event {
            Event::Call(call) => self.call(call, out),
            Event::Execution(execution) => self.execution(execution, out),
            Event::Process(change) if change.change != ProcessChange::Start => {
                self.processes.remove(&change.tgid);
            }
            Event::Agent(state) if state.collection == Collection::Collecting => {
                if let Some(process) = self.process(state.tgid) {
                    process.has_executions = true;
                }
            }
            _ => {}
        }
    }

    /// Whether executions of a process are recorded, so that more may become known.
    pub(super) fn has_executions(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.has_executions)
    }

    /// A call made a collective.
    pub(super) fn made(&mut self, call: &Call, token: Token) {
        let stream = of_handle(handle(call, "stream"), call.tid, false);
        let submitted = submitted_ns(call);
        let Some(process) = self.process(call.tgid) else { return };
        let known = *process.members.entry(token.communicator).or_insert(token.member);
        process.has_several_ranks |= known != token.member;
        let (Some(stream), Some(at_ns)) = (stream, submitted) else { return };
        let Some(thread) = process.thread(call.tid) else { return };
        if thread.groups > 0 {
            if thread.grouped.len() < MOST_OPEN {
                thread.grouped.push((token, stream));
            }
            return;
        }
        let launched = thread.launched_in(call.id);
        process.submitted(at_ns, &[(token, stream)], &launched);
        self.expect(&launched, &[(token, stream)]);
    }

    fn call(&mut self, call: &Call, out: &mut Vec<(Token, Progress)>) {
        match call.class {
            Class::Launch => self.launch(call),
            Class::Group => self.group(call, out),
            _ => self.wait(call, out),
        }
    }

    fn launch(&mut self, call: &Call) {
        let (Some(parent), false) = (call.parent, call.nested) else { return };
        let Some(thread) = self.process(call.tgid).and_then(|process| process.thread(call.tid)) else {
            return;
        };
        if thread.launches.len() >= MOST_LAUNCHES {
            thread.launches.pop_front();
        }
        thread.launches.push_back((call.id, parent, call.effect.captured()));
    }

    /// A group of calls begins or ends. Its collectives are submitted by the call that ends the outermost group.
    fn group(&mut self, call: &Call, out: &mut Vec<(Token, Progress)>) {
        let Some(process) = self.process(call.tgid) else { return };
        let Some(thread) = process.thread(call.tid) else { return };
        match function(call) {
            Some("ncclGroupStart") => thread.groups = thread.groups.saturating_add(1),
            Some("ncclGroupEnd") => {
                thread.groups = thread.groups.saturating_sub(1);
                if thread.groups > 0 {
                    return;
                }
                let grouped = std::mem::take(&mut thread.grouped);
                let launched = thread.launched_in(call.id);
                out.extend(
                    grouped.iter().map(|(token, _)| (*token, Progress::Begun { at_ns: call.start_ns })),
                );
                if let Some(at_ns) = submitted_ns(call) {
                    process.submitted(at_ns, &grouped, &launched);
                    self.expect(&launched, &grouped);
                }
            }
            _ => {}
        }
    }

    /// The execution of a single launch is that of the collectives whose call made it.
    fn expect(&mut self, launched: &[(u64, bool)], made: &[(Token, u64)]) {
        let [(launch, false)] = launched else { return };
        if self.launched.len() >= MOST_LAUNCHED {
            self.launched.clear();
        }
        self.launched.insert(*launch, made.iter().map(|(token, _)| *token).collect());
    }

    fn execution(&mut self, execution: &Execution, out: &mut Vec<(Token, Progress)>) {
        let Some(tokens) = execution.submission.and_then(|by| self.launched.remove(&by.call)) else { return };
        let ran = Progress::Ran { start_ns: execution.start_ns, end_ns: execution.end_ns };
        out.extend(tokens.into_iter().map(|token| (token, ran)));
    }

    /// A call that waits for a stream, an event or a GPU, asks for one, or makes one depend on another.
    fn wait(&mut self, call: &Call, out: &mut Vec<(Token, Progress)>) {
        let Outcome::Returned { duration_ns, .. } = call.outcome else { return };
        if call.status.is_some_and(|status| status != 0) {
            return;
        }
        let Some(function) = catalogue().lookup(call.api, None, &call.name) else { return };
        let (op, scope) = (function.roles.op, function.roles.scope);
        if op.is_none() && scope.is_none() {
            return;
        }
        let Some(process) = self.processes.get_mut(&call.tgid) else { return };
        let event = ["event", "hEvent"].iter().find_map(|name| handle(call, name));
        let (begin_ns, end_ns) = (call.start_ns, call.start_ns.saturating_add(duration_ns));
        let mut ended = Vec::new();
        match (op, scope, stream_of(call), event) {
            (Some("record"), _, Some(stream), Some(event)) => process.record(event, stream, begin_ns, end_ns),
            (Some("wait_event"), _, Some(stream), Some(event)) => {
                process.wait_event(stream, event, begin_ns, end_ns);
            }
            (_, Some("stream"), Some(stream), _) | (Some("query"), _, Some(stream), None) => {
                process.end_stream(stream, begin_ns, &mut ended);
            }
            (_, Some("event"), _, Some(event)) | (Some("query"), _, None, Some(event)) => {
                process.end_event(event, begin_ns, &mut ended);
            }
            (_, Some("device"), _, _) => process.end_all(begin_ns, &mut ended),
            _ => {}
        }
        let waited = scope.is_some() && duration_ns >= SHORT_WAIT_NS;
        out.extend(ended.into_iter().map(|token| (token, Progress::Ended { at_ns: end_ns, waited })));
    }

    fn process(&mut self, tgid: Tgid) -> Option<&mut Process> {
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&tgid) {
            return None;
        }
        Some(self.processes.entry(tgid).or_default())
    }
}

/// When what a call submits had been submitted: not if it failed, has not returned, or continues in another thread
/// (`ncclInProgress`).
fn submitted_ns(call: &Call) -> Option<u64> {
    let succeeded = call.status.is_none_or(|status| status == 0);
    call.duration_ns().filter(|_| succeeded).map(|ns| call.start_ns.saturating_add(ns))
}

impl Thread {
    /// The launches that were made directly in a call, and whether each was captured.
    fn launched_in(&mut self, call: u64) -> Vec<(u64, bool)> {
        let own = self.launches.iter().filter(|(_, parent, _)| *parent == call);
        let own = own.map(|(launch, _, captured)| (*launch, *captured)).collect();
        self.launches.clear();
        own
    }
}

impl Process {
    fn thread(&mut self, tid: Tid) -> Option<&mut Thread> {
        if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&tid) {
            return None;
        }
        Some(self.threads.entry(tid).or_default())
    }

    fn stream(&mut self, stream: u64) -> Option<&mut Stream> {
        if self.streams.len() >= MOST_STREAMS && !self.streams.contains_key(&stream) {
            return None;
        }
        Some(self.streams.entry(stream).or_default())
    }

    fn submitted(&mut self, at_ns: u64, made: &[(Token, u64)], launched: &[(u64, bool)]) {
        if launched.iter().any(|(_, captured)| *captured) {
            return;
        }
        for (token, stream) in made {
            let Some(stream) = self.stream(*stream) else { continue };
            if stream.open.len() >= MOST_OPEN {
                stream.open.pop_front();
            }
            stream.open.push_back((at_ns, *token));
        }
    }

    /// What a stream had to do at this time: the last collective of each rank on each stream.
    fn marks(&self, number: u64, at_ns: u64) -> Vec<Mark> {
        let Some(stream) = self.streams.get(&number) else { return Vec::new() };
        let mut marks: Vec<Mark> = Vec::new();
        let own = stream.open.iter().map(|(since_ns, last)| (since_ns, Mark { stream: number, last: *last }));
        let after = stream.after.iter().map(|(since_ns, mark)| (since_ns, *mark));
        for (_, mark) in own.chain(after).filter(|(since_ns, _)| **since_ns <= at_ns) {
            let of = |mark: &Mark| (mark.stream, mark.last.communicator, mark.last.member);
            if let Some(known) = marks.iter_mut().find(|known| of(known) == of(&mark)) {
                known.last.place = known.last.place.max(mark.last.place);
            } else if marks.len() < MOST_AFTER {
                marks.push(mark);
            }
        }
        marks
    }

    fn record(&mut self, event: u64, stream: u64, begin_ns: u64, end_ns: u64) {
        let marks = self.marks(stream, begin_ns);
        if self.events.len() >= MOST_EVENTS && !self.events.contains_key(&event) {
            self.events.clear();
        }
        self.events.insert(event, Recorded { at_ns: end_ns, marks });
    }

    fn recorded(&self, event: u64, before_ns: u64) -> Vec<Mark> {
        let recorded = self.events.get(&event).filter(|recorded| recorded.at_ns <= before_ns);
        recorded.map(|recorded| recorded.marks.clone()).unwrap_or_default()
    }

    fn wait_event(&mut self, stream: u64, event: u64, begin_ns: u64, end_ns: u64) {
        let marks = self.recorded(event, begin_ns);
        let Some(stream) = self.stream(stream) else { return };
        for mark in marks {
            if stream.after.len() >= MOST_AFTER {
                stream.after.pop_front();
            }
            stream.after.push_back((end_ns, mark));
        }
    }

    /// Everything that a stream had to do at this time has ended.
    fn end_stream(&mut self, stream: u64, at_ns: u64, ended: &mut Vec<Token>) {
        let marks = self.marks(stream, at_ns);
        self.end_marks(marks, ended);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.after.retain(|(since_ns, _)| *since_ns > at_ns);
        }
    }

    fn end_event(&mut self, event: u64, at_ns: u64, ended: &mut Vec<Token>) {
        let marks = self.recorded(event, at_ns);
        self.end_marks(marks, ended);
    }

    fn end_all(&mut self, at_ns: u64, ended: &mut Vec<Token>) {
        if self.has_several_ranks {
            return;
        }
        let streams: Vec<_> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.end_stream(stream, at_ns, ended));
    }

    fn end_marks(&mut self, marks: Vec<Mark>, ended: &mut Vec<Token>) {
        for Mark { stream, last } in marks {
            let Some(stream) = self.streams.get_mut(&stream) else { continue };
            stream.open.retain(|(_, token)| {
                let of = |token: &Token| (token.communicator, token.member);
                let has_ended = of(token) == of(&last) && token.place <= last.place;
                if has_ended {
                    ended.push(*token);
                }
                !has_ended
            });
        }
    }
}
