//! Counters of GPU operations: launches, graph launches, copies, and the gaps between them.

use std::sync::Arc;

use serde::Serialize;

use super::{CallCounts, CommandCounts, LATENCY_BUCKETS, ProcessKey};
use crate::copy_kind::{CopyDirection, HostMemory, words};
use crate::ids::FunctionId;
use crate::unified::UnifiedTotals;

/// The smallest and the largest of some dimensions, by their product.
pub type Dimensions = Option<([u32; 3], [u32; 3])>;

/// The smallest and the largest of both.
fn widest(one: Dimensions, other: Dimensions) -> Dimensions {
    let (Some((least, most)), Some((other_least, other_most))) = (one, other) else { return one.or(other) };
    let volume = |d: &[u32; 3]| d.iter().map(|n| u128::from(*n)).product::<u128>();
    let least = if volume(&other_least) < volume(&least) { other_least } else { least };
    let most = if volume(&other_most) > volume(&most) { other_most } else { most };
    Some((least, most))
}

/// Launches of one CUDA kernel on one stream by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchCounts {
    pub process: ProcessKey,
    /// The handle of the CUDA kernel in the process.
    pub handle: u64,
    /// The name of the CUDA kernel, if known.
    pub kernel: Option<Arc<str>>,
    /// The stream; the high bit is set for a per-thread default stream, which is identified by the thread.
    pub stream: u64,
    pub totals: LaunchTotals,
}

/// Totals of launches. The time of a launch call is not that of the CUDA kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaunchTotals {
    /// Successful launches, without those that were captured into a graph.
    pub launches: u64,
    pub errors: u64,
    /// Threads of all launches together; launches with unknown block dimensions add none.
    pub threads: u64,
    /// Time inside the calls, in nanoseconds.
    pub total_ns: u64,
    /// The smallest and the largest grid.
    pub grid: Dimensions,
    /// The smallest and the largest block.
    pub block: Dimensions,
    /// The most bytes of dynamic shared memory.
    pub shared_most: u64,
    /// Launches whose return was not probed. Their time is an estimate, and they are taken to have succeeded.
    pub unprobed_returns: u64,
    /// Distribution of the time inside the calls, see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
}

impl LaunchTotals {
    /// Adds other launches. The number of threads comes from the process, so it saturates.
    pub fn add(&mut self, more: &Self) {
        self.launches += more.launches;
        self.errors += more.errors;
        self.threads = self.threads.saturating_add(more.threads);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
        self.grid = widest(self.grid, more.grid);
        self.block = widest(self.block, more.block);
        self.shared_most = self.shared_most.max(more.shared_most);
        self.unprobed_returns += more.unprobed_returns;
        self.latency.iter_mut().zip(more.latency).for_each(|(sum, n)| *sum += n);
    }
}

/// Graph launches of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphCounts {
    pub process: ProcessKey,
    /// Launches of graphs that succeeded.
    pub launches: u64,
    pub errors: u64,
    /// CUDA kernels of the launched graphs, counted for each launch.
    pub derived: u64,
    /// Launches of graphs whose creation was not seen, or not completely: not all their CUDA kernels are in `derived`.
    pub unknown: u64,
    /// CUDA kernels that were captured into a graph and not run.
    pub captured: u64,
    /// CUDA kernels of disabled nodes of the launched graphs. They did not run.
    pub disabled: u64,
    /// Conditional nodes of the launched graphs. Whether their CUDA kernels ran is not known.
    pub conditional: u64,
}

/// How often the graph launches of one process ran one CUDA kernel, as derived from how the graphs were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphKernelCounts {
    pub process: ProcessKey,
    /// The handle of the CUDA kernel in the process; 0 stands for all without a known handle.
    pub handle: u64,
    /// The name of the CUDA kernel, if known.
    pub kernel: Option<Arc<str>>,
    pub runs: u64,
}

/// Copies of one kind by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCounts {
    pub process: ProcessKey,
    /// Their totals.
    pub totals: CopyTotals,
}

/// Copies of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyTotals {
    pub direction: CopyDirection,
    /// Whether the calls may return before the copy is finished.
    pub is_async: bool,
    /// The host memory involved.
    pub host: HostMemory,
    /// Copies that succeeded. One call may make several.
    pub copies: u64,
    pub errors: u64,
    pub bytes: u64,
    /// Time inside the calls. For calls that wait it is the time of the copies and of what they waited for.
    pub total_ns: u64,
    /// By size: bucket `i` counts copies of `2^i` up to `2^(i+1)` bytes; the last also counts larger ones.
    pub sizes: [u64; LATENCY_BUCKETS],
}

impl CopyTotals {
    /// `sync` or `async`.
    pub fn mode(&self) -> &'static str {
        if self.is_async { "async" } else { "sync" }
    }
}

words! {
    /// What precedes a gap.
    GapKind {
        /// The return of a synchronization.
        AfterSync = "sync",
        /// The return of another launch.
        AfterLaunch = "launch",
    }
}

/// Gaps of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GapCounts {
    pub gaps: u64,
    pub total_ns: u64,
    /// Distribution of their lengths, see [`LATENCY_BUCKETS`].
    pub lengths: [u64; LATENCY_BUCKETS],
}

/// One of the longest gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongGap {
    pub ns: u64,
    /// When it began, on the monotonic clock.
    pub since_ns: u64,
    /// The event before the gap.
    pub kind: GapKind,
    /// The longest call of the launching thread during the gap, if there was one.
    pub meanwhile: Option<FunctionId>,
}

/// Times in which nothing was launched on one stream of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGaps {
    pub process: ProcessKey,
    /// The stream, as in [`LaunchCounts::stream`].
    pub stream: u64,
    /// In the order of [`GapKind::ALL`].
    pub gaps: [GapCounts; 2],
    /// The longest gaps, longest first.
    pub longest: Vec<LongGap>,
}

/// All rows about GPU operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOpRows {
    /// Launches, a row per process, CUDA kernel and stream.
    pub launches: Vec<LaunchCounts>,
    /// The calls that launched them, a row per process and function. Calls that launched nothing, because they were
    /// captured or made inside others, are among the other call counts.
    pub calls: Vec<CallCounts>,
    /// Graphs, a row per process.
    pub graphs: Vec<GraphCounts>,
    /// CUDA kernels run by graphs, a row per process and kernel.
    pub graph_kernels: Vec<GraphKernelCounts>,
    /// Copies, a row per process and kind of copy.
    pub copies: Vec<CopyCounts>,
    /// Gaps, a row per process and stream.
    pub gaps: Vec<StreamGaps>,
    /// Ioctls, a row per process and command.
    pub commands: Vec<CommandCounts>,
    /// Unified memory, a row per process.
    pub unified: Vec<(ProcessKey, UnifiedTotals)>,
}

impl GpuOpRows {
    pub fn is_empty(&self) -> bool {
        let no_gpu_ops = self.launches.is_empty() && self.graphs.is_empty() && self.copies.is_empty();
        no_gpu_ops && self.gaps.is_empty() && self.commands.is_empty() && self.unified.is_empty()
    }
}
