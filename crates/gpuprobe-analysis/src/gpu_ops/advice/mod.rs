//! What a program could do better, as far as its launches, copies and gaps tell it. Each advice comes with the numbers that
//! it is made of, and none is given on little evidence.

use gpuprobe_event::counters::{CopyDirection, CopyTotals, HostMemory, LATENCY_BUCKETS};
use serde::Serialize;

use crate::gpu_ops::gaps::SHORT_GAP_LOG2;
use crate::gpu_ops::launches::SHORT_LAUNCH_LOG2;
use crate::gpu_ops::process_ops::Work;
use crate::stats::buckets::{Bound, count_below, least_sum_below, percentile};

/// What is watched for less is over before anything would have been gained.
const LEAST_WATCHED_NS: u64 = 500_000_000;

/// Up to 64 KiB a copy is staged at once, and pinned memory gains little.
const LARGE_COPY_LOG2: usize = 16;
/// At the some 6 GB/s of pageable memory these are ten milliseconds.
const LEAST_PAGEABLE_BYTES: u64 = 64 << 20;
/// Pinned memory about halves the time: what takes less than this is not worth the change.
const LEAST_PAGEABLE_PER_CENT: u64 = 5;

/// What is smaller takes the bus less time than the call takes the host.
const TINY_COPY_LOG2: usize = 12;
/// Fewer of them do not make a habit.
const LEAST_TINY_COPIES: u64 = 1000;
/// At the some 10 us of a tiny copy, that is one per cent of the time.
const LEAST_TINY_PER_SECOND: u64 = 1000;

/// Fewer launches are not a phase.
const LEAST_LAUNCHES: u64 = 1000;
/// The sum is made of the least that buckets can stand for, so the truth lies up to twice as high.
const LEAST_LAUNCHING_PER_CENT: u64 = 40;

/// Fewer do not make a loop.
const LEAST_WAITS: u64 = 200;
/// In a loop that waits for each launch every one of them comes after a synchronisation. A wait for an event counts as one
/// for every stream, so pipelines that wait for events of one stream and launch on others have many such launches as
/// well; but most queue more than one between two waits, and so stay below.
const LEAST_WAITS_PER_CENT: u64 = 90;
/// The time in which the stream had nothing to do, at least: what is less would not be noticed.
const LEAST_IDLE_PER_CENT: u64 = 5;

/// One thing to do, with its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Advice {
    /// Large copies from or to pageable memory, which goes over a buffer of the driver.
    PageableCopies {
        /// Such copies.
        copies: u64,
        /// Their bytes.
        bytes: u64,
        /// Time inside their calls, over all threads.
        ns: u64,
        /// The time watched.
        watched_ns: u64,
    },
    /// Many copies that are too small to be worth a call.
    TinyCopies {
        /// Copies of less than 4 KiB.
        tiny: u64,
        /// All copies, without those known to be of a batch, which is one call.
        copies: u64,
        /// What half of these lie within, in bytes.
        median: Bound,
        /// The time watched.
        watched_ns: u64,
    },
    /// The host does little but launch.
    LaunchBound {
        /// Kernel launches.
        launches: u64,
        /// The least time that short launch calls took, over all threads.
        calls_ns: u64,
        /// The least time between these and the next ones, where that can be told.
        gaps_ns: u64,
        /// The time watched.
        watched_ns: u64,
    },
    /// The host waits for the GPU before most launches.
    SyncInLoop {
        /// Launches that came shortly after a synchronisation.
        waits: u64,
        /// All launches that came after something.
        launches: u64,
        /// The least time in which the stream that was idle for longest had nothing to do meanwhile.
        idle_ns: u64,
        /// The time watched.
        watched_ns: u64,
    },
}

impl Advice {
    /// The name of its rule.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::PageableCopies { .. } => "pageable_copies",
            Self::TinyCopies { .. } => "tiny_copies",
            Self::LaunchBound { .. } => "launch_bound",
            Self::SyncInLoop { .. } => "sync_in_loop",
        }
    }

    /// What to do, in a sentence.
    pub fn what(&self) -> &'static str {
        match self {
            Self::PageableCopies { .. } => {
                "copy from and to pinned memory (cudaMallocHost, cudaHostRegister, pin_memory)"
            }
            Self::TinyCopies { .. } => "put small copies together into few large ones",
            Self::LaunchBound { .. } => "put kernels into a CUDA graph, or join small ones",
            Self::SyncInLoop { .. } => "synchronise once behind the loop instead of in every turn of it",
        }
    }
}

/// All advice for what processes did in so much time. For several processes it is the sum of their times.
pub fn advice(work: &Work, watched_ns: u64) -> Vec<Advice> {
    if watched_ns < LEAST_WATCHED_NS {
        return Vec::new();
    }
    let rules = [pageable_copies, tiny_copies, launch_bound, sync_in_loop];
    rules.iter().filter_map(|rule| rule(work, watched_ns)).collect()
}

