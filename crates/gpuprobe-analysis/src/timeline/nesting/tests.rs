use gpuprobe_event::{Api, Launch};

use super::*;
use crate::samples::{call, process, unfinished};

/// A call of one thread; `parent` 0 means none.
fn of(id: u64, parent: u64, start_ns: u64, end_ns: u64) -> Call {
    Call {
        id,
        parent: (parent != 0).then_some(parent),
        start_ns,
        outcome: Outcome::Returned { value: 0, duration_ns: end_ns - start_ns },
        ..call(Api::Runtime, "cudaMalloc", 0)
    }
}

fn begun(call: Call) -> Call {
    Call { outcome: Outcome::Begun, ..call }
}

fn nested(calls: impl IntoIterator<Item = Call>, end_ns: u64) -> (Vec<Slice>, u64) {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    calls.into_iter().for_each(|call| nesting.feed(Box::new(call), &mut out));
    nesting.seen(end_ns, end_ns);
    nesting.finish(&mut out);
    assert_eq!(nesting.buffered_bytes, 0);
    (out, nesting.moved())
}

/// Id, start, end and depth of each.
fn shape(slices: &[Slice]) -> Vec<(u64, u64, u64, usize)> {
    slices.iter().map(|s| (s.call.id, s.start_ns, s.end_ns, s.depth)).collect()
}

#[test]
fn an_inner_call_follows_the_call_around_it() {
    let calls = [of(3, 2, 12, 14), of(2, 1, 11, 15), of(4, 1, 16, 17), of(1, 0, 10, 20), of(5, 0, 30, 31)];
    let (slices, moved) = nested(calls, 99);
    assert_eq!(
        shape(&slices),
        [(1, 10, 20, 0), (2, 11, 15, 1), (3, 12, 14, 2), (4, 16, 17, 1), (5, 30, 31, 0)]
    );
    assert_eq!(moved, 0);
}

#[test]
fn calls_without_length_at_the_same_time_keep_their_order() {
    let calls = [of(3, 2, 10, 10), of(2, 1, 10, 10), of(4, 1, 10, 10), of(1, 0, 10, 10), of(5, 0, 10, 10)];
    let (slices, moved) = nested(calls, 99);
    let depths: Vec<_> = slices.iter().map(|s| (s.call.id, s.depth)).collect();
    assert_eq!(depths, [(1, 0), (2, 1), (3, 2), (4, 1), (5, 0)]);
    assert_eq!(moved, 0);
}

#[test]
fn an_instant_lies_in_the_open_call_and_is_no_return() {
    let moment = |id, parent, at| Call { outcome: Outcome::Instant, ..of(id, parent, at, at) };
    let calls =
        [moment(1, 0, 5), moment(3, 2, 12), of(2, 0, 10, 20), begun(of(4, 0, 30, 30)), moment(5, 4, 31)];
    let (slices, moved) = nested(calls, 40);
    assert_eq!(
        shape(&slices),
        [(1, 5, 5, 0), (2, 10, 20, 0), (3, 12, 12, 1), (4, 30, 40, 0), (5, 31, 31, 1)]
    );
    assert_eq!((moved, slices[2].call.outcome), (0, Outcome::Instant));
    let (slices, _) = nested([begun(of(1, 0, 10, 10)), moment(2, 1, 11)], 40);
    assert_eq!(slices[0].call.outcome, Outcome::Begun, "it is not known whether calls return");
}

#[test]
fn threads_do_not_wait_for_each_other() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    let other = |call: Call| Box::new(Call { tid: Tid(7), ..call });
    nesting.feed(Box::new(of(2, 1, 11, 12)), &mut out);
    nesting.feed(other(of(9, 0, 10, 20)), &mut out);
    assert_eq!(shape(&out), [(9, 10, 20, 0)]);
    nesting.feed(Box::new(of(1, 0, 10, 15)), &mut out);
    assert_eq!(shape(&out), [(9, 10, 20, 0), (1, 10, 15, 0), (2, 11, 12, 1)]);
}

#[test]
fn an_open_call_ends_with_its_process() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    nesting.feed(Box::new(unfinished(of(1, 0, 10, 10))), &mut out);
    nesting.feed(Box::new(unfinished(of(2, 1, 12, 12))), &mut out);
    assert!(out.is_empty());
    nesting.process(&process(ProcessChange::Exit, 50, None), &mut out);
    assert_eq!(shape(&out), [(1, 10, 50, 0), (2, 12, 50, 1)]);
    assert!(out.iter().all(|s| s.call.outcome == Outcome::Unfinished));
}

