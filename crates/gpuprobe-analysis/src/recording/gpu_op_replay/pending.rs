//! GPU operations inside calls that have not been read yet. Only the outer call shows whether it is the same operation.
//!
//! A trace has the calls of a thread in the order of their returns, inner ones first. So the outermost call settles
//! all operations that are pending on its thread. If the record of an outer call was lost, the next one around it
//! settles them.
//!
//! This relies on the parent ids, which every trace has. Only `run` and `record` mark a launch as nested, and if the
//! record of the call that counts it was lost, it counts by itself.

use std::collections::{HashMap, VecDeque};

use gpuprobe_event::{Call, Class, Outcome, Tgid, Tid};

use super::op::{GpuOp, OpKind};

/// Threads with pending operations.
pub(super) const MOST_THREADS: usize = 1 << 14;
/// Pending operations of one thread. No call that is a GPU operation itself makes this many calls.
pub(super) const MOST_PENDING: usize = 256;
/// Pending operations of all threads.
pub(super) const MOST_PENDING_IN_ALL: usize = 1 << 16;
/// Open calls with an operation inside that was already counted. The BPF side tracks sixteen nested calls.
const MOST_COUNTED: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct PendingOps {
    pub(super) threads: HashMap<(Tgid, Tid), Thread>,
    /// The number of pending operations of all threads.
    pub(super) pending: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Thread {
    /// Operations with the id of the call around each.
    pending: VecDeque<(u64, GpuOp)>,
    /// Open calls with an operation inside that was counted early. A call in this list that turns out to be of the same
    /// kind must not be counted again.
    counted: VecDeque<(u64, Kind)>,
}

/// A call inside another call of the same kind is the same operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Launch,
    Copy,
}

