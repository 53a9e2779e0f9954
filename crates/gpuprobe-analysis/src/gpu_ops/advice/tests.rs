use gpuprobe_event::counters::{CopyDirection, HostMemory};

use super::*;
use crate::gpu_ops::gaps::{GapTotals, Gaps};
use crate::gpu_ops::launches::CudaKernelLaunches;
use crate::gpu_ops::process_ops::Busiest;

const SECOND: u64 = 1_000_000_000;

fn rules(gpu_ops: &GpuOps, observed_ns: u64) -> Vec<&'static str> {
    advice(gpu_ops, observed_ns).iter().map(Advice::rule).collect()
}

/// Copies of `2^log2` bytes that take `ns` each.
fn copies(host: HostMemory, copies: u64, log2: usize, ns: u64) -> GpuOps {
    let mut sizes = [0; LATENCY_BUCKETS];
    sizes[log2] = copies;
    let (bytes, total_ns) = (copies << log2, copies * ns);
    let direction = CopyDirection::HostToDevice;
    let row = CopyTotals { direction, is_async: false, host, copies, errors: 0, bytes, total_ns, sizes };
    GpuOps { copies: vec![row], ..GpuOps::default() }
}

#[test]
fn large_and_slow_pageable_copies_should_be_pinned() {
    let slow = copies(HostMemory::Pageable, 64, 20, SECOND / 1000);
    let evidence =
        Advice::PageableCopies { copies: 64, bytes: 64 << 20, ns: 64_000_000, observed_ns: SECOND };
    assert_eq!(advice(&slow, SECOND), [evidence]);
    assert!(evidence.what().contains("pinned"));
    assert_eq!(rules(&slow, 64_000_000 * 20), ["pageable_copies"]);
    assert_eq!(rules(&slow, 64_000_000 * 20 + 20), [""; 0], "less than a twentieth of the time");
    assert_eq!(rules(&copies(HostMemory::Pageable, 63, 20, SECOND / 100), SECOND), [""; 0], "too few bytes");
    assert_eq!(rules(&copies(HostMemory::Pageable, 1024, 16, 100_000), SECOND), ["pageable_copies"]);
    assert_eq!(rules(&copies(HostMemory::Pageable, 4096, 15, 100_000), SECOND), [""; 0], "small ones");
    assert_eq!(rules(&copies(HostMemory::Pinned, 64, 20, SECOND / 100), SECOND), [""; 0]);
    assert_eq!(rules(&copies(HostMemory::Unknown, 64, 20, SECOND / 100), SECOND), [""; 0], "may be pinned");
    let fill = |mut gpu_ops: GpuOps| {
        gpu_ops.copies[0].direction = CopyDirection::Fill;
        gpu_ops
    };
    assert_eq!(rules(&fill(slow), SECOND), [""; 0], "no host memory");
}

#[test]
fn many_tiny_copies_should_be_merged() {
    let evidence =
        Advice::TinyCopies { tiny: 1000, copies: 1000, median: Bound::Below(4096), observed_ns: SECOND };
    assert_eq!(advice(&copies(HostMemory::Pinned, 1000, 11, 1), SECOND), [evidence]);
    assert_eq!(rules(&copies(HostMemory::Pinned, 999, 11, 1), SECOND / 2), [""; 0], "too few");
    assert_eq!(rules(&copies(HostMemory::Pinned, 1000, 12, 1), SECOND), [""; 0], "not tiny");
    assert_eq!(rules(&copies(HostMemory::Pinned, 1000, 11, 1), SECOND * 2), [""; 0], "seldom");
    let mut mixed = copies(HostMemory::Pinned, 1000, 3, 1);
    mixed.copies.extend(copies(HostMemory::Pinned, 1000, 20, 1).copies);
    assert_eq!(rules(&mixed, SECOND), ["tiny_copies"]);
    mixed.copies.extend(copies(HostMemory::Pinned, 1, 20, 1).copies);
    assert_eq!(rules(&mixed, SECOND), [""; 0], "most are large");
}