#[test]
fn an_open_call_may_be_recorded_after_the_exit_of_its_process() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    nesting.process(&process(ProcessChange::Exit, 50, None), &mut out);
    nesting.feed(Box::new(unfinished(of(1, 0, 10, 10))), &mut out);
    nesting.feed(Box::new(unfinished(of(2, 1, 12, 12))), &mut out);
    nesting.seen(1000, 1000);
    nesting.finish(&mut out);
    assert_eq!(shape(&out), [(1, 10, 50, 0), (2, 12, 50, 1)]);
}

#[test]
fn an_open_call_ends_with_the_trace() {
    let (slices, _) = nested([of(2, 1, 11, 12), unfinished(of(1, 0, 10, 10))], 99);
    assert_eq!(shape(&slices), [(1, 10, 99, 0), (2, 11, 12, 1)]);
}

#[test]
fn entry_and_return_are_one_call() {
    let calls = [
        begun(of(1, 0, 10, 10)),
        begun(of(2, 1, 11, 11)),
        of(2, 1, 11, 12),
        of(1, 0, 10, 20),
        begun(of(3, 0, 30, 30)),
    ];
    let (slices, _) = nested(calls, 99);
    assert_eq!(shape(&slices), [(1, 10, 20, 0), (2, 11, 12, 1), (3, 30, 99, 0)]);
    assert_eq!(slices[2].call.outcome, Outcome::Unfinished);
}

#[test]
fn calls_have_no_length_if_no_call_is_seen_to_return() {
    let (slices, _) = nested([1, 2, 3].map(|id| begun(of(id, 0, 10 * id, 10 * id))), 99);
    assert_eq!(shape(&slices), [(1, 10, 10, 0), (2, 20, 20, 0), (3, 30, 30, 0)]);
    assert!(slices.iter().all(|s| s.call.outcome == Outcome::Begun));
}

#[test]
fn a_call_whose_outer_call_was_lost_is_outermost() {
    let calls = [of(3, 2, 12, 14), of(2, 9, 11, 15), of(5, 8, 16, 16), of(6, 0, 20, 30)];
    let (slices, moved) = nested(calls, 99);
    assert_eq!(shape(&slices), [(2, 11, 15, 0), (3, 12, 14, 1), (5, 16, 16, 0), (6, 20, 30, 0)]);
    assert_eq!(moved, 0);
}

#[test]
fn wrong_times_and_ids_still_nest() {
    // overlapping siblings, a child longer than its parent, a call that is its own parent, two that contain each other,
    // and a duplicate id
    let calls = [
        of(2, 1, 5, 50),
        of(3, 1, 6, 9),
        of(4, 4, 7, 8),
        of(5, 6, 7, 8),
        of(6, 5, 7, 8),
        of(1, 0, 4, 10),
        of(1, 0, 8, 12),
        of(7, 1, 0, 3),
    ];
    let (slices, moved) = nested(calls, 99);
    assert_eq!(slices.len(), 8);
    assert!(moved > 0);
    assert_nested(&slices);
}

/// Depths increase by one at most, and times lie within those of the call around.
fn assert_nested(slices: &[Slice]) {
    let mut path: Vec<(u64, u64)> = Vec::new();
    for slice in slices {
        assert!(slice.depth <= path.len(), "{:?}", shape(slices));
        path.truncate(slice.depth + 1);
        let floor = if path.len() > slice.depth { path[slice.depth].1 } else { 0 };
        path.truncate(slice.depth);
        if let Some((start, end)) = path.last() {
            assert!(*start <= slice.start_ns && slice.end_ns <= *end, "{:?}", shape(slices));
            assert!(slice.start_ns >= floor);
        }
        assert!(slice.start_ns <= slice.end_ns);
        path.push((slice.start_ns, slice.end_ns));
    }
}

