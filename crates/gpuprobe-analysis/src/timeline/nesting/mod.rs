//! The calls of each thread in the order in which they started, each after the call that contains it.
//!
//! A trace records calls as they return, inner ones first. So the calls of a thread are buffered until the outermost
//! one was read, and are then emitted together. The buffer is bounded; beyond the bound the inner calls are emitted
//! first.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::{Call, Effect, Event, Name, Outcome, ProcessChange, ProcessEvent, Tgid, Tid, Value};

/// The size of the buffer in bytes, over all threads.
const MOST_BUFFERED: usize = 48 << 20;
/// Threads and processes that are remembered; those without buffered calls can be forgotten.
const MOST_REMEMBERED: usize = 1 << 18;
/// The memory of a call in addition to its own size and its strings: its box, its slot in a list, and its thread.
const CALL_OVERHEAD: usize = 128;
// each buffered call may be of another thread of another process, and there must be room for one more
const _: () = assert!(MOST_BUFFERED / (size_of::<Call>() + CALL_OVERHEAD) * 2 < MOST_REMEMBERED);
/// The deepest nesting. The BPF side tracks sixteen levels; more occur only in forged files.
const MAX_DEPTH: usize = 128;

/// A call in the sequence of its thread. The calls inside it follow it, at greater depth. Its times always lie within
/// those of the call around it and do not overlap the call before it, even if the times in the trace do.
#[derive(Debug, PartialEq)]
pub struct Slice {
    /// The call. A call that was not seen to return is [`Outcome::Unfinished`] if it may have been open until
    /// `end_ns`. It is [`Outcome::Begun`] and has no duration if only its entry is known. An [`Outcome::Instant`] has
    /// no duration either.
    pub call: Box<Call>,
    pub start_ns: u64,
    /// When it returned. If it is unfinished: when its process exited or the trace ended.
    pub end_ns: u64,
    /// The number of calls around it.
    pub depth: usize,
}

/// Buffers and nests calls, see the module documentation.
#[derive(Debug, Default)]
pub struct Nesting {
    processes: HashMap<Tgid, Process>,
    /// The number of threads of all processes.
    threads: usize,
    buffered_bytes: usize,
    /// Whether any call was seen to return. If not, only entries were recorded.
    returns: bool,
    moved: u64,
    extent: Option<Extent>,
}

/// The times of the first and the last event, including the ends of calls. Loss events do not count, because a loss is
/// noticed at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub first_ns: u64,
    pub last_ns: u64,
}

#[derive(Debug, Default)]
struct Process {
    threads: BTreeMap<Tid, Thread>,
    exited_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Thread {
    #[allow(clippy::vec_box, reason = "calls are large, and come and go in their boxes")]
    returned: Vec<Box<Call>>,
    /// Entries of calls, in a separate list: the return of a call removes its entry.
    #[allow(clippy::vec_box, reason = "calls are large, and come and go in their boxes")]
    begun: Vec<Box<Call>>,
    /// The size of both lists.
    buffered_bytes: usize,
    /// The end of the last outermost call that was emitted.
    emitted_ns: u64,
}

/// Why calls are emitted.
#[derive(Clone, Copy, PartialEq)]
enum Because {
    /// The thread continues with another outermost call.
    NextCall,
    /// The process exited or the trace ended.
    End,
    /// The buffer is full and the call around them has not been read. Open calls stay in the buffer.
    TooMany,
    /// The buffer is full of open calls.
    TooManyOpen,
}

impl Nesting {
    /// Takes in any event, see [`Self::feed`] and [`Self::process`].
    pub fn event(&mut self, event: Event, out: &mut Vec<Slice>) {
        match event {
            Event::Call(call) => self.feed(call, out),
            Event::Process(change) => self.process(&change, out),
            Event::Execution(execution) => self.seen(execution.start_ns, execution.end_ns),
            Event::Loss(_) | Event::Xid(_) | Event::OutOfMemory(_) | Event::Range(_) | Event::Agent(_) => {}
        }
    }

    /// Takes in a call and appends completed calls to `out`.
    pub fn feed(&mut self, call: Box<Call>, out: &mut Vec<Slice>) {
        let key = (call.tgid, call.tid);
        let has_returned = !is_open(&call);
        self.returns |= matches!(call.outcome, Outcome::Returned { .. });
        if call.outcome != Outcome::Begun {
            self.buffered_bytes -= self.thread(key).forget_begun(call.id);
        }
        let (outermost, start_ns, end_ns) = (call.parent.is_none(), call.start_ns, end_of(&call));
        self.seen(start_ns, end_ns);
        if outermost && call.outcome == Outcome::Begun {
            self.close(key, start_ns, Because::NextCall, out);
        }
        self.buffer(key, call);
        if has_returned && outermost {
            self.close(key, start_ns, Because::NextCall, out);
        } else if self.buffered_bytes > MOST_BUFFERED {
            self.shrink(key, end_ns, out);
        }
    }

