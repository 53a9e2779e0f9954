//! The work that recorded calls gave to GPUs, by the rules of the kernel side: each launch and each copy once, at its
//! outermost call, and what was captured not at all. Memory is bounded, whatever a trace says.

mod given;
mod idle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};
use gpuprobe_event::{Call, Class, CopyPart, Tgid, Tid};

use self::given::{Given, Task};
use self::idle::Idle;
use crate::copies;
use crate::launches::{self, GraphLaunches, KernelLaunches, OTHER_KERNELS, UNKNOWN_KERNEL};
use crate::work::{Work, bucket};

/// Kernels with a row of their own; all others share one.
const MOST_KERNELS: usize = 4096;
/// Pairs of a kernel and a stream that are told apart.
const MOST_STREAMS: usize = 1 << 16;
/// Threads with calls inside others that are not over.
const MOST_THREADS: usize = 1 << 14;
/// Work of one thread that waits for the calls around it. A collective may launch many kernels.
const MOST_WAITING: usize = 256;

/// Collects [`Work`] out of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workload {
    kernels: HashMap<Arc<str>, KernelLaunches>,
    streams: HashSet<(Arc<str>, Tgid, u64)>,
    graphs: GraphLaunches,
    copies: BTreeMap<CopyKey, CopyTotals>,
    idle: Idle,
    /// Work given inside calls that have not been told yet: only these say whether it is theirs.
    waiting: HashMap<(Tgid, Tid), Vec<(u64, Given)>>,
}

type CopyKey = (CopyDirection, bool, HostMemory);

impl Workload {
    /// Takes in a call that is over.
    pub(crate) fn feed(&mut self, call: &Call) {
        let mut given = Given::of(call);
        if !self.waiting.is_empty() {
            self.meet_inner(call, given.as_mut());
        }
        match (given, call.parent) {
            (Some(given), Some(parent)) => self.wait(parent, given),
            (Some(given), None) => self.settle(given),
            (None, _) => self.idle.feed(call),
        }
        if call.parent.is_none() && !is_launch(call.class) {
            self.idle.meanwhile(call);
        }
    }

    /// A process has ended, or runs another program.
    pub(crate) fn clear(&mut self, tgid: Tgid) {
        self.idle.clear(tgid);
    }

    /// What it came to so far.
    pub(crate) fn report(&self) -> Work {
        // calls around some may never be told; at the end what is inside them counts by itself
        if !self.waiting.is_empty() {
            let mut all = self.clone();
            let waiting = std::mem::take(&mut all.waiting);
            waiting.into_values().flatten().for_each(|(_, given)| all.settle(given));
            return all.report();
        }
        let row = |(name, row): (&Arc<str>, &KernelLaunches)| KernelLaunches {
            kernel: name.as_ref().to_owned(),
            ..row.clone()
        };
        let mut kernels: Vec<_> = self.kernels.iter().map(row).collect();
        launches::sum_up(&mut kernels);
        let copies = self.copies.values().cloned().collect();
        Work { kernels, graphs: self.graphs, copies, gaps: self.idle.gaps().clone() }
    }

    /// What was given inside a call that is told now belongs to it where both are of one kind.
    fn meet_inner(&mut self, call: &Call, mut outer: Option<&mut Given>) {
        let thread = (call.tgid, call.tid);
        let Some(waiting) = self.waiting.get_mut(&thread) else { return };
        if waiting.iter().all(|(parent, _)| *parent != call.id) {
            return;
        }
        let mut over = Vec::new();
        let mut rest = Vec::new();
        for (parent, inner) in std::mem::take(waiting) {
            if parent != call.id {
                rest.push((parent, inner));
            } else if is_same_work(call.class, &inner) {
                if let Some(outer) = outer.as_deref_mut() {
                    outer.learn(inner);
                }
            } else if let Some(around) = call.parent {
                rest.push((around, inner));
            } else {
                over.push(inner);
            }
        }
        if rest.is_empty() {
            self.waiting.remove(&thread);
        } else {
            self.waiting.insert(thread, rest);
        }
        over.into_iter().for_each(|given| self.settle(given));
    }

    /// Keeps work until the call around it is told.
    fn wait(&mut self, parent: u64, given: Given) {
        let thread = (given.tgid, given.tid);
        let is_full = self.waiting.len() >= MOST_THREADS && !self.waiting.contains_key(&thread);
        if is_full {
            return self.settle(given);
        }
        let waiting = self.waiting.entry(thread).or_default();
        if waiting.len() >= MOST_WAITING {
            return self.settle(given);
        }
        waiting.push((parent, given));
    }

