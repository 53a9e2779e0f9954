use gpuprobe_event::counters::CopyDirection::HostToDevice;
use gpuprobe_event::counters::GapKind;
use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Effect, GraphContents, GraphLaunch, Tid};

use super::pending::{MOST_PENDING, MOST_PENDING_IN_ALL, MOST_THREADS};
use super::*;
use crate::gpu_ops::gaps::LONGEST;
use crate::gpu_ops::process_ops::Busiest;
use crate::samples::{self, call, captured, copy, inside, of_kernel, took, unfinished};

pub(super) fn fed(calls: &[Call]) -> GpuOps {
    let mut replay = GpuOpReplay::default();
    calls.iter().for_each(|call| replay.feed(call));
    replay.report()
}

pub(super) fn launch(kernel: &str, stream: u64) -> Call {
    let effect = Effect::Launch(Launch {
        kernel: Some(Arc::from(kernel)),
        grid: Some([4, 2, 1]),
        block: Some([32, 1, 1]),
        ..Launch::default()
    });
    Call { effect, ..samples::launch("cudaLaunchKernel", Some(stream)) }
}

fn graph_launch(kernels: Option<u64>) -> Call {
    let effect = Effect::GraphLaunch(GraphLaunch { kernels, ..GraphLaunch::default() });
    Call { class: Class::GraphLaunch, stream: Some(7), effect, ..call(Api::Driver, "cuGraphLaunch", 0) }
}

fn failed(call: Call) -> Call {
    Call { status: Some(700), ..call }
}

pub(super) fn at(call: Call, start_ns: u64, duration_ns: u64) -> Call {
    Call { start_ns, ..took(call, duration_ns) }
}

fn with_id(call: Call, id: u64) -> Call {
    Call { id, ..call }
}

pub(super) fn wait(stream: Option<u64>) -> Call {
    Call { class: Class::Sync, stream, ..call(Api::Driver, "cuStreamSynchronize", 0) }
}

fn names(gpu_ops: &GpuOps) -> Vec<(&str, u64)> {
    gpu_ops.kernels.iter().map(|k| (k.kernel.as_str(), k.totals.launches)).collect()
}

#[test]
fn a_launch_is_counted_once_with_the_name_that_only_the_inner_call_knows() {
    let outer = with_id(of_kernel(launch("", 5), None), 9);
    let inner = with_id(inside(launch("scale", 5), 9), 10);
    let gpu_ops = fed(&[inner, outer, failed(launch("scale", 5)), launch("scale", 6)]);
    assert_eq!(names(&gpu_ops), [("scale", 2)]);
    let row = &gpu_ops.kernels[0];
    assert_eq!((row.totals.errors, row.streams, row.totals.threads), (1, 2, 2 * 8 * 32));
    assert_eq!((row.totals.total_ns, row.totals.latency[9]), (3000, 3), "three calls of 1000 ns");
    assert_eq!(row.totals.grid, Some(([4, 2, 1], [4, 2, 1])));
}

#[test]
fn an_operation_counts_inside_calls_that_are_no_operations() {
    let collective = |id, parent| Call { id, parent, ..call(Api::Nccl, "ncclAllReduce", 0) };
    let inner = with_id(inside(launch("ring", 1), 20), 30);
    let outer = with_id(inside(launch("ring", 1), 10), 20);
    // an open group is around the collective, and nothing is around the group
    let gpu_ops = fed(&[inner.clone(), outer.clone(), collective(10, Some(5)), collective(5, None)]);
    assert_eq!(names(&gpu_ops), [("ring", 1)]);
    let lost = fed(&[inner.clone(), outer]);
    assert_eq!(names(&lost), [("ring", 1)], "the record of the collective was lost");
    let open = fed(&[inner, unfinished(with_id(launch("ring", 1), 20))]);
    assert_eq!(names(&open), [], "the outermost launch did not return");
}

