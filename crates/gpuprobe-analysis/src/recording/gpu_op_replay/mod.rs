//! GPU operations computed from recorded calls, by the same rules as the BPF side: each launch and each copy counts
//! once, at its outermost call, and captured operations do not count. Memory is bounded for any input.

mod busiest;
mod last_ops;
#[cfg(test)]
mod late_record_tests;
mod op;
mod pending;
mod stream_gaps;
mod stream_idle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS, LaunchTotals};
use gpuprobe_event::{Call, Class, CopyPart, GraphLaunch, Launch, Tgid, Transfer};

use self::busiest::BusiestThreads;
use self::last_ops::LastOps;
use self::op::{GpuOp, OpKind};
use self::pending::PendingOps;
use self::stream_gaps::StreamGapTracker;
pub use self::stream_idle::{IdleGroup, IdleSummary, StreamIdle};
use crate::gpu_ops::command_series::CommandSeries;
use crate::gpu_ops::copies;
use crate::gpu_ops::cuda_kernel_series::CudaKernelSeries;
use crate::gpu_ops::launches::{self, CudaKernelLaunches, GraphLaunches, OTHER_KERNELS, UNKNOWN_KERNEL};
use crate::gpu_ops::process_ops::GpuOps;
use crate::stats::buckets::bucket;
use crate::threads::sample::LastOperation;

/// CUDA kernels with a row of their own; all others share one.
const MOST_KERNELS: usize = 4096;
/// Pairs of a CUDA kernel and a stream that are distinguished.
const MOST_STREAMS: usize = 1 << 16;

/// Collects [`GpuOps`] from calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuOpReplay {
    kernels: HashMap<Arc<str>, CudaKernelLaunches>,
    streams: HashSet<(Arc<str>, Tgid, u64)>,
    graphs: GraphLaunches,
    copies: BTreeMap<CopyKey, CopyTotals>,
    batched: [u64; LATENCY_BUCKETS],
    busiest: BusiestThreads,
    gap_tracker: StreamGapTracker,
    last_ops: LastOps,
    pending: PendingOps,
}

type CopyKey = (CopyDirection, bool, HostMemory);

impl GpuOpReplay {
    pub(crate) fn feed(&mut self, call: &Call) {
        let op = GpuOp::of(call);
        let is_op = op.is_some();
        let mut settled = Vec::new();
        self.pending.feed(call, op, &mut settled);
        settled.into_iter().for_each(|op| self.count(op));
        if !is_op {
            self.gap_tracker.feed(call);
        }
        if call.parent.is_none() && !is_launch(call.class) {
            self.gap_tracker.meanwhile(call);
        }
    }

    /// Settles a process that exited or runs another program.
    pub(crate) fn clear(&mut self, tgid: Tgid) {
        self.pending.take_all_of(tgid).into_iter().for_each(|op| self.count(op));
        self.busiest.clear(tgid);
        self.gap_tracker.clear(tgid);
        self.last_ops.clear(tgid);
    }

    pub(crate) fn report(&self) -> GpuOps {
        // the calls around some operations are missing in the trace; these operations count by themselves
        if !self.pending.is_empty() {
            let mut all = self.clone();
            all.pending.take_all().into_iter().for_each(|op| all.count(op));
            return all.report();
        }
        let row = |(name, row): (&Arc<str>, &CudaKernelLaunches)| CudaKernelLaunches {
            kernel: name.as_ref().to_owned(),
            ..row.clone()
        };
        let mut kernels: Vec<_> = self.kernels.iter().map(row).collect();
        launches::sum_up(&mut kernels);
        let copies = self.copies.values().cloned().collect();
        GpuOps {
            kernels,
            graphs: self.graphs,
            copies,
            gaps: self.gap_tracker.gaps(),
            // these are for tables that are read repeatedly
            launched: CudaKernelSeries::default(),
            graph_kernels: CudaKernelSeries::default(),
            requests: CommandSeries::default(),
            busiest: self.busiest.busiest(),
            batched: self.batched,
        }
    }

    /// The idle time of streams.
    pub(crate) fn idle(&self) -> IdleSummary {
        if self.pending.is_empty() {
            return self.gap_tracker.idle();
        }
        let mut all = self.clone();
        all.pending.take_all().into_iter().for_each(|op| all.count(op));
        all.gap_tracker.idle()
    }

    /// The last operation on each stream of each process, including those of calls whose records come later.
    pub(crate) fn last_operations(&self, later: &[Call], now_ns: u64) -> HashMap<Tgid, Vec<LastOperation>> {
        if later.is_empty() {
            return self.last_ops.report(now_ns);
        }
        let mut all = self.clone();
        later.iter().for_each(|call| all.feed(call));
        all.last_ops.report(now_ns)
    }

    fn count(&mut self, op: GpuOp) {
        self.last_ops.take(&op);
        match &op.kind {
            OpKind::Launch(launch) => self.launch(launch, &op),
            OpKind::GraphLaunch(launch) => self.graph_launch(launch, &op),
            OpKind::Transfer(transfer) => self.transfer(transfer, &op),
        }
    }

