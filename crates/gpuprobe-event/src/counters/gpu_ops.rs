//! Work given to GPUs: launches, graphs, copies, and the gaps between them.

use std::sync::Arc;

use serde::Serialize;

use super::{CallCounts, CommandCounts, LATENCY_BUCKETS, ProcessKey};
use crate::copy_kind::{CopyDirection, HostMemory, words};
use crate::ids::FunctionId;
use crate::unified::UnifiedTotals;

/// The smallest and the largest of some dimensions, by their product.
pub type Dimensions = Option<([u32; 3], [u32; 3])>;

/// The dimensions that take in both.
fn widest(one: Dimensions, other: Dimensions) -> Dimensions {
    let (Some((least, most)), Some((other_least, other_most))) = (one, other) else { return one.or(other) };
    let volume = |d: &[u32; 3]| d.iter().map(|n| u128::from(*n)).product::<u128>();
    let least = if volume(&other_least) < volume(&least) { other_least } else { least };
    let most = if volume(&other_most) > volume(&most) { other_most } else { most };
    Some((least, most))
}

/// Launches of one kernel on one stream by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchCounts {
    /// Which process.
    pub process: ProcessKey,
    /// What was launched, as the process names it.
    pub handle: u64,
    /// What it is called, where that is known.
    pub kernel: Option<Arc<str>>,
    /// On which stream; the high bit is set for a thread's own default stream, which is named by the thread.
    pub stream: u64,
    /// What was launched so.
    pub totals: LaunchTotals,
}

/// Launches that are summed up. A launch call's time is not the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaunchTotals {
    /// Launches that succeeded, without those that were captured into a graph.
    pub launches: u64,
    /// Launches that failed.
    pub errors: u64,
    /// Threads of all launches together; those whose blocks are not told have none.
    pub threads: u64,
    /// Time inside the calls, in nanoseconds.
    pub total_ns: u64,
    /// The smallest and the largest grid.
    pub grid: Dimensions,
    /// The smallest and the largest block.
    pub block: Dimensions,
    /// The most bytes of dynamic shared memory.
    pub shared_most: u64,
    /// Distribution of the time inside the calls, see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
}

impl LaunchTotals {
    /// Adds other launches. What a process says of threads may be anything.
    pub fn add(&mut self, more: &Self) {
        self.launches += more.launches;
        self.errors += more.errors;
        self.threads = self.threads.saturating_add(more.threads);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
        self.grid = widest(self.grid, more.grid);
        self.block = widest(self.block, more.block);
        self.shared_most = self.shared_most.max(more.shared_most);
        self.latency.iter_mut().zip(more.latency).for_each(|(sum, n)| *sum += n);
    }
}

/// What one process did with graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphCounts {
    /// Which process.
    pub process: ProcessKey,
    /// Launches of graphs that succeeded.
    pub launches: u64,
    /// Launches that failed.
    pub errors: u64,
    /// Kernels of the graphs that were launched, counted once for each launch.
    pub derived: u64,
    /// Of the launches, those of graphs whose making was not seen: their kernels are not among the derived.
    pub unknown: u64,
    /// Kernels that were captured, and not run.
    pub captured: u64,
}

/// Copies of one kind by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCounts {
    /// Which process.
    pub process: ProcessKey,
    /// What it copied.
    pub totals: CopyTotals,
}

/// Copies of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyTotals {
    /// Which way.
    pub direction: CopyDirection,
    /// Whether the calls may return before the copy is done.
    pub is_async: bool,
    /// The host memory.
    pub host: HostMemory,
    /// Copies that succeeded. One call may make several.
    pub copies: u64,
    /// Copies that failed.
    pub errors: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Time inside the calls; of those that wait it is that of the copies, with what they had to wait for.
    pub total_ns: u64,
    /// By size: bucket `i` counts copies of `2^i` up to `2^(i+1)` bytes; the last takes everything larger.
    pub sizes: [u64; LATENCY_BUCKETS],
}

impl CopyTotals {
    /// `sync` or `async`.
    pub fn mode(&self) -> &'static str {
        if self.is_async { "async" } else { "sync" }
    }
}

words! {
    /// What a gap begins with.
    GapKind {
        /// The return of a synchronisation.
        AfterSync = "sync",
        /// The return of another launch.
        AfterLaunch = "launch",
    }
}

/// Gaps of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GapCounts {
    /// How many.
    pub gaps: u64,
    /// Their time together.
    pub total_ns: u64,
    /// Distribution of their lengths, see [`LATENCY_BUCKETS`].
    pub lengths: [u64; LATENCY_BUCKETS],
}

/// One of the longest gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongGap {
    /// How long.
    pub ns: u64,
    /// When it began, on the kernel's monotonic clock.
    pub since_ns: u64,
    /// What it began with.
    pub kind: GapKind,
    /// The call that took the launching thread longest meanwhile, if it made any.
    pub meanwhile: Option<FunctionId>,
}

/// The time in which one stream of one process was given nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGaps {
    /// Which process.
    pub process: ProcessKey,
    /// Which stream, as [`LaunchCounts::stream`].
    pub stream: u64,
    /// In the order of [`GapKind::ALL`].
    pub gaps: [GapCounts; 2],
    /// The longest ones, longest first.
    pub longest: Vec<LongGap>,
}

/// All rows about work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkRows {
    /// Launches, a row per process, kernel and stream.
    pub launches: Vec<LaunchCounts>,
    /// The calls that made them, a row per process and function: without those that launched nothing, because they
    /// were captured or are made inside others. Those have a row among the other counts.
    pub calls: Vec<CallCounts>,
    /// Graphs, a row per process.
    pub graphs: Vec<GraphCounts>,
    /// Copies, a row per process and kind of copy.
    pub copies: Vec<CopyCounts>,
    /// Gaps, a row per process and stream.
    pub gaps: Vec<StreamGaps>,
    /// What was asked of the driver, a row per process and command.
    pub commands: Vec<CommandCounts>,
    /// What became of unified memory, a row per process.
    pub unified: Vec<(ProcessKey, UnifiedTotals)>,
}

impl WorkRows {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let nothing_given = self.launches.is_empty() && self.graphs.is_empty() && self.copies.is_empty();
        nothing_given && self.gaps.is_empty() && self.commands.is_empty() && self.unified.is_empty()
    }
}
