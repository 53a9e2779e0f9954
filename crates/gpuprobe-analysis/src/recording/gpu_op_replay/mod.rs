//! The work that recorded calls gave to GPUs, by the rules of the kernel side: each launch and each copy once, at its
//! outermost call, and what was captured not at all. Memory is bounded, whatever a trace says.

mod busiest;
mod idle;
mod op;
mod pending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS, LaunchTotals};
use gpuprobe_event::{Call, Class, CopyPart, Launch, Tgid, Transfer};

use self::busiest::Busy;
use self::idle::Idle;
use self::op::{Given, Task};
use self::pending::Inner;
use crate::gpu_ops::command_series::CommandSeries;
use crate::gpu_ops::copies;
use crate::gpu_ops::cuda_kernel_series::KernelSeries;
use crate::gpu_ops::launches::{self, GraphLaunches, KernelLaunches, OTHER_KERNELS, UNKNOWN_KERNEL};
use crate::gpu_ops::process_ops::Work;
use crate::stats::buckets::bucket;

/// Kernels with a row of their own; all others share one.
const MOST_KERNELS: usize = 4096;
/// Pairs of a kernel and a stream that are told apart.
const MOST_STREAMS: usize = 1 << 16;

/// Collects [`Work`] out of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workload {
    kernels: HashMap<Arc<str>, KernelLaunches>,
    streams: HashSet<(Arc<str>, Tgid, u64)>,
    graphs: GraphLaunches,
    copies: BTreeMap<CopyKey, CopyTotals>,
    batched: [u64; LATENCY_BUCKETS],
    busy: Busy,
    idle: Idle,
    inner: Inner,
}

type CopyKey = (CopyDirection, bool, HostMemory);

impl Workload {
    /// Takes in a call that is over.
    pub(crate) fn feed(&mut self, call: &Call) {
        let given = Given::of(call);
        let is_work = given.is_some();
        let mut over = Vec::new();
        self.inner.feed(call, given, &mut over);
        over.into_iter().for_each(|given| self.settle(given));
        if !is_work {
            self.idle.feed(call);
        }
        if call.parent.is_none() && !is_launch(call.class) {
            self.idle.meanwhile(call);
        }
    }

    /// A process has ended, or runs another program.
    pub(crate) fn clear(&mut self, tgid: Tgid) {
        self.inner.take_all_of(tgid).into_iter().for_each(|given| self.settle(given));
        self.busy.clear(tgid);
        self.idle.clear(tgid);
    }

    /// What it came to so far.
    pub(crate) fn report(&self) -> Work {
        // calls around some may never be told; at the end what is inside them counts by itself
        if !self.inner.is_empty() {
            let mut all = self.clone();
            all.inner.take_all().into_iter().for_each(|given| all.settle(given));
            return all.report();
        }
        let row = |(name, row): (&Arc<str>, &KernelLaunches)| KernelLaunches {
            kernel: name.as_ref().to_owned(),
            ..row.clone()
        };
        let mut kernels: Vec<_> = self.kernels.iter().map(row).collect();
        launches::sum_up(&mut kernels);
        let copies = self.copies.values().cloned().collect();
        Work {
            kernels,
            graphs: self.graphs,
            copies,
            gaps: self.idle.gaps(),
            // events are counted once, not read again and again
            launched: KernelSeries::default(),
            asked: CommandSeries::default(),
            busiest: self.busy.busiest(),
            batched: self.batched,
        }
    }

    fn settle(&mut self, given: Given) {
        match &given.task {
            Task::Launch(launch) => self.launch(launch, &given),
            Task::GraphLaunch(graph) => self.graph_launch(graph.kernels, &given),
            Task::Transfer(transfer) => self.transfer(transfer, &given),
        }
    }

    fn launch(&mut self, launch: &Launch, given: &Given) {
        let Launch { kernel, kernels, grid, block, shared, .. } = launch;
        if given.captured {
            self.graphs.capture(if given.failed { 0 } else { *kernels });
            return;
        }
        if *kernels == 0 {
            return;
        }
        let name = self.name_of(kernel.as_ref());
        let mut latency = [0; LATENCY_BUCKETS];
        latency[bucket(given.duration_ns)] = *kernels;
        // the time of a call that launches on several GPUs is that of each launch
        let total_ns = given.duration_ns.saturating_mul(*kernels);
        let mut one = LaunchTotals { total_ns, latency, ..LaunchTotals::default() };
        if given.failed {
            one.errors = *kernels;
        } else {
            one.launches = *kernels;
            one.threads = volume(grid).saturating_mul(volume(block)).saturating_mul(*kernels);
            (one.grid, one.block) = (grid.map(|d| (d, d)), block.map(|d| (d, d)));
            one.shared_most = *shared;
        }
        let on = (Arc::clone(&name), given.tgid, given.stream);
        let is_new = self.streams.len() < MOST_STREAMS && self.streams.insert(on);
        let row = self.kernels.entry(name).or_default();
        row.streams += u64::from(is_new);
        row.totals.add(&one);
        self.busy.launch(given);
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

    fn transfer(&mut self, transfer: &Transfer, given: &Given) {
        let Transfer { direction, is_async, host, bytes, parts, copied, .. } = transfer;
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
            self.busy.copy(given, *host);
            (one.copies, one.bytes) = (1, bytes.or(*copied).unwrap_or(0));
            one.sizes[bucket(one.bytes)] = 1;
            return self.add_copies(one);
        }
        for part in parts {
            let part = self::part(part, *is_async, std::mem::take(&mut one.total_ns));
            if part.total_ns > 0 {
                // the time of the whole is that of its first part
                self.busy.copy(given, part.host);
            }
            self.batched.iter_mut().zip(part.sizes).for_each(|(sum, n)| *sum = sum.saturating_add(n));
            self.add_copies(part);
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
    let mut totals = copies::none(part.direction, is_async, part.host);
    (totals.copies, totals.bytes, totals.total_ns) = (part.copies, part.bytes, total_ns);
    totals.sizes[bucket(part.bytes.checked_div(part.copies).unwrap_or(0))] = part.copies;
    totals
}

fn is_launch(class: Class) -> bool {
    matches!(class, Class::Launch | Class::GraphLaunch)
}

/// How many blocks a grid has, or threads a block; none where it is not told.
fn volume(dimensions: &Option<[u32; 3]>) -> u64 {
    let product = |d: &[u32; 3]| d.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul);
    dimensions.as_ref().map_or(0, product)
}