/// Whether a part is at least so many per cent of the whole.
fn is_share(part: u64, whole: u64, per_cent: u64) -> bool {
    u128::from(part) * 100 >= u128::from(whole) * u128::from(per_cent)
}

/// What one thread spent, of a time that is told of all together. Where threads are not told apart, it is taken that each
/// stream has its own, and that there are at least as many as could spend so much.
fn of_one_thread(work: &Work, all_ns: u64, watched_ns: u64) -> u64 {
    let threads = work.gaps.streams.max(all_ns.div_ceil(watched_ns.max(1))).max(1);
    all_ns / threads
}

fn pageable_copies(work: &Work, watched_ns: u64) -> Option<Advice> {
    let crosses = |copy: &&CopyTotals| {
        let direction = matches!(copy.direction, CopyDirection::HostToDevice | CopyDirection::DeviceToHost);
        direction && copy.host == HostMemory::Pageable
    };
    let (mut copies, mut bytes, mut ns) = (0_u64, 0_u64, 0_u64);
    // bytes and times are those of a row, so what counts is what its copies are on average
    for row in
        work.copies.iter().filter(crosses).filter(|row| row.bytes >> LARGE_COPY_LOG2 >= row.copies.max(1))
    {
        copies = copies.saturating_add(row.copies);
        bytes = bytes.saturating_add(row.bytes);
        ns = ns.saturating_add(row.total_ns);
    }
    let one_ns = match work.busiest {
        Some(busiest) => busiest.copying_ns.min(ns),
        None => of_one_thread(work, ns, watched_ns),
    };
    let pays = bytes >= LEAST_PAGEABLE_BYTES && is_share(one_ns, watched_ns, LEAST_PAGEABLE_PER_CENT);
    pays.then_some(Advice::PageableCopies { copies, bytes, ns, watched_ns })
}

fn tiny_copies(work: &Work, watched_ns: u64) -> Option<Advice> {
    let is_copy = |row: &&CopyTotals| row.direction != CopyDirection::Fill;
    let mut sizes = [0_u64; LATENCY_BUCKETS];
    for row in work.copies.iter().filter(is_copy) {
        sizes.iter_mut().zip(row.sizes).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    sizes.iter_mut().zip(work.batched).for_each(|(sum, n)| *sum = sum.saturating_sub(n));
    let (tiny, copies) = (count_below(&sizes, TINY_COPY_LOG2), count_below(&sizes, LATENCY_BUCKETS));
    let per_second = u128::from(tiny) * 1_000_000_000 / u128::from(watched_ns.max(1));
    let is_habit = tiny >= LEAST_TINY_COPIES
        && per_second >= u128::from(LEAST_TINY_PER_SECOND)
        && is_share(tiny, copies, 50);
    let median = percentile(&sizes, 50).filter(|_| is_habit)?;
    Some(Advice::TinyCopies { tiny, copies, median, watched_ns })
}

fn launch_bound(work: &Work, watched_ns: u64) -> Option<Advice> {
    let launches = work.kernels.iter().fold(0, |sum: u64, kernel| sum.saturating_add(kernel.totals.launches));
    let short = |latency| least_sum_below(latency, SHORT_LAUNCH_LOG2);
    let calls_ns =
        work.kernels.iter().fold(0, |sum: u64, kernel| sum.saturating_add(short(&kernel.totals.latency)));
    // on several streams the gap of one has the launches of the others in it
    let gaps_ns = if work.gaps.streams == 1 { short(&work.gaps.after_launch.lengths) } else { 0 };
    let one_ns = match work.busiest {
        Some(busiest) => busiest.launching_ns,
        None => of_one_thread(work, calls_ns, watched_ns),
    };
    let launching_ns = one_ns.saturating_add(gaps_ns);
    let is_bound = launches >= LEAST_LAUNCHES && is_share(launching_ns, watched_ns, LEAST_LAUNCHING_PER_CENT);
    is_bound.then_some(Advice::LaunchBound { launches, calls_ns, gaps_ns, watched_ns })
}

fn sync_in_loop(work: &Work, watched_ns: u64) -> Option<Advice> {
    let gaps = &work.gaps;
    let waits = count_below(&gaps.after_sync.lengths, SHORT_GAP_LOG2);
    let launches = gaps.after_sync.gaps.saturating_add(gaps.after_launch.gaps);
    let idle_ns = gaps.idle_ns.min(watched_ns);
    let is_loop = waits >= LEAST_WAITS
        && is_share(waits, launches, LEAST_WAITS_PER_CENT)
        && is_share(idle_ns, watched_ns, LEAST_IDLE_PER_CENT);
    is_loop.then_some(Advice::SyncInLoop { waits, launches, idle_ns, watched_ns })
}

#[cfg(test)]
mod tests;