#[test]
fn captured_operations_do_not_count_and_graph_launches_count_their_kernels() {
    let gpu_ops = fed(&[
        captured(launch("k", 7)),
        captured(failed(launch("k", 7))),
        captured(graph_launch(Some(17))),
        captured(copy(HostToDevice, 64, 0)),
        graph_launch(Some(1000)),
        graph_launch(None),
        failed(graph_launch(Some(1000))),
    ]);
    let graphs = GraphLaunches {
        launches: 2,
        errors: 1,
        derived: 1000,
        unknown: 1,
        captured: 18,
        ..GraphLaunches::default()
    };
    assert_eq!((gpu_ops.graphs, gpu_ops.copies.len()), (graphs, 0));
    let kernels: Vec<_> =
        gpu_ops.kernels.iter().map(|k| (k.kernel.as_str(), k.runs(), k.in_graphs)).collect();
    assert_eq!(kernels, [("unknown", 1000, 1000)], "the trace has no names");
}

#[test]
fn kernels_of_graphs_count_by_name_at_each_launch() {
    let contents = Arc::new(GraphContents::of([(Some("gemm".into()), 3), (Some("k".into()), 1)]));
    let of_graph = |kernels| {
        let mut call = graph_launch(Some(kernels));
        if let Effect::GraphLaunch(launch) = &mut call.effect {
            launch.contents = Some(Arc::clone(&contents));
            (launch.disabled, launch.conditional, launch.incomplete) = (2, 1, kernels > 4);
        }
        call
    };
    // the last graph has a kernel more than its contents
    let gpu_ops = fed(&[launch("k", 7), of_graph(4), of_graph(4), captured(of_graph(4)), of_graph(5)]);
    let kernels: Vec<_> =
        gpu_ops.kernels.iter().map(|k| (k.kernel.as_str(), k.totals.launches, k.in_graphs)).collect();
    assert_eq!(kernels, [("gemm", 0, 9), ("k", 1, 3), ("unknown", 0, 1)]);
    let GraphLaunches { derived, unknown, disabled, conditional, .. } = gpu_ops.graphs;
    assert_eq!((derived, unknown, disabled, conditional), (13, 1, 6, 3));
}