/// Launches whose calls took `2^log2` nanoseconds each.
fn launches(launches: u64, log2: usize) -> GpuOps {
    let mut kernel = CudaKernelLaunches::default();
    (kernel.totals.launches, kernel.totals.latency[log2]) = (launches, launches);
    GpuOps { kernels: vec![kernel], ..GpuOps::default() }
}

/// Gaps of `2^log2` nanoseconds each, on one stream.
fn gaps(gaps: u64, log2: usize) -> GapTotals {
    let mut totals = GapTotals { gaps, total_ns: gaps << log2, ..GapTotals::default() };
    totals.lengths[log2] = gaps;
    totals
}

#[test]
fn a_host_that_mostly_launches_should_use_graphs() {
    let launching = |n, log2, observed_ns| rules(&launches(n, log2), observed_ns);
    // 8192 ns each: 40 per cent of the time
    assert_eq!(launching(100_000, 13, 2_048_000_000), ["launch_bound"]);
    assert_eq!(launching(100_000, 13, 2_048_000_003), [""; 0]);
    assert_eq!(launching(999, 14, LEAST_WATCHED_NS), [""; 0], "too few");
    assert_eq!(launching(100_000, 15, SECOND), [""; 0], "the queue was full: the GPU has enough to do");

    let mut gpu_ops = launches(100_000, 12);
    gpu_ops.gaps = Gaps { streams: 1, after_launch: gaps(100_000, 12), ..Gaps::default() };
    let evidence = Advice::LaunchBound {
        launches: 100_000,
        calls_ns: 409_600_000,
        gaps_ns: 409_600_000,
        observed_ns: 2_000_000_000,
    };
    assert_eq!(advice(&gpu_ops, 2_000_000_000), [evidence]);
    gpu_ops.gaps.streams = 2;
    assert_eq!(rules(&gpu_ops, 2_000_000_000), [""; 0], "the gaps of one are the launches of the other");
}

#[test]
fn a_loop_that_waits_for_each_launch_should_wait_after_the_loop() {
    let waiting = |after_sync: u64, after_launch, log2: usize| GpuOps {
        gaps: Gaps {
            streams: 1,
            after_waits_ns: if log2 < SHORT_GAP_LOG2 { after_sync << log2 } else { 0 },
            after_sync: gaps(after_sync, log2),
            after_launch: gaps(after_launch, 25),
            ..Gaps::default()
        },
        ..GpuOps::default()
    };
    let evidence =
        Advice::SyncInLoop { waits: 900, launches: 1000, after_waits_ns: 58_982_400, observed_ns: SECOND };
    assert_eq!(advice(&waiting(900, 100, 16), SECOND), [evidence]);
    assert_eq!(rules(&waiting(900, 101, 16), SECOND), [""; 0], "too many launches are queued");
    assert_eq!(rules(&waiting(199, 0, 19), SECOND), [""; 0], "too few");
    assert_eq!(rules(&waiting(200, 0, 19), SECOND), ["sync_in_loop"]);
    assert_eq!(rules(&waiting(200, 0, 20), SECOND), [""; 0], "long ones are no loop");
    assert_eq!(rules(&waiting(1000, 0, 16), 65_536_000 * 20), ["sync_in_loop"]);
    assert_eq!(rules(&waiting(1000, 0, 16), 65_536_000 * 20 + 20), [""; 0], "hardly any time");
}

#[test]
fn gaps_of_parallel_streams_are_not_summed() {
    // eight streams, each without launches for a hundredth of the time
    let gaps = Gaps { streams: 8, after_sync: gaps(1280, 16), after_waits_ns: 160 << 16, ..Gaps::default() };
    let mut gpu_ops = GpuOps { gaps, ..GpuOps::default() };
    assert_eq!(rules(&gpu_ops, SECOND), [""; 0]);
    gpu_ops.gaps.after_waits_ns = 1000 << 16;
    let Some(Advice::SyncInLoop { after_waits_ns, observed_ns, .. }) =
        advice(&gpu_ops, SECOND).first().copied()
    else {
        panic!("one of them has long gaps");
    };
    assert_eq!((after_waits_ns, observed_ns), (65_536_000, SECOND));
}

