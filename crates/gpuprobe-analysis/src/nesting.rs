//! The calls of each thread in the order in which they began, each inside the call it was made in.
//!
//! A trace tells of calls as they end, inner ones first. So the calls of a thread are held until the outermost of them
//! has been told, and come out together. What is held has a bound; beyond it the inner calls come out first.

use std::collections::HashMap;

use gpuprobe_event::{Call, Outcome, ProcessChange, ProcessEvent, Tgid, Tid, Value};

/// What is held at once, in bytes.
const MOST_HELD: usize = 64 << 20;
/// Threads and ended processes that are remembered; those of which nothing is held can be forgotten.
const MOST_REMEMBERED: usize = 1 << 18;
/// Calls inside each other. The kernel side keeps sixteen; more come only from files that it did not write.
const DEEPEST: usize = 128;

/// A call at its place: those that are inside it follow it, at greater depth. Its times lie within those of the call
/// that it is in, and it does not overlap the one before it, whatever the trace says.
#[derive(Debug, PartialEq)]
pub struct Slice {
    /// The call. One that began and was not seen to end is [`Outcome::Unfinished`] where it may have been open until
    /// `end_ns`; it is [`Outcome::Begun`], and has no duration, where that it began is all that is known.
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
    threads: HashMap<(Tgid, Tid), Thread>,
    ended: HashMap<Tgid, u64>,
    held_bytes: usize,
    returns: bool,
    moved: u64,
}

#[derive(Debug, Default)]
struct Thread {
    held: Vec<Box<Call>>,
    held_bytes: usize,
    /// Of what is held, calls that have only begun.
    begun: usize,
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
    /// There are too many; the call around them is still to come.
    TooMany,
}

impl Nesting {
    /// Takes in a call, and puts what is complete behind what is in `out`.
    pub fn feed(&mut self, call: Box<Call>, out: &mut Vec<Slice>) {
        let key = (call.tgid, call.tid);
        self.make_room();
        let thread = self.threads.entry(key).or_default();
        let returned = matches!(call.outcome, Outcome::Returned { .. });
        self.returns |= returned;
        if call.outcome != Outcome::Begun && thread.begun > 0 {
            self.held_bytes -= thread.forget_begun(call.id);
        }
        let outermost = call.parent.is_none();
        let starts_anew = outermost && call.outcome == Outcome::Begun;
        if starts_anew {
            self.close(key, call.start_ns, Because::NextCall, out);
        }
        let (start_ns, end_ns) = (call.start_ns, end_of(&call));
        self.hold(key, call);
        let ended = self.ended.get(&key.0).copied().filter(|at| *at >= start_ns);
        if returned && outermost {
            self.close(key, start_ns, Because::NextCall, out);
        } else if let Some(at) = ended.filter(|_| outermost && !starts_anew) {
            self.close(key, at, Because::End, out);
        } else if self.held_bytes > MOST_HELD {
            self.close(key, end_ns, Because::TooMany, out);
        }
    }

    /// A process ended or runs another program: what was open in it is over.
    pub fn process(&mut self, change: &ProcessEvent, out: &mut Vec<Slice>) {
        if change.change == ProcessChange::Start {
            self.ended.remove(&change.tgid);
            return;
        }
        let mut open: Vec<_> = self.threads.keys().filter(|(tgid, _)| *tgid == change.tgid).copied().collect();
        open.sort_unstable();
        for key in open {
            self.close(key, change.at_ns, Because::End, out);
            self.threads.remove(&key);
        }
        if self.ended.len() >= MOST_REMEMBERED {
            self.ended.clear();
        }
        self.ended.insert(change.tgid, change.at_ns);
    }

    /// The trace is over, at this time.
    pub fn finish(&mut self, at_ns: u64, out: &mut Vec<Slice>) {
        let mut all: Vec<_> = self.threads.keys().copied().collect();
        all.sort_unstable();
        for key in all {
            self.close(key, at_ns, Because::End, out);
        }
        self.threads.clear();
    }

    /// Calls whose times did not fit with those of others on their thread, and were made to.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    fn hold(&mut self, key: (Tgid, Tid), call: Box<Call>) {
        let bytes = weight(&call);
        let thread = self.threads.entry(key).or_default();
        thread.begun += usize::from(call.outcome == Outcome::Begun);
        thread.held_bytes += bytes;
        thread.held.push(call);
        self.held_bytes += bytes;
    }

    /// What is held of at most [`MOST_HELD`] bytes is in fewer threads than are remembered, so this gives room.
    fn make_room(&mut self) {
        if self.threads.len() >= MOST_REMEMBERED {
            self.threads.retain(|_, thread| !thread.held.is_empty());
        }
    }

    fn close(&mut self, key: (Tgid, Tid), until_ns: u64, because: Because, out: &mut Vec<Slice>) {
        let Some(thread) = self.threads.get_mut(&key) else { return };
        self.held_bytes -= thread.held_bytes;
        let mut calls = std::mem::take(&mut thread.held);
        (thread.held_bytes, thread.begun) = (0, 0);
        let floor_ns = thread.over_ns;
        if because == Because::TooMany {
            // what is open comes out when it is known to be over
            let (open, over) = calls.into_iter().partition(is_open);
            calls = over;
            for call in open {
                self.hold(key, call);
            }
        }
        // ids of one thread rise, so they tell what began first where the times do not
        calls.sort_by_key(|call| (call.start_ns, call.id));
        let mut place = Place { floor_ns, until_ns, because, returns: self.returns, path: Vec::new(), moved: 0 };
        out.extend(calls.into_iter().map(|call| place.put(call)));
        self.moved += place.moved;
        if because != Because::TooMany
            && let Some(thread) = self.threads.get_mut(&key)
        {
            thread.over_ns = place.floor_ns;
        }
    }
}

impl Thread {
    /// The end of a call has come: its beginning is not needed any more. Returns how many bytes less are held.
    fn forget_begun(&mut self, id: u64) -> usize {
        let is_it = |call: &Box<Call>| call.id == id && call.outcome == Outcome::Begun;
        let Some(at) = self.held.iter().rposition(is_it) else { return 0 };
        let bytes = weight(&self.held.remove(at));
        self.begun -= 1;
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
        let by_time = || self.path.iter().rposition(|around| start_ns < around.end_ns && end_ns <= around.end_ns);
        by_id.or_else(by_time).map_or(0, |at| at + 1)
    }
}

fn is_open(call: &Box<Call>) -> bool {
    !matches!(call.outcome, Outcome::Returned { .. })
}

fn end_of(call: &Call) -> u64 {
    call.start_ns.saturating_add(call.duration_ns().unwrap_or(0))
}

/// About the memory that a call takes.
fn weight(call: &Call) -> usize {
    let stack = call.stack.iter().flatten().map(|frame| size_of::<String>() + frame.len());
    let args = call.args.iter().flatten().map(|(name, value)| name.len() + value_weight(value));
    size_of::<Call>() + stack.sum::<usize>() + args.sum::<usize>() + call.name.len()
}

fn value_weight(value: &Value) -> usize {
    const ROOM: usize = size_of::<(gpuprobe_event::Name, Value)>();
    ROOM + match value {
        Value::Name(text) => text.len(),
        Value::Text(text) => text.len(),
        Value::Struct(fields) => fields.iter().map(|(name, value)| name.len() + value_weight(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
