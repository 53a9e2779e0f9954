//! The calls of each thread in the order in which they began, each inside the call it was made in.
//!
//! A trace tells of calls as they end, inner ones first. So the calls of a thread are held until the outermost of them
//! has been told, and come out together. What is held has a bound; beyond it the inner calls come out first.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::{Call, Effect, Event, Name, Outcome, ProcessChange, ProcessEvent, Tgid, Tid, Value};

/// What is held at once, in bytes.
const MOST_HELD: usize = 48 << 20;
/// Threads and ended processes that are remembered; those of which nothing is held can be forgotten.
const MOST_REMEMBERED: usize = 1 << 18;
/// What a call takes beside its own size and its texts: its box, its place in a list, and what is kept of its thread.
const AROUND_CALL: usize = 128;
// each call held may be of another thread of another process, and there must be room for one more
const _: () = assert!(MOST_HELD / (size_of::<Call>() + AROUND_CALL) * 2 < MOST_REMEMBERED);
/// Calls inside each other. The kernel side keeps sixteen; more come only from files that it did not write.
const DEEPEST: usize = 128;

/// A call at its place: those that are inside it follow it, at greater depth. Its times lie within those of the call
/// that it is in, and it does not overlap the one before it, whatever the trace says.
#[derive(Debug, PartialEq)]
pub struct Slice {
    /// The call. One that began and was not seen to end is [`Outcome::Unfinished`] where it may have been open until
    /// `end_ns`; it is [`Outcome::Begun`], and has no duration, where that it began is all that is known. Nor has one that
    /// is an [`Outcome::Instant`].
    pub call: Box<Call>,
    /// When it began.
    pub start_ns: u64,
    /// When it was over; of one that is unfinished, when its process was, or the trace.
    pub end_ns: u64,
    /// How many calls it is in.
    pub depth: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Nesting {
    processes: HashMap<Tgid, Process>,
    /// Of all processes.
    threads: usize,
    held_bytes: usize,
    /// Whether any call was seen to return: where none was, that calls began is all that was recorded.
    returns: bool,
    moved: u64,
    extent: Option<Extent>,
}

/// Times of the first and of the last thing that happened. The end of a call counts; a loss is noticed at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// When the first call began, or a process changed.
    pub first_ns: u64,
    /// When the last one was over.
    pub last_ns: u64,
}

#[derive(Debug, Default)]
struct Process {
    threads: BTreeMap<Tid, Thread>,
    ended_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Thread {
    #[allow(clippy::vec_box, reason = "calls are large, and come and go in their boxes")]
    held: Vec<Box<Call>>,
    /// Calls that have only begun, apart from the others: the end of one takes it away.
    #[allow(clippy::vec_box, reason = "calls are large, and come and go in their boxes")]
    begun: Vec<Box<Call>>,
    /// Of both.
    held_bytes: usize,
    /// When the last outermost call that came out was over.
    over_ns: u64,
}

/// Why calls come out.
#[derive(Clone, Copy, PartialEq)]
enum Because {
    /// The thread goes on with another outermost call.
    NextCall,
    /// The process or the trace is over.
    End,
    /// There are too many; the call around them is still to come. What is open comes out when it is known to be over.
    TooMany,
    /// What is open is too much in itself.
    TooManyOpen,
}

impl Nesting {
    /// Takes in whatever happened, as [`Self::feed`] and [`Self::process`] do.
    pub fn event(&mut self, event: Event, out: &mut Vec<Slice>) {
        match event {
            Event::Call(call) => self.feed(call, out),
            Event::Process(change) => self.process(&change, out),
            Event::Loss(_) | Event::Xid(_) => {}
        }
    }

    /// Takes in a call, and puts what is complete behind what is in `out`.
    pub fn feed(&mut self, call: Box<Call>, out: &mut Vec<Slice>) {
        let key = (call.tgid, call.tid);
        let is_over = !is_open(&call);
        self.returns |= matches!(call.outcome, Outcome::Returned { .. });
        if call.outcome != Outcome::Begun {
            self.held_bytes -= self.thread(key).forget_begun(call.id);
        }
        let (outermost, start_ns, end_ns) = (call.parent.is_none(), call.start_ns, end_of(&call));
        self.seen(start_ns, end_ns);
        if outermost && call.outcome == Outcome::Begun {
            self.close(key, start_ns, Because::NextCall, out);
        }
        self.hold(key, call);
        if is_over && outermost {
            self.close(key, start_ns, Because::NextCall, out);
        } else if self.held_bytes > MOST_HELD {
            self.relieve(key, end_ns, out);
        }
    }