#[test]
fn the_time_of_many_threads_is_not_taken_for_that_of_one() {
    // 819 ms of launch calls in a second
    let mut launching = launches(100_000, 13);
    assert_eq!(rules(&launching, SECOND), ["launch_bound"]);
    launching.busiest = Some(Busiest { launching_ns: 51_200_000, copying_ns: 0 });
    assert_eq!(rules(&launching, SECOND), [""; 0], "by sixteen threads");
    launching.busiest = Some(Busiest { launching_ns: 400_000_000, copying_ns: 0 });
    assert_eq!(rules(&launching, SECOND), ["launch_bound"], "one of them does little else");
    launching.busiest = None;
    launching.gaps.streams = 3;
    assert_eq!(rules(&launching, SECOND), [""; 0], "each stream may have its own thread");

    // 1640 ms in a second: two threads at least, which are busy with it for 82 per cent
    assert_eq!(rules(&launches(200_000, 13), SECOND), ["launch_bound"]);
    assert_eq!(of_one_thread(&GpuOps::default(), 1_638_400_000, SECOND), 819_200_000);

    let mut copying = copies(HostMemory::Pageable, 64, 20, SECOND / 1000);
    copying.busiest = Some(Busiest { launching_ns: 0, copying_ns: 16_000_000 });
    assert_eq!(rules(&copying, SECOND), [""; 0], "by four threads");
    copying.busiest = Some(Busiest { launching_ns: 0, copying_ns: 60_000_000 });
    assert_eq!(rules(&copying, SECOND), ["pageable_copies"]);
    copying.busiest = None;
    copying.gaps.streams = 4;
    assert_eq!(rules(&copying, SECOND), [""; 0]);
}

#[test]
fn copies_of_a_batch_are_not_tiny_copies() {
    let mut gpu_ops = copies(HostMemory::Pinned, 1500, 11, 1);
    gpu_ops.batched[11] = 500;
    let evidence =
        Advice::TinyCopies { tiny: 1000, copies: 1000, median: Bound::Below(4096), observed_ns: SECOND };
    assert_eq!(advice(&gpu_ops, SECOND), [evidence]);
    gpu_ops.batched[11] = 501;
    assert_eq!(rules(&gpu_ops, SECOND), [""; 0]);
}

#[test]
fn no_advice_without_operations_or_after_a_short_time() {
    assert_eq!(advice(&GpuOps::default(), u64::MAX), []);
    let gpu_ops = copies(HostMemory::Pageable, 1024, 20, SECOND);
    assert_eq!(rules(&gpu_ops, LEAST_WATCHED_NS), ["pageable_copies"]);
    assert_eq!(rules(&gpu_ops, LEAST_WATCHED_NS - 1), [""; 0]);
}

#[test]
fn implausible_counts_do_not_overflow() {
    let mut gpu_ops = copies(HostMemory::Pageable, 1, 20, 1);
    gpu_ops.copies[0] = CopyTotals {
        copies: u64::MAX,
        bytes: u64::MAX,
        total_ns: u64::MAX,
        sizes: [u64::MAX; LATENCY_BUCKETS],
        ..gpu_ops.copies[0].clone()
    };
    gpu_ops.copies.push(gpu_ops.copies[0].clone());
    let mut kernel = CudaKernelLaunches::default();
    (kernel.totals.launches, kernel.totals.latency) = (u64::MAX, [u64::MAX; LATENCY_BUCKETS]);
    gpu_ops.kernels = vec![kernel.clone(), kernel];
    let most = GapTotals { gaps: u64::MAX, total_ns: u64::MAX, lengths: [u64::MAX; LATENCY_BUCKETS] };
    gpu_ops.gaps = Gaps {
        streams: 1,
        after_sync: most,
        after_launch: most,
        after_waits_ns: u64::MAX,
        longest: Vec::new(),
    };
    for observed_ns in [LEAST_WATCHED_NS, u64::MAX] {
        assert!(advice(&gpu_ops, observed_ns).len() <= 4);
    }
}
