//! Advice derived from the launches, copies and gaps of a program. Each advice carries the numbers it is based on,
//! and none is given on little evidence.

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};
use serde::Serialize;

use crate::gpu_ops::gaps::SHORT_GAP_LOG2;
use crate::gpu_ops::launches::SHORT_LAUNCH_LOG2;
use crate::gpu_ops::process_ops::GpuOps;
use crate::stats::buckets::{Bound, count_below, least_sum_below, percentile};

/// A program observed for a shorter time gains nothing from a change.
const LEAST_WATCHED_NS: u64 = 500_000_000;

/// A copy of up to 64 KiB is staged at once, so pinned memory gains little.
const LARGE_COPY_LOG2: usize = 16;
/// Ten milliseconds at the roughly 6 GB/s of pageable memory.
const LEAST_PAGEABLE_BYTES: u64 = 64 << 20;
/// Pinned memory roughly halves the time. Below this share the change is not worth it.
const LEAST_PAGEABLE_PER_CENT: u64 = 5;

/// For a smaller copy the call takes longer than the transfer.
const TINY_COPY_LOG2: usize = 12;
/// Fewer tiny copies are no pattern.
const LEAST_TINY_COPIES: u64 = 1000;
/// At roughly 10 us per tiny copy this is one per cent of the time.
const LEAST_TINY_PER_SECOND: u64 = 1000;

/// Fewer launches are no pattern.
const LEAST_LAUNCHES: u64 = 1000;
/// The time is summed from the lower bounds of buckets, so the true share is up to twice as high.
const LEAST_LAUNCHING_PER_CENT: u64 = 40;

/// Fewer waits are no loop.
const LEAST_WAITS: u64 = 200;
/// In a loop that waits for each launch, every launch follows a synchronization. A wait for an event counts for every
/// stream, so a pipeline that waits for events of one stream and launches on others has many such launches too. But
/// most pipelines queue more than one launch between two waits and stay below this share.
const LEAST_WAITS_PER_CENT: u64 = 90;
/// The least share of time in gaps after waits. Less would not be noticed.
const LEAST_AFTER_WAITS_PER_CENT: u64 = 5;

/// One piece of advice with its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Advice {
    /// Large copies from or to pageable memory, which the CUDA driver stages through a buffer.
    PageableCopies {
        copies: u64,
        bytes: u64,
        /// Time inside the calls, over all threads.
        ns: u64,
        /// The time observed.
        observed_ns: u64,
    },
    /// Many copies that are too small to be worth a call.
    TinyCopies {
        /// Copies of less than 4 KiB.
        tiny: u64,
        /// All copies, except those known to be part of a batch, which is one call.
        copies: u64,
        /// Their median size in bytes.
        median: Bound,
        /// The time observed.
        observed_ns: u64,
    },
    /// The host spends most of its time launching.
    LaunchBound {
        /// Launches of CUDA kernels.
        launches: u64,
        /// A lower bound for the time in short launch calls, over all threads.
        calls_ns: u64,
        /// A lower bound for the time between these and the next launches. Only known for a single stream, otherwise 0.
        gaps_ns: u64,
        /// The time observed.
        observed_ns: u64,
    },
    /// The host waits for the GPU before most launches.
    SyncInLoop {
        /// Launches shortly after a synchronization.
        waits: u64,
        /// All launches that end a gap.
        launches: u64,
        /// A lower bound for the time in short gaps after synchronizations, of the stream where it is longest.
        after_waits_ns: u64,
        /// The time observed.
        observed_ns: u64,
    },
}

impl Advice {
    /// The name of the rule that gives it.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::PageableCopies { .. } => "pageable_copies",
            Self::TinyCopies { .. } => "tiny_copies",
            Self::LaunchBound { .. } => "launch_bound",
            Self::SyncInLoop { .. } => "sync_in_loop",
        }
    }

    /// What to do, as a sentence.
    pub fn what(&self) -> &'static str {
        match self {
            Self::PageableCopies { .. } => {
                "copy from and to pinned memory (cudaMallocHost, cudaHostRegister, pin_memory)"
            }
            Self::TinyCopies { .. } => "combine small copies into fewer large ones",
            Self::LaunchBound { .. } => "put kernels into a CUDA graph, or fuse small ones",
            Self::SyncInLoop { .. } => "synchronize once after the loop instead of in every iteration",
        }
    }
}

/// All advice for these operations, observed for this time. For several processes it is the sum of their times.
pub fn advice(gpu_ops: &GpuOps, observed_ns: u64) -> Vec<Advice> {
    if observed_ns < LEAST_WATCHED_NS {
        return Vec::new();
    }
    let rules = [pageable_copies, tiny_copies, launch_bound, sync_in_loop];
    rules.iter().filter_map(|rule| rule(gpu_ops, observed_ns)).collect()
}

/// Whether `part` is at least `per_cent` of `whole`.
fn is_share(part: u64, whole: u64, per_cent: u64) -> bool {
    u128::from(part) * 100 >= u128::from(whole) * u128::from(per_cent)
}