    /// A process ended or runs another program: what was open in it is over.
    pub fn process(&mut self, change: &ProcessEvent, out: &mut Vec<Slice>) {
        self.seen(change.at_ns, change.at_ns);
        let at_ns = change.at_ns;
        if change.change == ProcessChange::Start {
            if let Some(process) = self.processes.get_mut(&change.tgid) {
                process.ended_ns = None;
            }
            return;
        }
        let process = self.processes.entry(change.tgid).or_default();
        // the process goes on in another program
        process.ended_ns = Some(at_ns).filter(|_| change.change == ProcessChange::Exit);
        let tids: Vec<_> = process.threads.keys().copied().collect();
        for tid in tids {
            self.close((change.tgid, tid), at_ns, Because::End, out);
        }
        self.make_room();
    }

    /// The trace is over: what is open was so until the last thing that happened.
    pub fn finish(&mut self, out: &mut Vec<Slice>) {
        let at_ns = self.extent().last_ns;
        let mut open: Vec<_> = self.processes.keys().copied().collect();
        open.sort_unstable();
        for tgid in open {
            let process = self.processes.entry(tgid).or_default();
            let until_ns = process.ended_ns.unwrap_or(at_ns);
            let tids: Vec<_> = process.threads.keys().copied().collect();
            for tid in tids {
                self.close((tgid, tid), until_ns, Because::End, out);
            }
        }
    }

    /// From when to when there was anything.
    pub fn extent(&self) -> Extent {
        self.extent.unwrap_or_default()
    }

    /// Calls whose times did not fit with those of others on their thread, and were made to.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    fn seen(&mut self, from_ns: u64, to_ns: u64) {
        let extent = self.extent.get_or_insert(Extent { first_ns: from_ns, last_ns: to_ns });
        extent.first_ns = extent.first_ns.min(from_ns);
        extent.last_ns = extent.last_ns.max(to_ns);
    }

    fn thread(&mut self, (tgid, tid): (Tgid, Tid)) -> &mut Thread {
        self.make_room();
        self.processes.entry(tgid).or_default().threads.entry(tid).or_insert_with(|| {
            self.threads += 1;
            Thread::default()
        })
    }

    fn hold(&mut self, key: (Tgid, Tid), call: Box<Call>) {
        let bytes = weight(&call);
        let thread = self.thread(key);
        thread.held_bytes += bytes;
        let list = if call.outcome == Outcome::Begun { &mut thread.begun } else { &mut thread.held };
        list.push(call);
        self.held_bytes += bytes;
    }

    /// What is held of [`MOST_HELD`] bytes is in fewer threads than are remembered, so this gives room.
    fn make_room(&mut self) {
        if self.threads + self.processes.len() < MOST_REMEMBERED {
            return;
        }
        self.threads = 0;
        self.processes.retain(|_, process| {
            process.threads.retain(|_, thread| thread.held_bytes > 0);
            self.threads += process.threads.len();
            !process.threads.is_empty()
        });
    }