#[test]
fn copies_are_summed_by_direction_mode_and_host_memory() {
    let pinned = |bytes| {
        let transfer = Transfer::new(HostToDevice, true);
        let transfer = Transfer { host: HostMemory::Pinned, bytes: Some(bytes), ..transfer };
        Call { effect: Effect::Transfer(transfer), ..copy(HostToDevice, 0, 0) }
    };
    let inner = inside(Call { api: Api::Driver, ..copy(HostToDevice, 0, 0) }, 1);
    let gpu_ops = fed(&[
        inner,
        copy(HostToDevice, 100, 0),
        pinned(4096),
        pinned(5000),
        copy(CopyDirection::DeviceToDevice, 8, 0),
        copy(CopyDirection::Unknown, 8, 1),
        Call { class: Class::Memset, ..copy(CopyDirection::Fill, 16, 0) },
    ]);
    let shown = |c: &CopyTotals| (c.direction.as_str(), c.mode(), c.host.as_str(), c.copies, c.bytes);
    let expected = [
        ("H2D", "sync", "unknown", 1, 100),
        ("H2D", "async", "pinned", 2, 9096),
        ("D2D", "sync", "none", 1, 8),
        ("memset", "sync", "none", 1, 16),
        ("unknown", "sync", "unknown", 0, 0),
    ];
    assert_eq!(gpu_ops.copies.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(
        (gpu_ops.copies[1].sizes[12], gpu_ops.copies[1].total_ns, gpu_ops.copies[4].errors),
        (2, 2000, 1)
    );
}

#[test]
fn the_copies_of_a_batch_are_counted_by_their_kinds() {
    let part = |direction, copies, bytes| {
        let host = HostMemory::unknown_for(direction);
        CopyPart { direction, host, copies, bytes }
    };
    let parts = vec![
        part(HostToDevice, 3, 600),
        part(CopyDirection::DeviceToDevice, 1, 100),
        part(HostToDevice, u64::MAX, u64::MAX),
    ];
    let batch = Transfer { bytes: Some(700), parts, ..Transfer::new(CopyDirection::Unknown, false) };
    let gpu_ops = fed(&[Call { effect: Effect::Transfer(batch), ..copy(HostToDevice, 0, 0) }]);
    let shown = |c: &CopyTotals| (c.direction.as_str(), c.copies, c.bytes, c.total_ns);
    let expected = [("H2D", u64::MAX, u64::MAX, 1000), ("D2D", 1, 100, 0)];
    assert_eq!(gpu_ops.copies.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(gpu_ops.copies[0].sizes[7], 3, "three of 200 bytes");
    assert_eq!((gpu_ops.batched[7], gpu_ops.batched[6]), (3, 1), "none of them is a call by itself");
}

#[test]
fn gaps_start_with_waits_or_launches_and_name_the_longest_call() {
    let busy = |start_ns, duration_ns| at(copy(HostToDevice, 8, 0), start_ns, duration_ns);
    let gpu_ops = fed(&[
        at(launch("k", 1), 0, 10),
        at(launch("k", 0), 40, 10),
        // a launch on the default stream under its other handle
        busy(60, 5),
        busy(70, 20),
        at(call(Api::Driver, "cuCtxGetDevice", 0), 91, 3),
        at(launch("k", 1), 100, 10),
        at(wait(None), 120, 30),
        at(launch("k", 0), 200, 10),
        at(wait(Some(0)), 300, 100),
        at(failed(wait(Some(0))), 410, 10),
        at(launch("k", 0), 450, 10),
        // it started before the previous one had returned
        at(launch("k", 0), 455, 20),
    ]);
    let shown = |g: &crate::gpu_ops::gaps::Gap| (g.ns, g.since_ns, g.stream, g.kind, g.meanwhile);
    let expected = [
        (50, 50, 0, GapKind::AfterLaunch, Some("cudaMemcpy")),
        (50, 150, 0, GapKind::AfterSync, None),
        (50, 400, 0, GapKind::AfterSync, None),
        (30, 10, 0, GapKind::AfterLaunch, None),
    ];
    assert_eq!(gpu_ops.gaps.longest.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(
        (gpu_ops.gaps.streams, gpu_ops.gaps.after_sync.gaps, gpu_ops.gaps.after_launch.gaps),
        (1, 2, 2)
    );
    assert_eq!((gpu_ops.gaps.after_sync.total_ns, gpu_ops.gaps.after_sync.lengths[5]), (100, 2));
}

/// Idle times of each stream.
pub(super) fn idle_times(calls: &[Call]) -> Vec<(u64, Vec<(u64, u64)>)> {
    let mut replay = GpuOpReplay::default();
    calls.iter().for_each(|call| replay.feed(call));
    let idle = replay.idle();
    let sum: u64 = idle.streams.iter().map(|row| row.idle_ns).sum();
    assert_eq!(idle.by_host.iter().map(|row| row.idle_ns).sum::<u64>(), sum);
    let mut streams: Vec<_> = idle.streams.into_iter().map(|row| (row.stream, row.spans)).collect();
    streams.sort_unstable();
    streams
}

#[test]
fn a_stream_is_idle_from_the_end_of_a_wait_to_the_next_submission() {
    let copied = |stream| Call { stream: Some(stream), ..copy(HostToDevice, 8, 0) };
    let got = idle_times(&[
        at(wait(Some(5)), 0, 1),
        at(launch("k", 5), 10, 10),
        // after a launch the GPU may be busy
        at(launch("k", 5), 40, 10),
        at(wait(Some(5)), 60, 30),
        // it was already idle
        at(wait(Some(5)), 100, 5),
        at(copied(5), 200, 10),
        at(launch("k", 5), 300, 10),
        at(wait(None), 320, 10),
        at(launch("k", 6), 335, 1),
        at(failed(launch("k", 5)), 340, 10),
        at(launch("k", 5), 360, 10),
        at(wait(Some(6)), 400, 10),
        at(launch("k", 5), 450, 10),
    ]);
    assert_eq!(got, [(5, vec![(90, 200), (330, 360)])]);
}

#[test]
fn a_wait_shows_nothing_about_what_was_submitted_meanwhile_or_about_other_streams() {
    let of_event = || Call { class: Class::Sync, ..call(Api::Driver, "cuEventSynchronize", 0) };
    let by = |tid, call: Call| Call { tid: Tid(tid), ..call };
    let got = idle_times(&[
        at(launch("k", 5), 0, 10),
        at(launch("k", 6), 0, 10),
        at(of_event(), 20, 10),
        at(launch("k", 5), 40, 10),
        // the wait began before this launch
        by(2, at(launch("k", 5), 70, 10)),
        at(wait(Some(5)), 60, 40),
        at(launch("k", 5), 120, 10),
        by(2, at(launch("k", 5), 150, 10)),
        at(wait(None), 140, 40),
        at(launch("k", 5), 200, 10),
        at(launch("k", 6), 220, 10),
    ]);
    assert_eq!(
        got,
        [(6, vec![(180, 220)])],
        "only the last wait for all streams shows that stream 6 is idle"
    );
}

#[test]
fn a_copy_ends_idle_time_but_no_gap() {
    // a loop as most programs have it: copy, launch, wait, think
    let step = |i: u64| {
        let from = 1000 * i;
        [
            at(copy(HostToDevice, 8, 0), from, 50),
            at(launch("k", 0), from + 100, 10),
            at(wait(Some(0)), from + 200, 300),
        ]
    };
    let calls: Vec<_> = (0..100).flat_map(step).collect();
    let (idle, gaps) = (idle_times(&calls), fed(&calls).gaps);
    let idle_ns: u64 = idle.iter().flat_map(|(_, spans)| spans).map(|(from, to)| to - from).sum();
    assert_eq!(idle_ns, 99 * 500, "it ends with the copy");
    assert_eq!(gaps.after_sync.total_ns, 99 * 600, "the gap ends with the launch");
}

#[test]
fn each_thread_has_its_own_default_stream_and_destroyed_streams_are_forgotten() {
    let op = |tid, start_ns| {
        let name = Name::Borrowed("cuLaunchKernel_ptsz");
        Call { tid: Tid(tid), name, ..at(launch("k", 0), start_ns, 1) }
    };
    let two = fed(&[op(1, 0), op(2, 10), at(launch("k", 2), 30, 1), op(2, 50)]);
    let on: Vec<_> = two.gaps.longest.iter().map(|g| (g.ns, g.stream)).collect();
    assert_eq!(on, [(39, 1 << 63 | 2)]);
    assert_eq!(two.kernels[0].streams, 3);

    let destroy =
        Call { class: Class::Stream, stream: Some(9), ..call(Api::Driver, "cuStreamDestroy_v2", 0) };
    let again = [at(launch("k", 9), 0, 1), at(destroy, 5, 1), at(launch("k", 9), 10, 1)];
    assert_eq!(fed(&again).gaps.after_launch.gaps, 0);

    let mut replay = GpuOpReplay::default();
    replay.feed(&at(launch("k", 9), 0, 1));
    replay.clear(Tgid(100));
    replay.feed(&at(launch("k", 9), 10, 1));
    assert_eq!(replay.report().gaps.after_launch.gaps, 0, "the pid is reused");
}

#[test]
fn memory_is_bounded_for_any_trace_and_the_sums_are_complete() {
    let mut replay = GpuOpReplay::default();
    let many = u32::try_from(2 * MOST_THREADS).unwrap();
    for i in 0..many {
        let mut op = Call { tid: Tid(i), ..launch(&format!("k{i}"), u64::from(i) << 8) };
        if let Effect::Launch(launch) = &mut op.effect {
            launch.kernels = if i == 0 { u64::MAX } else { 1 };
            launch.grid = Some([u32::MAX; 3]);
        }
        replay.feed(&with_id(inside(op.clone(), u64::MAX), u64::from(i)));
        replay.feed(&at(op, u64::MAX, u64::MAX));
        for _ in 0..2 * usize::from(i == 1) * MOST_PENDING {
            replay.feed(&inside(Call { tid: Tid(i), ..launch("same", 0) }, 1 << 40));
        }
    }
    assert!(replay.pending.threads.len() <= MOST_THREADS && replay.streams.len() <= MOST_STREAMS);
    assert!(replay.kernels.len() <= MOST_KERNELS + 2);
    let gpu_ops = replay.report();
    let all: u64 = gpu_ops.kernels.iter().map(|k| k.totals.launches).sum();
    let pending = 2 * MOST_PENDING as u64;
    assert_eq!(all, 2 * (u64::from(many) + 63) + pending, "a call launches on 64 GPUs at most");
    assert!(gpu_ops.kernels.iter().any(|k| k.kernel == OTHER_KERNELS));
    assert!(gpu_ops.gaps.longest.len() <= LONGEST);
}

/// Launches of the runtime inside a call that is no operation, each with a launch of the CUDA driver inside.
fn pairs(launches: u64) -> Vec<Call> {
    let pair = |i: u64| {
        let (outer, start_ns) = (10 + 2 * i, 1000 * (i + 1));
        let of_runtime = at(with_id(inside(of_kernel(launch("", 5), None), 1), outer), start_ns, 100);
        let of_driver = with_id(inside(launch(&format!("k{}", i % 2), 5), outer), outer + 1);
        [at(of_driver, start_ns + 10, 10), of_runtime]
    };
    (0..launches).flat_map(pair).collect()
}

fn group(launches: u64) -> Call {
    at(call(Api::Nccl, "ncclGroupEnd", 0), 500, 1000 * (launches + 2))
}

#[test]
fn all_launches_inside_one_long_call_count_once_each() {
    let many = 4 * MOST_PENDING as u64;
    let only = |i: u64| at(with_id(inside(launch("k", 5), 1), 10 + i), 1000 * (i + 1), 100);
    let mut calls: Vec<_> = (0..many).map(only).collect();
    assert_eq!(names(&fed(&calls)), [("k", many)], "the call around them has not returned");
    calls.push(group(many));
    assert_eq!(names(&fed(&calls)), [("k", many)]);

    let mut calls = pairs(many);
    calls.push(group(many));
    assert_eq!(names(&fed(&calls)), [("k0", many / 2), ("k1", many / 2)]);
    let nested = Call { id: 1, parent: Some(0), ..group(many) };
    calls.pop();
    calls.extend([nested, Call { id: 0, ..at(group(many), 400, 1000 * (many + 3)) }]);
    assert_eq!(names(&fed(&calls)), [("k0", many / 2), ("k1", many / 2)]);
}

#[test]
fn a_launch_with_too_many_launches_inside_is_counted_by_these() {
    let many = 2 * MOST_PENDING as u64;
    let mut calls = pairs(many);
    let effect = Effect::Launch(Launch::default());
    calls.push(Call { class: Class::Launch, effect, ..group(many) });
    let counted: u64 = fed(&calls).kernels.iter().map(|kernel| kernel.totals.launches).sum();
    assert_eq!(counted, many, "and not the launch around them");
    // a copy around launches is another operation
    calls.pop();
    let effect = Effect::Transfer(Transfer::new(HostToDevice, false));
    calls.push(Call { class: Class::Memcpy, effect, ..group(many) });
    let gpu_ops = fed(&calls);
    assert_eq!((names(&gpu_ops), gpu_ops.copies.len()), (vec![("k0", many / 2), ("k1", many / 2)], 1));
}

#[test]
fn launches_whose_outer_calls_were_lost_count_once_each() {
    let many = 4 * MOST_PENDING as u64;
    let of_driver: Vec<_> = pairs(many).into_iter().step_by(2).collect();
    let expected = [("k0", many / 2), ("k1", many / 2)];
    assert_eq!(names(&fed(&of_driver)), expected);
    // the next outermost call settles them
    let mut replay = GpuOpReplay::default();
    of_driver.iter().take(100).for_each(|call| replay.feed(call));
    let outermost = at(with_id(launch("last", 5), 9), 1 << 40, 10);
    replay.feed(&outermost);
    assert!(replay.pending.is_empty());
    assert_eq!(names(&replay.report()), [("k0", 50), ("k1", 50), ("last", 1)]);
    // a call of the runtime between the launch of the CUDA driver and the outermost one was lost
    let inner = at(with_id(inside(launch("k", 5), 3), 4), 120, 10);
    let gpu_ops = fed(&[inner, at(with_id(launch("k", 5), 2), 100, 100)]);
    assert_eq!(names(&gpu_ops), [("k", 1)]);
}

#[test]
fn pending_operations_count_when_the_process_exits() {
    let mut replay = GpuOpReplay::default();
    pairs(3).iter().for_each(|call| replay.feed(call));
    replay.clear(Tgid(100));
    assert!(replay.pending.is_empty());
    assert_eq!(names(&replay.report()), [("k0", 2), ("k1", 1)]);
}

#[test]
fn threads_that_exited_inside_lost_calls_make_room() {
    let mut replay = GpuOpReplay::default();
    let many = u32::try_from(MOST_THREADS).unwrap() + 10;
    for i in 0..many {
        let op = at(with_id(inside(launch("lost", 5), 9), 10), u64::from(i) * 10, 1);
        replay.feed(&Call { tid: Tid(i), ..op });
    }
    assert!(replay.pending.threads.len() <= MOST_THREADS);
    let pair = pairs(1).into_iter().map(|call| Call { tid: Tid(many), start_ns: 1 << 40, ..call });
    pair.for_each(|call| replay.feed(&call));
    assert_eq!(names(&replay.report()), [("lost", u64::from(many)), ("k0", 1)]);
}

#[test]
fn pending_operations_of_many_threads_are_bounded() {
    let mut replay = GpuOpReplay::default();
    let many = MOST_PENDING_IN_ALL as u64 + 1000;
    for i in 0..many {
        let op = at(with_id(inside(launch("lost", 5), 9), i), i * 10, 1);
        replay.feed(&Call { tid: Tid(u32::try_from(i % 1000).unwrap()), ..op });
        assert!(replay.pending.pending <= MOST_PENDING_IN_ALL);
    }
    assert_eq!(names(&replay.report()), [("lost", many)]);
    replay.clear(Tgid(100));
    assert_eq!((replay.pending.pending, replay.pending.threads.len()), (0, 0));
    assert_eq!(names(&replay.report()), [("lost", many)]);
}

#[test]
fn the_busiest_stream_and_thread_of_each_process_are_summed() {
    let mut calls = Vec::new();
    let by = |tgid: u32, tid: u32, call: Call| Call { tgid: Tgid(tgid), tid: Tid(tid), ..call };
    for turn in 0..10_u64 {
        let at_ns = turn * 10_000;
        // three streams wait at the same time, and so does the second process
        for (tgid, tid, stream) in [(1, 1, 1), (1, 2, 2), (1, 2, 3), (2, 3, 1)] {
            calls.push(by(tgid, tid, at(launch("k", stream), at_ns, 1024)));
        }
        calls.extend([
            by(1, 1, at(wait(None), at_ns + 1024, 7952)),
            by(2, 3, at(wait(None), at_ns + 1024, 7952)),
        ]);
    }
    let transfer = Transfer { host: HostMemory::Pageable, ..Transfer::new(HostToDevice, false) };
    let copied = Call { effect: Effect::Transfer(transfer), ..copy(HostToDevice, 0, 0) };
    calls.extend([
        by(1, 1, copied.clone()),
        by(1, 1, copied.clone()),
        by(1, 2, copied.clone()),
        by(2, 3, copied),
    ]);
    let mut replay = GpuOpReplay::default();
    calls.iter().for_each(|call| replay.feed(call));
    let busiest = Some(Busiest { launching_ns: 20 * 1024 + 10 * 1024, copying_ns: 3000 });
    let gpu_ops = replay.report();
    assert_eq!((gpu_ops.gaps.after_waits_ns, gpu_ops.busiest), (2 * 9 * 1024, busiest));
    assert_eq!(gpu_ops.gaps.after_sync.gaps, 4 * 9);
    replay.clear(Tgid(1));
    assert_eq!(replay.report(), gpu_ops, "exited processes still count");
}

#[test]
fn the_last_operation_of_each_stream_is_known() {
    let mut replay = GpuOpReplay::default();
    let calls = [
        at(launch("add", 5), 100, 10),
        at(copy(HostToDevice, 64, 0), 150, 10),
        at(launch("scale", 5), 200, 10),
        at(failed(launch("broken", 5)), 300, 10),
        at(graph_launch(Some(3)), 400, 10),
    ];
    calls.iter().for_each(|call| replay.feed(call));
    let tgid = calls[0].tgid;
    let mut streams = replay.last_operations(&[], 1000).remove(&tgid).unwrap();
    streams.sort_by_key(|last| last.stream);
    let shown: Vec<_> = streams.iter().map(|last| (last.operation.as_str(), last.age_ns)).collect();
    assert!(shown.contains(&("scale", 800)) && shown.contains(&("graph launch", 600)), "{shown:?}");
    assert!(shown.contains(&("copy H2D", 850)), "{shown:?}");
    replay.clear(tgid);
    assert!(replay.last_operations(&[], 1000).is_empty());
}