/// An estimate of the time of one thread from the sum over all threads: it assumes one thread for each stream, and at
/// least as many threads as are needed to spend that much time.
fn of_one_thread(gpu_ops: &GpuOps, all_ns: u64, observed_ns: u64) -> u64 {
    let threads = gpu_ops.gaps.streams.max(all_ns.div_ceil(observed_ns.max(1))).max(1);
    all_ns / threads
}

fn pageable_copies(gpu_ops: &GpuOps, observed_ns: u64) -> Option<Advice> {
    let crosses = |copy: &&CopyTotals| {
        let direction = matches!(copy.direction, CopyDirection::HostToDevice | CopyDirection::DeviceToHost);
        direction && copy.host == HostMemory::Pageable
    };
    let (mut copies, mut bytes, mut ns) = (0_u64, 0_u64, 0_u64);
    // a row has only sums of bytes and times, so the average size of its copies decides
    for row in
        gpu_ops.copies.iter().filter(crosses).filter(|row| row.bytes >> LARGE_COPY_LOG2 >= row.copies.max(1))
    {
        copies = copies.saturating_add(row.copies);
        bytes = bytes.saturating_add(row.bytes);
        ns = ns.saturating_add(row.total_ns);
    }
    let one_ns = match gpu_ops.busiest {
        Some(busiest) => busiest.copying_ns.min(ns),
        None => of_one_thread(gpu_ops, ns, observed_ns),
    };
    let pays = bytes >= LEAST_PAGEABLE_BYTES && is_share(one_ns, observed_ns, LEAST_PAGEABLE_PER_CENT);
    pays.then_some(Advice::PageableCopies { copies, bytes, ns, observed_ns })
}

fn tiny_copies(gpu_ops: &GpuOps, observed_ns: u64) -> Option<Advice> {
    let is_copy = |row: &&CopyTotals| row.direction != CopyDirection::Fill;
    let mut sizes = [0_u64; LATENCY_BUCKETS];
    for row in gpu_ops.copies.iter().filter(is_copy) {
        sizes.iter_mut().zip(row.sizes).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    sizes.iter_mut().zip(gpu_ops.batched).for_each(|(sum, n)| *sum = sum.saturating_sub(n));
    let (tiny, copies) = (count_below(&sizes, TINY_COPY_LOG2), count_below(&sizes, LATENCY_BUCKETS));
    let per_second = u128::from(tiny) * 1_000_000_000 / u128::from(observed_ns.max(1));
    let is_habit = tiny >= LEAST_TINY_COPIES
        && per_second >= u128::from(LEAST_TINY_PER_SECOND)
        && is_share(tiny, copies, 50);
    let median = percentile(&sizes, 50).filter(|_| is_habit)?;
    Some(Advice::TinyCopies { tiny, copies, median, observed_ns })
}

fn launch_bound(gpu_ops: &GpuOps, observed_ns: u64) -> Option<Advice> {
    let launches =
        gpu_ops.kernels.iter().fold(0, |sum: u64, kernel| sum.saturating_add(kernel.totals.launches));
    let short = |latency| least_sum_below(latency, SHORT_LAUNCH_LOG2);
    let calls_ns =
        gpu_ops.kernels.iter().fold(0, |sum: u64, kernel| sum.saturating_add(short(&kernel.totals.latency)));
    // with several streams, the gaps of one contain launches on the others
    let gaps_ns = if gpu_ops.gaps.streams == 1 { short(&gpu_ops.gaps.after_launch.lengths) } else { 0 };
    let one_ns = match gpu_ops.busiest {
        Some(busiest) => busiest.launching_ns,
        None => of_one_thread(gpu_ops, calls_ns, observed_ns),
    };
    let launching_ns = one_ns.saturating_add(gaps_ns);
    let is_bound =
        launches >= LEAST_LAUNCHES && is_share(launching_ns, observed_ns, LEAST_LAUNCHING_PER_CENT);
    is_bound.then_some(Advice::LaunchBound { launches, calls_ns, gaps_ns, observed_ns })
}

fn sync_in_loop(gpu_ops: &GpuOps, observed_ns: u64) -> Option<Advice> {
    let gaps = &gpu_ops.gaps;
    let waits = count_below(&gaps.after_sync.lengths, SHORT_GAP_LOG2);
    let launches = gaps.after_sync.gaps.saturating_add(gaps.after_launch.gaps);
    let after_waits_ns = gaps.after_waits_ns.min(observed_ns);
    let is_loop = waits >= LEAST_WAITS
        && is_share(waits, launches, LEAST_WAITS_PER_CENT)
        && is_share(after_waits_ns, observed_ns, LEAST_AFTER_WAITS_PER_CENT);
    is_loop.then_some(Advice::SyncInLoop { waits, launches, after_waits_ns, observed_ns })
}

#[cfg(test)]
mod tests;