    /// Makes room for calls: those of one thread come out, and where that is not much, those of all. So much is gone
    /// then that it will be long until the next time.
    fn relieve(&mut self, key: (Tgid, Tid), until_ns: u64, out: &mut Vec<Slice>) {
        self.close(key, until_ns, Because::TooMany, out);
        if self.held_bytes <= MOST_HELD / 2 {
            return;
        }
        let threads = |(tgid, process): (&Tgid, &Process)| {
            let holding = process.threads.iter().filter(|(_, thread)| thread.held_bytes > 0);
            holding.map(|(tid, _)| (*tgid, *tid)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.processes.iter().flat_map(threads).collect();
        all.sort_unstable();
        all.into_iter().for_each(|key| self.close(key, until_ns, Because::TooManyOpen, out));
    }

    fn close(&mut self, key: (Tgid, Tid), until_ns: u64, because: Because, out: &mut Vec<Slice>) {
        let thread = self.thread(key);
        let freed = std::mem::take(&mut thread.held_bytes);
        let mut calls = std::mem::take(&mut thread.held);
        calls.append(&mut thread.begun);
        let floor_ns = thread.over_ns;
        self.held_bytes -= freed;
        if because == Because::TooMany {
            let open: Vec<_> = calls.extract_if(.., |call| is_open(call)).collect();
            open.into_iter().for_each(|call| self.hold(key, call));
        }
        // ids of one thread rise, so they tell what began first where the times do not
        calls.sort_by_key(|call| (call.start_ns, call.id));
        let returns = self.returns;
        let mut place = Place { floor_ns, until_ns, because, returns, path: Vec::new(), moved: 0 };
        out.extend(calls.into_iter().map(|call| place.put(call)));
        self.moved += place.moved;
        if matches!(because, Because::NextCall | Because::End) {
            self.thread(key).over_ns = place.floor_ns;
        }
    }
}

impl Thread {
    /// The end of a call has come: its beginning is not needed any more. Returns how many bytes less are held.
    fn forget_begun(&mut self, id: u64) -> usize {
        // those that are still open around it are few, whatever else a file may have
        let first = self.begun.len().saturating_sub(DEEPEST);
        let Some(at) = self.begun[first..].iter().rposition(|call| call.id == id) else { return 0 };
        let bytes = weight(&self.begun.remove(first + at));
        self.held_bytes -= bytes;
        bytes
    }
}

/// Where the next call of a thread belongs.
struct Place {
    floor_ns: u64,
    until_ns: u64,
    because: Because,
    returns: bool,
    path: Vec<Around>,
    moved: u64,
}

/// A call that others may be in.
struct Around {
    id: u64,
    end_ns: u64,
    /// When the last call in it was over.
    floor_ns: u64,
}

impl Place {
    fn put(&mut self, mut call: Box<Call>) -> Slice {
        if call.outcome == Outcome::Begun && self.because == Because::End && self.returns {
            call.outcome = Outcome::Unfinished;
        }
        let (start_ns, end_ns) = match call.outcome {
            Outcome::Unfinished => (call.start_ns, self.until_ns.max(call.start_ns)),
            _ => (call.start_ns, end_of(&call)),
        };
        self.path.truncate(self.depth_of(&call, start_ns, end_ns).min(DEEPEST));
        let depth = self.path.len();
        let (floor_ns, ceiling_ns) =
            self.path.last().map_or((self.floor_ns, u64::MAX), |around| (around.floor_ns, around.end_ns));
        let start = start_ns.max(floor_ns).min(ceiling_ns);
        let end = end_ns.clamp(start, ceiling_ns);
        self.moved += u64::from((start, end) != (start_ns, end_ns));
        *self.path.last_mut().map_or(&mut self.floor_ns, |around| &mut around.floor_ns) = end;
        self.path.push(Around { id: call.id, end_ns: end, floor_ns: start });
        Slice { call, start_ns: start, end_ns: end, depth }
    }

    /// The call around it is one of those open at that time, by its id. Where that one was lost, or has come out before,
    /// it is the innermost whose times are around its own.
    fn depth_of(&self, call: &Call, start_ns: u64, end_ns: u64) -> usize {
        let Some(parent) = call.parent else { return 0 };
        let by_id = self.path.iter().rposition(|around| around.id == parent);
        let by_time =
            || self.path.iter().rposition(|around| start_ns < around.end_ns && end_ns <= around.end_ns);
        by_id.or_else(by_time).map_or(0, |at| at + 1)
    }
}

fn is_open(call: &Call) -> bool {
    !matches!(call.outcome, Outcome::Returned { .. } | Outcome::Instant)
}

fn end_of(call: &Call) -> u64 {
    call.start_ns.saturating_add(call.duration_ns().unwrap_or(0))
}

/// About the memory that a call takes.
fn weight(call: &Call) -> usize {
    let stack = call.stack.iter().flatten().map(|frame| size_of::<String>() + frame.len());
    let args = call.args.iter().flatten().map(|(name, value)| name.len() + value_weight(value));
    let text = |name: &Option<Name>| name.as_ref().map_or(0, |name| name.len());
    // the names of kernels and processes are shared, unless somebody made a file where none are
    let names = call.name.len() + call.process.len() + text(&call.error);
    let effect = match &call.effect {
        Effect::Launch(launch) => launch.kernel.as_ref().map_or(0, |name| name.len()),
        Effect::Transfer(transfer) => size_of_val(&*transfer.parts),
        Effect::ContextEnd(ended) => size_of_val(&**ended),
        Effect::DriverCall(asked) => text(&asked.device) + text(&asked.command),
        Effect::Alloc(_) | Effect::Free(_) | Effect::GraphLaunch(_) | Effect::None => 0,
    };
    size_of::<Call>() + AROUND_CALL + stack.chain(args).sum::<usize>() + names + effect
}

fn value_weight(value: &Value) -> usize {
    const ROOM: usize = size_of::<(Name, Value)>();
    ROOM + match value {
        Value::Name(text) => text.len(),
        Value::Text(text) => text.len(),
        Value::Struct(fields) => fields.iter().map(|(name, value)| name.len() + value_weight(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
