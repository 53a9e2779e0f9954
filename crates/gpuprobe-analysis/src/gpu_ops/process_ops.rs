//! All work that one process gave to GPUs.

use gpuprobe_event::counters::{CopyTotals, LATENCY_BUCKETS, WorkRows};
use serde::Serialize;

use crate::gpu_ops::command_series::CommandSeries;
use crate::gpu_ops::copies;
use crate::gpu_ops::cuda_kernel_series::KernelSeries;
use crate::gpu_ops::gaps::Gaps;
use crate::gpu_ops::launches::{self, GraphLaunches, KernelLaunches};

/// Kernels kept of processes that ended.
const MOST_KEPT: usize = 64;

/// What was launched and copied, and when nothing was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// By kernel, most launches first.
    pub kernels: Vec<KernelLaunches>,
    /// The same as counters that only rise.
    #[serde(skip)]
    pub launched: KernelSeries,
    /// What was asked of the driver.
    #[serde(skip)]
    pub asked: CommandSeries,
    /// Graphs.
    pub graphs: GraphLaunches,
    /// By kind of copy.
    pub copies: Vec<CopyTotals>,
    /// Gaps.
    pub gaps: Gaps,
    /// What the busiest threads did; nothing where threads are not told apart.
    #[serde(skip)]
    pub busiest: Option<Busiest>,
    /// Of the copies, those that were made in batches, by size; where calls are not told apart there are none.
    #[serde(skip)]
    pub batched: [u64; LATENCY_BUCKETS],
}

/// Time of that thread of a process which spent most so; of several processes, the sum. Threads work at the same time, so
/// what all of them spent can be more than the time watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busiest {
    /// In launch calls that were short.
    pub launching_ns: u64,
    /// In copies from and to pageable memory.
    pub copying_ns: u64,
}

impl Work {
    /// All of one process that ended.
    pub(crate) fn of_ended(rows: &WorkRows) -> Self {
        let mut work = Self {
            kernels: launches::by_kernel(&rows.launches),
            copies: rows.copies.iter().map(|row| row.totals.clone()).collect(),
            ..Self::default()
        };
        rows.graphs.iter().for_each(|row| work.graphs.add_row(row));
        rows.gaps.iter().for_each(|row| work.gaps.add_row(row));
        work.tidy();
        work.kernels = launches::top(&work.kernels, MOST_KEPT);
        work
    }

    /// Sums up rows that belong together.
    pub(crate) fn tidy(&mut self) {
        launches::sum_up(&mut self.kernels);
        copies::sum_up(&mut self.copies);
    }

    /// Adds what another run did whose series are the same: none may be lost to those of others.
    pub(crate) fn add_run(&mut self, more: &Self) {
        let mut launched = std::mem::take(&mut self.launched);
        launched.add_run(&more.launched);
        self.add(more);
        self.launched = launched;
    }

    /// Adds what another process did.
    pub(crate) fn add(&mut self, more: &Self) {
        self.kernels.extend(more.kernels.iter().cloned());
        self.launched.add(&more.launched);
        self.asked.add(&more.asked);
        self.graphs.add(&more.graphs);
        self.copies.extend(more.copies.iter().cloned());
        self.gaps.add(&more.gaps);
        self.tidy();
        self.kernels = launches::top(&self.kernels, MOST_KEPT);
    }
}