    fn settle(&mut self, given: Given) {
        match &given.task {
            Task::Launch { .. } => self.launch(&given),
            Task::GraphLaunch { kernels } => self.graph_launch(*kernels, &given),
            Task::Copy { .. } => self.copy(&given),
        }
    }

    fn launch(&mut self, given: &Given) {
        let Task::Launch { kernel, kernels, grid, block, shared } = &given.task else { return };
        if given.captured {
            self.graphs.capture(if given.failed { 0 } else { *kernels });
            return;
        }
        let name = self.name_of(kernel.as_ref());
        let mut latency = [0; LATENCY_BUCKETS];
        latency[bucket(given.duration_ns)] = if given.failed { 1 } else { *kernels };
        let mut one = KernelLaunches { total_ns: given.duration_ns, latency, ..KernelLaunches::default() };
        if given.failed {
            one.errors = 1;
        } else {
            one.launches = *kernels;
            one.threads = volume(grid).saturating_mul(volume(block)).saturating_mul(*kernels);
            (one.grid, one.block) = (grid.map(|d| (d, d)), block.map(|d| (d, d)));
            one.shared_most = *shared;
        }
        let on = (Arc::clone(&name), given.tgid, given.stream);
        if self.streams.len() < MOST_STREAMS && self.streams.insert(on) {
            one.streams = 1;
        }
        self.kernels.entry(name).or_default().add(&one);
        if !given.failed {
            self.idle.launch(given);
        }
    }

    /// The name of a row for launches of a kernel.
    fn name_of(&self, kernel: Option<&Arc<str>>) -> Arc<str> {
        match kernel {
            None => Arc::from(UNKNOWN_KERNEL),
            Some(name) if self.kernels.len() < MOST_KERNELS || self.kernels.contains_key(name) => {
                Arc::clone(name)
            }
            Some(_) => Arc::from(OTHER_KERNELS),
        }
    }

    fn graph_launch(&mut self, kernels: Option<u64>, given: &Given) {
        if given.captured {
            self.graphs.capture(if given.failed { 0 } else { kernels.unwrap_or(0) });
        } else if given.failed {
            self.graphs.errors += 1;
        } else {
            self.graphs.launch(kernels);
            self.idle.launch(given);
        }
    }

    fn copy(&mut self, given: &Given) {
        let Task::Copy { direction, is_async, host, size, parts } = &given.task else { return };
        if given.captured {
            return;
        }
        let mut one = copies::none(*direction, *is_async, *host);
        one.total_ns = given.duration_ns;
        if given.failed {
            // the time of what failed says nothing
            (one.errors, one.total_ns) = (1, 0);
            return self.add_copies(one);
        }
        if parts.is_empty() {
            (one.copies, one.bytes) = (1, *size);
            one.sizes[bucket(*size)] = 1;
            return self.add_copies(one);
        }
        for part in parts {
            self.add_copies(self::part(part, *is_async, std::mem::take(&mut one.total_ns)));
        }
    }

    fn add_copies(&mut self, more: CopyTotals) {
        let key = copies::key(&more);
        match self.copies.get_mut(&key) {
            Some(sum) => copies::add(sum, &more),
            None => drop(self.copies.insert(key, more)),
        }
    }
}

/// Copies of a batch. Their sizes are told together, so that each counts as one of the mean.
fn part(part: &CopyPart, is_async: bool, total_ns: u64) -> CopyTotals {
    let direction = given::direction(part.kind.as_deref());
    let host = given::host(direction, part.host.as_deref());
    let mut totals = copies::none(direction, is_async, host);
    (totals.copies, totals.bytes, totals.total_ns) = (part.copies, part.bytes, total_ns);
    totals.sizes[bucket(part.bytes.checked_div(part.copies).unwrap_or(0))] = part.copies;
    totals
}

fn is_launch(class: Class) -> bool {
    matches!(class, Class::Launch | Class::GraphLaunch)
}

fn is_same_work(class: Class, inner: &Given) -> bool {
    match inner.task {
        Task::Launch { .. } | Task::GraphLaunch { .. } => is_launch(class),
        Task::Copy { .. } => matches!(class, Class::Memcpy | Class::Memset),
    }
}

/// How many blocks a grid has, or threads a block; none where it is not told.
fn volume(dimensions: &Option<[u32; 3]>) -> u64 {
    let product = |d: &[u32; 3]| d.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul);
    dimensions.as_ref().map_or(0, product)
}
