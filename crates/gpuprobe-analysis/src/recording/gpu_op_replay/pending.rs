//! Work given inside calls that have not been told yet: only these say whether it is theirs.
//!
//! The calls of a thread are told in the order of their ends, inner ones first. So the outermost call decides about all
//! that waits on its thread, and when a call around some was lost, the one around that does.
//!
//! This goes by parents, which every trace has: that a launch is nested is told by `run` and `record` alone, and where the
//! call that counts it was lost, it counts by itself.

use std::collections::{HashMap, VecDeque};

use gpuprobe_event::{Api, Call, Class, Tgid, Tid};

use super::op::{Given, Task};

/// Threads with calls inside others that are not over.
pub(super) const MOST_THREADS: usize = 1 << 14;
/// Work of one thread that waits for the calls around it. None that is work itself makes so many calls.
pub(super) const MOST_WAITING: usize = 256;
/// Work of all threads that waits.
pub(super) const MOST_WAITING_IN_ALL: usize = 1 << 16;
/// Calls that something inside was counted of, before they were told. The kernel side keeps sixteen inside each other.
const MOST_COUNTED: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Inner {
    pub(super) threads: HashMap<(Tgid, Tid), Thread>,
    /// Work that waits, of all of them.
    pub(super) waiting: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    /// With the call that each is in.
    waiting: VecDeque<(u64, Given)>,
    /// Open calls with work inside that did not wait for them; should one be of that kind itself, it is counted already.
    counted: VecDeque<(u64, Kind)>,
}

/// What one call does for another of its kind, and not besides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Launch,
    Copy,
}

impl Kind {
    fn of(given: &Given) -> Self {
        match given.task {
            Task::Launch(_) | Task::GraphLaunch(_) => Self::Launch,
            Task::Transfer(_) => Self::Copy,
        }
    }

    fn of_class(class: Class) -> Option<Self> {
        match class {
            Class::Launch | Class::GraphLaunch => Some(Self::Launch),
            Class::Memcpy | Class::Memset => Some(Self::Copy),
            _ => None,
        }
    }
}

impl Inner {
    pub(super) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Takes in a call with what it gave, and puts what is known to count by itself behind what is in `over`.
    pub(super) fn feed(&mut self, call: &Call, given: Option<Given>, over: &mut Vec<Given>) {
        let key = (call.tgid, call.tid);
        let mut given = given;
        let is_left = match self.threads.get_mut(&key) {
            Some(thread) => {
                let before = thread.waiting.len();
                thread.meet(call, &mut given, over);
                self.waiting -= before - thread.waiting.len();
                !thread.is_empty()
            }
            None => true,
        };
        if !is_left {
            self.threads.remove(&key);
        }
        match (given, call.parent) {
            (Some(given), Some(parent)) => self.wait(key, parent, given, over),
            (Some(given), None) => over.push(given),
            (None, _) => {}
        }
    }

    /// All that waits, in the order in which each thread gave it: the calls around it will not be told.
    pub(super) fn take_all(&mut self) -> Vec<Given> {
        let threads = std::mem::take(&mut self.threads);
        self.waiting = 0;
        threads.into_values().flat_map(|thread| thread.waiting).map(|(_, given)| given).collect()
    }

    /// The same of one process.
    pub(super) fn take_all_of(&mut self, tgid: Tgid) -> Vec<Given> {
        let ended = self.threads.extract_if(|(of, _), _| *of == tgid);
        let all: Vec<_> = ended.flat_map(|(_, thread)| thread.waiting).map(|(_, given)| given).collect();
        self.waiting -= all.len();
        all
    }

    fn wait(&mut self, key: (Tgid, Tid), parent: u64, given: Given, over: &mut Vec<Given>) {
        let is_new = self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&key);
        if is_new || self.waiting >= MOST_WAITING_IN_ALL {
            self.forget_oldest(over);
        }
        let thread = self.threads.entry(key).or_default();
        let before = thread.waiting.len();
        thread.wait(parent, given, over);
        self.waiting += thread.waiting.len() - before;
    }

    /// Half of the threads, those that gave nothing for longest: most of them have ended, and a call around was lost.
    fn forget_oldest(&mut self, over: &mut Vec<Given>) {
        let mut last: Vec<u64> = self.threads.values().map(Thread::last_ns).collect();
        let middle = last.len() / 2;
        let newest_ns = *last.select_nth_unstable(middle).1;
        // where all are of one time, that is all of them
        let old = self.threads.extract_if(|_, thread| thread.last_ns() <= newest_ns);
        let before = over.len();
        over.extend(old.flat_map(|(_, thread)| thread.waiting).map(|(_, given)| given));
        self.waiting -= over.len() - before;
    }
}

impl Thread {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.counted.is_empty()
    }

    fn last_ns(&self) -> u64 {
        self.waiting.back().map_or(0, |(_, given)| given.start_ns)
    }

    /// A call is told: what was given inside it is its own where both are of one kind.
    fn meet(&mut self, call: &Call, given: &mut Option<Given>, over: &mut Vec<Given>) {
        // the rest of what is inside a call counts as its beginning did
        let kind = Kind::of_class(call.class).filter(|kind| !self.counted.contains(&(call.id, *kind)));
        if kind.is_none() {
            *given = None;
        }
        self.pass_counted(call);
        let has_returned = call.duration_ns().is_some();
        // nothing but what is inside a call that returned began after it and is told before it
        let is_inside =
            |parent: u64, inner: &Given| parent == call.id || has_returned && inner.start_ns > call.start_ns;
        let concerns = |(parent, inner): &(u64, Given)| call.parent.is_none() || is_inside(*parent, inner);
        let Some(first) = self.waiting.iter().position(concerns) else { return };
        for (parent, inner) in self.waiting.split_off(first) {
            let inside = is_inside(parent, &inner);
            let is_same = inside && kind == Some(Kind::of(&inner));
            // a copy of the runtime is what it asks of the driver
            let is_asked =
                is_same && kind == Some(Kind::Copy) && call.api == Api::Runtime && inner.is_whole_copy();
            if is_asked {
                *given = None;
            }
            if is_same && !is_asked {
                if let Some(outer) = given.as_mut() {
                    outer.learn(inner);
                }
            } else if let Some(around) = call.parent {
                self.waiting.push_back((if inside { around } else { parent }, inner));
            } else {
                // no call is around an outermost one, so that of what came before it is over
                over.push(inner);
            }
        }
    }

    /// What was counted inside a call that is told was inside the one around it as well.
    fn pass_counted(&mut self, call: &Call) {
        match call.parent {
            None => self.counted.clear(),
            Some(around) => {
                for kind in [Kind::Launch, Kind::Copy] {
                    if let Some(at) = self.counted.iter().position(|of| *of == (call.id, kind)) {
                        self.counted.remove(at);
                        self.count(around, kind);
                    }
                }
            }
        }
    }

    /// Keeps work until the call around it is told. What is too much is counted, the oldest first: the newest may be
    /// part of a call that ends next.
    fn wait(&mut self, parent: u64, given: Given, over: &mut Vec<Given>) {
        self.waiting.push_back((parent, given));
        if self.waiting.len() > MOST_WAITING
            && let Some((parent, oldest)) = self.waiting.pop_front()
        {
            self.count(parent, Kind::of(&oldest));
            over.push(oldest);
        }
    }

    fn count(&mut self, parent: u64, kind: Kind) {
        if self.counted.contains(&(parent, kind)) {
            return;
        }
        if self.counted.len() >= MOST_COUNTED {
            self.counted.pop_front();
        }
        self.counted.push_back((parent, kind));
    }
}