    fn launch(&mut self, launch: &Launch, op: &GpuOp) {
        let Launch { kernel, kernels, grid, block, shared, .. } = launch;
        if op.captured {
            self.graphs.capture(if op.failed { 0 } else { kernels.saturating_mul(op.weight) });
            return;
        }
        if *kernels == 0 {
            return;
        }
        let launches = kernels.saturating_mul(op.weight);
        let name = self.name_of(kernel.as_ref());
        let mut latency = [0; LATENCY_BUCKETS];
        latency[bucket(op.duration_ns)] = launches;
        // a call that launches on several GPUs counts with its full time for each launch
        let total_ns = op.duration_ns.saturating_mul(launches);
        let mut one = LaunchTotals { total_ns, latency, ..LaunchTotals::default() };
        if op.failed {
            one.errors = launches;
        } else {
            one.launches = launches;
            one.threads = volume(grid).saturating_mul(volume(block)).saturating_mul(launches);
            (one.grid, one.block) = (grid.map(|d| (d, d)), block.map(|d| (d, d)));
            one.shared_most = *shared;
            one.unprobed_returns = if op.return_probed { 0 } else { launches };
        }
        let on = (Arc::clone(&name), op.tgid, op.stream);
        let is_new = self.streams.len() < MOST_STREAMS && self.streams.insert(on);
        let row = self.kernels.entry(name).or_default();
        row.streams += u64::from(is_new);
        row.totals.add(&one);
        self.busiest.launch(op);
        // between the turns of sampled functions, launches are not seen
        if !op.failed && op.weight == 1 {
            self.gap_tracker.launch(op);
        }
    }

    /// The name of the row for launches of a CUDA kernel.
    fn name_of(&self, kernel: Option<&Arc<str>>) -> Arc<str> {
        match kernel {
            None => Arc::from(UNKNOWN_KERNEL),
            Some(name) if self.kernels.len() < MOST_KERNELS || self.kernels.contains_key(name) => {
                Arc::clone(name)
            }
            Some(_) => Arc::from(OTHER_KERNELS),
        }
    }

    fn graph_launch(&mut self, launch: &GraphLaunch, op: &GpuOp) {
        if op.captured {
            let kernels = launch.kernels.unwrap_or(0).saturating_mul(op.weight);
            self.graphs.capture(if op.failed { 0 } else { kernels });
        } else if op.failed {
            self.graphs.errors += op.weight;
        } else {
            self.graphs.launch(launch, op.weight);
            self.graph_kernels(launch, op.weight);
            if op.weight == 1 {
                self.gap_tracker.launch(op);
            }
        }
    }

    /// Counts the CUDA kernels of a launched graph by name.
    fn graph_kernels(&mut self, launch: &GraphLaunch, weight: u64) {
        let all = launch.kernels.unwrap_or(0);
        let named = launch.contents.as_ref().map_or(&[][..], |contents| &contents.kernels);
        let sum = |kernels: &[(_, u64)]| kernels.iter().fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
        // a trace can claim any number
        let named = if sum(named) <= all { named } else { &[] };
        let unnamed = all - sum(named);
        let unnamed = (unnamed > 0).then_some((&None, unnamed));
        for (name, n) in named.iter().map(|(name, n)| (name, *n)).chain(unnamed) {
            let row = self.kernels.entry(self.name_of(name.as_ref())).or_default();
            row.in_graphs = row.in_graphs.saturating_add(n.saturating_mul(weight));
        }
    }

    fn transfer(&mut self, transfer: &Transfer, op: &GpuOp) {
        let Transfer { direction, is_async, host, bytes, parts, copied, .. } = transfer;
        if op.captured {
            return;
        }
        let mut one = copies::none(*direction, *is_async, *host);
        one.total_ns = op.duration_ns.saturating_mul(op.weight);
        if op.failed {
            // the time of a failed copy is not counted
            (one.errors, one.total_ns) = (op.weight, 0);
            return self.add_copies(one);
        }
        if op.weight == 1 {
            self.gap_tracker.copy(op);
        }
        if parts.is_empty() {
            self.busiest.copy(op, *host);
            let bytes = bytes.or(*copied).unwrap_or(0);
            (one.copies, one.bytes) = (op.weight, bytes.saturating_mul(op.weight));
            one.sizes[bucket(bytes)] = op.weight;
            return self.add_copies(one);
        }
        for part in parts {
            let part = self::part(part, *is_async, std::mem::take(&mut one.total_ns), op.weight);
            if part.total_ns > 0 {
                // the time of the batch is attributed to its first part
                self.busiest.copy(op, part.host);
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

/// Copies of a batch. Only the sum of their sizes is known, so each counts with the mean size.
fn part(part: &CopyPart, is_async: bool, total_ns: u64, weight: u64) -> CopyTotals {
    let mut totals = copies::none(part.direction, is_async, part.host);
    let copies = part.copies.saturating_mul(weight);
    (totals.copies, totals.bytes, totals.total_ns) = (copies, part.bytes.saturating_mul(weight), total_ns);
    totals.sizes[bucket(part.bytes.checked_div(part.copies).unwrap_or(0))] = copies;
    totals
}

fn is_launch(class: Class) -> bool {
    matches!(class, Class::Launch | Class::GraphLaunch)
}

/// The number of blocks in a grid, or of threads in a block; 0 if unknown.
fn volume(dimensions: &Option<[u32; 3]>) -> u64 {
    let product = |d: &[u32; 3]| d.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul);
    dimensions.as_ref().map_or(0, product)
}