#[test]
fn any_times_and_ids_nest() {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let (start, length) = (random(30), random(10));
                let call = of(random(12), random(12), start, start + length);
                match random(8) {
                    0 => unfinished(call),
                    1 => begun(call),
                    _ => call,
                }
            })
            .collect();
        let returned = |call: &&Call| !matches!(call.outcome, Outcome::Begun);
        let expected = calls.iter().filter(returned).count();
        let (slices, _) = nested(calls, 99);
        assert!(slices.len() >= expected);
        let mut from = 0;
        for to in 1..=slices.len() {
            if to == slices.len() || slices[to].depth == 0 {
                assert_nested(&slices[from..to]);
                from = to;
            }
        }
    }
}

#[test]
fn the_buffer_is_bounded_and_no_call_is_lost() {
    const CALLS: u64 = 300;
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    let long = |id: u64| Call { name: Name::Owned("n".repeat(1 << 20)), ..of(id, 1, 10 * id, 10 * id + 5) };
    nesting.feed(Box::new(begun(of(1, 0, 5, 5))), &mut out);
    for id in 2..CALLS {
        nesting.feed(Box::new(long(id)), &mut out);
        assert!(nesting.buffered_bytes <= MOST_BUFFERED);
        out.iter_mut().for_each(|slice| slice.call.name = Name::Borrowed(""));
    }
    nesting.feed(Box::new(of(1, 0, 5, 10 * CALLS)), &mut out);
    assert_eq!(nesting.moved(), 0, "the times of the outer call are not adjusted");
    let mut ids: Vec<_> = out.iter().map(|slice| slice.call.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..CALLS).collect::<Vec<_>>());
}

#[test]
fn open_calls_are_not_buffered_for_ever() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    for id in 1..200 {
        let call = Call { name: Name::Owned("n".repeat(1 << 20)), ..unfinished(of(id, 0, id, id)) };
        nesting.feed(Box::new(call), &mut out);
        assert!(nesting.buffered_bytes <= MOST_BUFFERED);
    }
    nesting.seen(500, 500);
    nesting.finish(&mut out);
    assert_eq!(out.len(), 199);
}

#[test]
fn old_threads_are_forgotten_when_new_ones_appear() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    for tid in 0..MOST_REMEMBERED as u32 + 10 {
        nesting.feed(Box::new(Call { tid: Tid(tid), ..of(1, 0, 5, 6) }), &mut out);
        out.clear();
    }
    assert!(nesting.threads < MOST_REMEMBERED);
}

#[test]
fn open_calls_of_many_threads_are_not_buffered_for_ever() {
    const THREADS: u32 = 130_000;
    for of_their_own in [false, true] {
        let (mut nesting, mut out, mut emitted) = (Nesting::default(), Vec::new(), 0);
        for i in 0..THREADS {
            let tgid = Tgid(if of_their_own { i } else { 1 });
            let call = Call { tgid, tid: Tid(i), ..begun(of(i.into(), 1, 5, 5)) };
            nesting.feed(Box::new(call), &mut out);
            assert!(nesting.buffered_bytes <= MOST_BUFFERED);
            emitted += out.len();
            out.clear();
        }
        assert!(emitted > 0 && nesting.threads + nesting.processes.len() <= MOST_REMEMBERED);
        nesting.finish(&mut out);
        assert_eq!(emitted + out.len(), THREADS as usize);
    }
}

#[test]
fn names_count_for_the_size_of_the_buffer() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    for id in 2..20 {
        let kernel = Some("k".repeat(4 << 20).into());
        let effect = Effect::Launch(Launch { kernel, ..Launch::default() });
        let call = Call { effect, ..begun(of(id, 1, 5, 5)) };
        nesting.feed(Box::new(call), &mut out);
    }
    assert!(!out.is_empty());
}

#[test]
fn processes_that_only_started_are_not_stored() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    for pid in 0..10 {
        let start = ProcessEvent { tgid: Tgid(pid), ..process(ProcessChange::Start, 5, None) };
        nesting.process(&start, &mut out);
    }
    assert!(nesting.processes.is_empty());
}

#[test]
fn a_call_that_is_open_after_an_exec_lasts_until_the_end() {
    let (mut nesting, mut out) = (Nesting::default(), Vec::new());
    nesting.process(&process(ProcessChange::Exec, 10, None), &mut out);
    nesting.feed(Box::new(begun(of(1, 0, 20, 21))), &mut out);
    nesting.feed(Box::new(of(2, 1, 30, 530)), &mut out);
    nesting.finish(&mut out);
    assert_eq!(shape(&out), [(1, 20, 530, 0), (2, 30, 530, 1)]);
    assert_eq!(nesting.moved(), 0);
}
