use gpuprobe_event::counters::{CopyDirection, HostMemory};

use super::*;
use crate::gaps::{GapTotals, Gaps};
use crate::launches::KernelLaunches;

const SECOND: u64 = 1_000_000_000;

fn rules(work: &Work, watched_ns: u64) -> Vec<&'static str> {
    advice(work, watched_ns).iter().map(Advice::rule).collect()
}

/// So many copies of `2^log2` bytes, that took so long each.
fn copies(host: HostMemory, copies: u64, log2: usize, ns: u64) -> Work {
    let mut sizes = [0; LATENCY_BUCKETS];
    sizes[log2] = copies;
    let (bytes, total_ns) = (copies << log2, copies * ns);
    let direction = CopyDirection::HostToDevice;
    let row = CopyTotals { direction, is_async: false, host, copies, errors: 0, bytes, total_ns, sizes };
    Work { copies: vec![row], ..Work::default() }
}

#[test]
fn large_pageable_copies_that_take_time_should_be_pinned() {
    let slow = copies(HostMemory::Pageable, 64, 20, SECOND / 1000);
    let evidence = Advice::PageableCopies { copies: 64, bytes: 64 << 20, ns: 64_000_000, watched_ns: SECOND };
    assert_eq!(advice(&slow, SECOND), [evidence]);
    assert!(evidence.what().contains("pinned"));
    assert_eq!(rules(&slow, 64_000_000 * 20), ["pageable_copies"]);
    assert_eq!(rules(&slow, 64_000_000 * 20 + 20), [""; 0], "less than a twentieth of the time");
    assert_eq!(rules(&copies(HostMemory::Pageable, 63, 20, SECOND / 100), SECOND), [""; 0], "too few bytes");
    assert_eq!(rules(&copies(HostMemory::Pageable, 1024, 16, 100_000), SECOND), ["pageable_copies"]);
    assert_eq!(rules(&copies(HostMemory::Pageable, 4096, 15, 100_000), SECOND), [""; 0], "small ones");
    assert_eq!(rules(&copies(HostMemory::Pinned, 64, 20, SECOND / 100), SECOND), [""; 0]);
    let fill = |mut work: Work| {
        work.copies[0].direction = CopyDirection::Fill;
        work
    };
    assert_eq!(rules(&fill(slow), SECOND), [""; 0], "no host memory");
}

#[test]
fn many_tiny_copies_should_be_put_together() {
    let evidence =
        Advice::TinyCopies { tiny: 1000, copies: 1000, median: Bound::Below(4096), watched_ns: SECOND };
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
fn launches(launches: u64, log2: usize) -> Work {
    let mut kernel = KernelLaunches { launches, ..KernelLaunches::default() };
    kernel.latency[log2] = launches;
    Work { kernels: vec![kernel], ..Work::default() }
}

/// Gaps of `2^log2` nanoseconds each, on one stream.
fn gaps(gaps: u64, log2: usize) -> GapTotals {
    let mut totals = GapTotals { gaps, total_ns: gaps << log2, ..GapTotals::default() };
    totals.lengths[log2] = gaps;
    totals
}

#[test]
fn a_host_that_only_launches_should_use_graphs() {
    let launching = |n, log2, watched_ns| rules(&launches(n, log2), watched_ns);
    // 8192 ns each: 40 per cent of the time
    assert_eq!(launching(100_000, 13, 2_048_000_000), ["launch_bound"]);
    assert_eq!(launching(100_000, 13, 2_048_000_003), [""; 0]);
    assert_eq!(launching(999, 14, LEAST_WATCHED_NS), [""; 0], "too few");
    assert_eq!(launching(100_000, 15, SECOND), [""; 0], "the queue was full: the GPU has enough to do");

    let mut work = launches(100_000, 12);
    work.gaps = Gaps { streams: 1, after_launch: gaps(100_000, 12), ..Gaps::default() };
    let evidence = Advice::LaunchBound {
        launches: 100_000,
        calls_ns: 409_600_000,
        gaps_ns: 409_600_000,
        watched_ns: 2_000_000_000,
    };
    assert_eq!(advice(&work, 2_000_000_000), [evidence]);
    work.gaps.streams = 2;
    assert_eq!(rules(&work, 2_000_000_000), [""; 0], "the gaps of one are the launches of the other");
}

#[test]
fn a_loop_that_waits_for_each_launch_should_wait_behind_it() {
    let waiting = |after_sync, after_launch, log2| Work {
        gaps: Gaps {
            streams: 1,
            after_sync: gaps(after_sync, log2),
            after_launch: gaps(after_launch, 25),
            ..Gaps::default()
        },
        ..Work::default()
    };
    let evidence =
        Advice::SyncInLoop { waits: 1000, launches: 2000, idle_ns: 65_536_000, watched_ns: SECOND };
    assert_eq!(advice(&waiting(1000, 1000, 16), SECOND), [evidence]);
    assert_eq!(rules(&waiting(1000, 1001, 16), SECOND), [""; 0], "most launches are queued");
    assert_eq!(rules(&waiting(199, 0, 19), SECOND), [""; 0], "too few");
    assert_eq!(rules(&waiting(200, 0, 19), SECOND), ["sync_in_loop"]);
    assert_eq!(rules(&waiting(200, 0, 20), SECOND), [""; 0], "long ones are no loop");
    assert_eq!(rules(&waiting(1000, 1000, 16), 65_536_000 * 20), ["sync_in_loop"]);
    assert_eq!(rules(&waiting(1000, 1000, 16), 65_536_000 * 20 + 20), [""; 0], "hardly idle");
}

#[test]
fn nothing_is_advised_on_nothing_or_on_a_moment() {
    assert_eq!(advice(&Work::default(), u64::MAX), []);
    let work = copies(HostMemory::Pageable, 1024, 20, SECOND);
    assert_eq!(rules(&work, LEAST_WATCHED_NS), ["pageable_copies"]);
    assert_eq!(rules(&work, LEAST_WATCHED_NS - 1), [""; 0]);
}

#[test]
fn counts_that_cannot_be_true_do_not_overflow() {
    let mut work = copies(HostMemory::Pageable, 1, 20, 1);
    work.copies[0] = CopyTotals {
        copies: u64::MAX,
        bytes: u64::MAX,
        total_ns: u64::MAX,
        sizes: [u64::MAX; LATENCY_BUCKETS],
        ..work.copies[0].clone()
    };
    work.copies.push(work.copies[0].clone());
    let kernel = KernelLaunches {
        launches: u64::MAX,
        latency: [u64::MAX; LATENCY_BUCKETS],
        ..KernelLaunches::default()
    };
    work.kernels = vec![kernel.clone(), kernel];
    let most = GapTotals { gaps: u64::MAX, total_ns: u64::MAX, lengths: [u64::MAX; LATENCY_BUCKETS] };
    work.gaps = Gaps { streams: 1, after_sync: most, after_launch: most, longest: Vec::new() };
    for watched_ns in [LEAST_WATCHED_NS, u64::MAX] {
        assert!(advice(&work, watched_ns).len() <= 4);
    }
}