impl Kind {
    fn of(op: &GpuOp) -> Self {
        match op.kind {
            OpKind::Launch(_) | OpKind::GraphLaunch(_) => Self::Launch,
            OpKind::Transfer(_) => Self::Copy,
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

impl PendingOps {
    pub(super) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Takes in a call with its operation, and appends the operations that are known to count by themselves to
    /// `settled`.
    pub(super) fn feed(&mut self, call: &Call, op: Option<GpuOp>, settled: &mut Vec<GpuOp>) {
        let key = (call.tgid, call.tid);
        let mut op = op;
        let has_more = match self.threads.get_mut(&key) {
            Some(thread) => {
                let before = thread.pending.len();
                thread.settle_inside(call, &mut op, settled);
                self.pending -= before - thread.pending.len();
                !thread.is_empty()
            }
            None => true,
        };
        if !has_more {
            self.threads.remove(&key);
        }
        match (op, call.parent) {
            (Some(op), Some(parent)) => self.add(key, parent, op, settled),
            (Some(op), None) => settled.push(op),
            (None, _) => {}
        }
    }

    /// Returns all pending operations, in the order of submission on each thread. The calls around them will not come.
    pub(super) fn take_all(&mut self) -> Vec<GpuOp> {
        let threads = std::mem::take(&mut self.threads);
        self.pending = 0;
        threads.into_values().flat_map(|thread| thread.pending).map(|(_, op)| op).collect()
    }

    /// The same of one process.
    pub(super) fn take_all_of(&mut self, tgid: Tgid) -> Vec<GpuOp> {
        let threads = self.threads.extract_if(|(of, _), _| *of == tgid);
        let all: Vec<_> = threads.flat_map(|(_, thread)| thread.pending).map(|(_, op)| op).collect();
        self.pending -= all.len();
        all
    }

    fn add(&mut self, key: (Tgid, Tid), parent: u64, op: GpuOp, settled: &mut Vec<GpuOp>) {
        let is_new = self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&key);
        if is_new || self.pending >= MOST_PENDING_IN_ALL {
            self.settle_oldest(settled);
        }
        let thread = self.threads.entry(key).or_default();
        let before = thread.pending.len();
        thread.add(parent, op, settled);
        self.pending += thread.pending.len() - before;
    }

    /// Settles the half of the threads whose last operation is oldest. Most of these have exited, and the record of
    /// an outer call was lost.
    fn settle_oldest(&mut self, settled: &mut Vec<GpuOp>) {
        let mut last: Vec<u64> = self.threads.values().map(Thread::last_ns).collect();
        let middle = last.len() / 2;
        let newest_ns = *last.select_nth_unstable(middle).1;
        // if all have the same time, this takes all of them
        let old = self.threads.extract_if(|_, thread| thread.last_ns() <= newest_ns);
        let before = settled.len();
        settled.extend(old.flat_map(|(_, thread)| thread.pending).map(|(_, op)| op));
        self.pending -= settled.len() - before;
    }
}

impl Thread {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.counted.is_empty()
    }

    fn last_ns(&self) -> u64 {
        self.pending.back().map_or(0, |(_, op)| op.start_ns)
    }

    /// Takes in a call: operations inside it are the same as its own if they are of the same kind.
    fn settle_inside(&mut self, call: &Call, op: &mut Option<GpuOp>, settled: &mut Vec<GpuOp>) {
        // if some operations inside the call were counted early, the others count by themselves as well
        let kind = Kind::of_class(call.class).filter(|kind| !self.counted.contains(&(call.id, *kind)));
        if kind.is_none() {
            *op = None;
        }
        self.pass_counted(call);
        let has_returned = call.duration_ns().is_some();
        // an operation that started after this call and was recorded before it is inside it
        let is_inside =
            |parent: u64, inner: &GpuOp| parent == call.id || has_returned && inner.start_ns > call.start_ns;
        let concerns = |(parent, inner): &(u64, GpuOp)| call.parent.is_none() || is_inside(*parent, inner);
        let Some(first) = self.pending.iter().position(concerns) else { return };
        for (parent, inner) in self.pending.split_off(first) {
            let inside = is_inside(parent, &inner);
            let is_same = inside && kind == Some(Kind::of(&inner));
            // a copy of the runtime is counted as the copies that it requests from the CUDA driver
            let is_requested =
                is_same && kind == Some(Kind::Copy) && call.api.is_above() && inner.is_complete_copy();
            if is_requested {
                *op = None;
            }
            if is_same && !is_requested {
                match op {
                    Some(outer) => outer.take_name_from(inner),
                    // only the inner launch shows what was launched
                    None if call.outcome == Outcome::Unobserved => *op = Some(inner),
                    None => {}
                }
            } else if let Some(around) = call.parent {
                self.pending.push_back((if inside { around } else { parent }, inner));
            } else {
                // nothing is around an outermost call, so everything before it is settled
                settled.push(inner);
            }
        }
    }

    /// Operations that were counted inside this call are inside the call around it as well.
    fn pass_counted(&mut self, call: &Call) {
        match call.parent {
            None => self.counted.clear(),
            Some(around) => {
                for kind in [Kind::Launch, Kind::Copy] {
                    if let Some(at) = self.counted.iter().position(|of| *of == (call.id, kind)) {
                        self.counted.remove(at);
                        self.mark_counted(around, kind);
                    }
                }
            }
        }
    }

    /// Stores an operation until the call around it is read. Beyond the bound the oldest is settled: the newest may
    /// be part of the call that returns next.
    fn add(&mut self, parent: u64, op: GpuOp, settled: &mut Vec<GpuOp>) {
        self.pending.push_back((parent, op));
        if self.pending.len() > MOST_PENDING
            && let Some((parent, oldest)) = self.pending.pop_front()
        {
            self.mark_counted(parent, Kind::of(&oldest));
            settled.push(oldest);
        }
    }

    fn mark_counted(&mut self, parent: u64, kind: Kind) {
        if self.counted.contains(&(parent, kind)) {
            return;
        }
        if self.counted.len() >= MOST_COUNTED {
            self.counted.pop_front();
        }
        self.counted.push_back((parent, kind));
    }
}