    /// A process started, exited or runs another program. Open calls end with the latter two.
    pub fn process(&mut self, change: &ProcessEvent, out: &mut Vec<Slice>) {
        self.seen(change.at_ns, change.at_ns);
        let at_ns = change.at_ns;
        if change.change == ProcessChange::Start {
            if let Some(process) = self.processes.get_mut(&change.tgid) {
                process.exited_ns = None;
            }
            return;
        }
        let process = self.processes.entry(change.tgid).or_default();
        // after an exec the process continues
        process.exited_ns = Some(at_ns).filter(|_| change.change == ProcessChange::Exit);
        let tids: Vec<_> = process.threads.keys().copied().collect();
        for tid in tids {
            self.close((change.tgid, tid), at_ns, Because::End, out);
        }
        self.make_room();
    }

    /// Ends the trace. Open calls last until the last event.
    pub fn finish(&mut self, out: &mut Vec<Slice>) {
        let at_ns = self.extent().last_ns;
        let mut open: Vec<_> = self.processes.keys().copied().collect();
        open.sort_unstable();
        for tgid in open {
            let process = self.processes.entry(tgid).or_default();
            let until_ns = process.exited_ns.unwrap_or(at_ns);
            let tids: Vec<_> = process.threads.keys().copied().collect();
            for tid in tids {
                self.close((tgid, tid), until_ns, Because::End, out);
            }
        }
    }

    pub fn extent(&self) -> Extent {
        self.extent.unwrap_or_default()
    }

    /// The number of calls whose times overlapped others of their thread and were adjusted.
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

    fn buffer(&mut self, key: (Tgid, Tid), call: Box<Call>) {
        let bytes = weight(&call);
        let thread = self.thread(key);
        thread.buffered_bytes += bytes;
        let list = if call.outcome == Outcome::Begun { &mut thread.begun } else { &mut thread.returned };
        list.push(call);
        self.buffered_bytes += bytes;
    }

    /// Forgets threads without buffered calls. [`MOST_BUFFERED`] bytes are calls of fewer threads than
    /// [`MOST_REMEMBERED`], so this always makes room.
    fn make_room(&mut self) {
        if self.threads + self.processes.len() < MOST_REMEMBERED {
            return;
        }
        self.threads = 0;
        self.processes.retain(|_, process| {
            process.threads.retain(|_, thread| thread.buffered_bytes > 0);
            self.threads += process.threads.len();
            !process.threads.is_empty()
        });
    }

