//! All GPU operations of one process.

use gpuprobe_event::counters::{CopyTotals, GpuOpRows, LATENCY_BUCKETS};
use serde::Serialize;

use crate::gpu_ops::command_series::CommandSeries;
use crate::gpu_ops::copies;
use crate::gpu_ops::cuda_kernel_series::CudaKernelSeries;
use crate::gpu_ops::gaps::Gaps;
use crate::gpu_ops::launches::{self, CudaKernelLaunches, GraphLaunches};

/// CUDA kernels kept for an exited process.
const MOST_KEPT: usize = 64;

/// Launches, copies, and the gaps between launches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuOps {
    /// By CUDA kernel, most launches first.
    pub kernels: Vec<CudaKernelLaunches>,
    /// The same launches as counters that never decrease.
    #[serde(skip)]
    pub launched: CudaKernelSeries,
    /// CUDA kernels run by launches of graphs, as counters that never decrease.
    #[serde(skip)]
    pub graph_kernels: CudaKernelSeries,
    /// Requests to the NVIDIA kernel module.
    #[serde(skip)]
    pub requests: CommandSeries,
    pub graphs: GraphLaunches,
    /// By direction, mode and host memory.
    pub copies: Vec<CopyTotals>,
    pub gaps: Gaps,
    /// The time of the busiest threads; `None` if the source does not distinguish threads.
    #[serde(skip)]
    pub busiest: Option<Busiest>,
    /// The copies that were part of a batch, by size. All zero if the source does not distinguish calls.
    #[serde(skip)]
    pub batched: [u64; LATENCY_BUCKETS],
}

/// The time of the thread of a process that spent most; for several processes, the sum. Threads run at the same time,
/// so the sum over all threads of a process could exceed the time observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busiest {
    /// In short launch calls.
    pub launching_ns: u64,
    /// In copies from or to pageable memory.
    pub copying_ns: u64,
}

impl GpuOps {
    /// The operations of an exited process.
    pub(crate) fn of_exited(rows: &GpuOpRows) -> Self {
        let mut gpu_ops = Self {
            kernels: launches::by_kernel(&rows.launches, &rows.graph_kernels),
            copies: rows.copies.iter().map(|row| row.totals.clone()).collect(),
            ..Self::default()
        };
        rows.graphs.iter().for_each(|row| gpu_ops.graphs.add_row(row));
        rows.gaps.iter().for_each(|row| gpu_ops.gaps.add_row(row));
        gpu_ops.tidy();
        gpu_ops.kernels = launches::top(&gpu_ops.kernels, MOST_KEPT);
        gpu_ops
    }

    /// Merges rows with the same key.
    pub(crate) fn tidy(&mut self) {
        launches::sum_up(&mut self.kernels);
        copies::sum_up(&mut self.copies);
    }

    /// Adds another run that shares its metric series with this one. Unlike [`Self::add`] it keeps every CUDA kernel
    /// of both runs as a series of its own.
    pub(crate) fn add_run(&mut self, more: &Self) {
        let mut series = [std::mem::take(&mut self.launched), std::mem::take(&mut self.graph_kernels)];
        series[0].add_run(&more.launched);
        series[1].add_run(&more.graph_kernels);
        self.add(more);
        [self.launched, self.graph_kernels] = series;
    }

    /// Adds the operations of another process.
    pub(crate) fn add(&mut self, more: &Self) {
        self.kernels.extend(more.kernels.iter().cloned());
        self.launched.add(&more.launched);
        self.graph_kernels.add(&more.graph_kernels);
        self.requests.add(&more.requests);
        self.graphs.add(&more.graphs);
        self.copies.extend(more.copies.iter().cloned());
        self.gaps.add(&more.gaps);
        self.tidy();
        self.kernels = launches::top(&self.kernels, MOST_KEPT);
    }
}