    /// Makes room in the buffer: emits the calls of one thread, and if that is not enough, those of all threads. This
    /// frees so much that it is rarely necessary.
    fn shrink(&mut self, key: (Tgid, Tid), until_ns: u64, out: &mut Vec<Slice>) {
        self.close(key, until_ns, Because::TooMany, out);
        if self.buffered_bytes <= MOST_BUFFERED / 2 {
            return;
        }
        let threads = |(tgid, process): (&Tgid, &Process)| {
            let buffering = process.threads.iter().filter(|(_, thread)| thread.buffered_bytes > 0);
            buffering.map(|(tid, _)| (*tgid, *tid)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.processes.iter().flat_map(threads).collect();
        all.sort_unstable();
        all.into_iter().for_each(|key| self.close(key, until_ns, Because::TooManyOpen, out));
    }

    fn close(&mut self, key: (Tgid, Tid), until_ns: u64, because: Because, out: &mut Vec<Slice>) {
        let thread = self.thread(key);
        let freed = std::mem::take(&mut thread.buffered_bytes);
        let mut calls = std::mem::take(&mut thread.returned);
        calls.append(&mut thread.begun);
        let floor_ns = thread.emitted_ns;
        self.buffered_bytes -= freed;
        if because == Because::TooMany {
            let open: Vec<_> = calls.extract_if(.., |call| is_open(call)).collect();
            open.into_iter().for_each(|call| self.buffer(key, call));
        }
        // the ids of a thread increase, so they decide the order of calls with equal times
        calls.sort_by_key(|call| (call.start_ns, call.id));
        let returns = self.returns;
        let mut nester = Nester { floor_ns, until_ns, because, returns, open: Vec::new(), moved: 0 };
        out.extend(calls.into_iter().map(|call| nester.nest(call)));
        self.moved += nester.moved;
        if matches!(because, Because::NextCall | Because::End) {
            self.thread(key).emitted_ns = nester.floor_ns;
        }
    }
}

impl Thread {
    /// Removes the entry of a call that returned. Returns the bytes freed in the buffer.
    fn forget_begun(&mut self, id: u64) -> usize {
        // only a few calls can be open around it; a forged file may have more entries
        let first = self.begun.len().saturating_sub(MAX_DEPTH);
        let Some(at) = self.begun[first..].iter().rposition(|call| call.id == id) else { return 0 };
        let bytes = weight(&self.begun.remove(first + at));
        self.buffered_bytes -= bytes;
        bytes
    }
}

/// Nests the sorted calls of one thread.
struct Nester {
    /// The end of the last outermost call.
    floor_ns: u64,
    until_ns: u64,
    because: Because,
    returns: bool,
    /// The calls around the next one, outermost first.
    open: Vec<OpenCall>,
    moved: u64,
}

/// A call that may contain the next one.
struct OpenCall {
    id: u64,
    end_ns: u64,
    /// The end of the last call inside it.
    floor_ns: u64,
}

impl Nester {
    fn nest(&mut self, mut call: Box<Call>) -> Slice {
        if call.outcome == Outcome::Begun && self.because == Because::End && self.returns {
            call.outcome = Outcome::Unfinished;
        }
        let (start_ns, end_ns) = match call.outcome {
            Outcome::Unfinished => (call.start_ns, self.until_ns.max(call.start_ns)),
            _ => (call.start_ns, end_of(&call)),
        };
        self.open.truncate(self.depth_of(&call, start_ns, end_ns).min(MAX_DEPTH));
        let depth = self.open.len();
        let (floor_ns, ceiling_ns) =
            self.open.last().map_or((self.floor_ns, u64::MAX), |outer| (outer.floor_ns, outer.end_ns));
        let start = start_ns.max(floor_ns).min(ceiling_ns);
        let end = end_ns.clamp(start, ceiling_ns);
        self.moved += u64::from((start, end) != (start_ns, end_ns));
        *self.open.last_mut().map_or(&mut self.floor_ns, |outer| &mut outer.floor_ns) = end;
        self.open.push(OpenCall { id: call.id, end_ns: end, floor_ns: start });
        Slice { call, start_ns: start, end_ns: end, depth }
    }

    /// The parent is the open call with that id. If it was lost or emitted before, the parent is the innermost open
    /// call whose times enclose those of the call.
    fn depth_of(&self, call: &Call, start_ns: u64, end_ns: u64) -> usize {
        let Some(parent) = call.parent else { return 0 };
        let by_id = self.open.iter().rposition(|outer| outer.id == parent);
        let by_time =
            || self.open.iter().rposition(|outer| start_ns < outer.end_ns && end_ns <= outer.end_ns);
        by_id.or_else(by_time).map_or(0, |at| at + 1)
    }
}

fn is_open(call: &Call) -> bool {
    !matches!(call.outcome, Outcome::Returned { .. } | Outcome::Instant)
}

fn end_of(call: &Call) -> u64 {
    call.start_ns.saturating_add(call.duration_ns().unwrap_or(0))
}

/// An estimate of the memory of a call.
pub(super) fn weight(call: &Call) -> usize {
    // the calls of one call site share their stack
    let own_stack = call.stack.as_deref().filter(|_| call.call_site().is_none());
    let stack = own_stack.unwrap_or_default().iter().map(|frame| size_of::<String>() + frame.len());
    let args = call.args.iter().flatten().map(|(name, value)| name.len() + value_weight(value));
    let text = |name: &Option<Name>| name.as_ref().map_or(0, |name| name.len());
    // names of CUDA kernels and processes are normally shared, but in a forged file each may be different
    let names = call.name.len() + call.process.len() + text(&call.error);
    let effect = match &call.effect {
        Effect::Launch(launch) => launch.kernel.as_ref().map_or(0, |name| name.len()),
        Effect::Transfer(transfer) => size_of_val(&*transfer.parts),
        Effect::ContextEnd(freed) => size_of_val(&**freed),
        Effect::DeviceSyscall(request) => text(&request.device) + text(&request.command),
        Effect::Alloc(_) | Effect::Free(_) | Effect::GraphLaunch(_) | Effect::None => 0,
    };
    size_of::<Call>() + CALL_OVERHEAD + stack.chain(args).sum::<usize>() + names + effect
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
