use std::sync::Arc;

use gpuprobe_event::Call;

use super::super::sample::ThreadStack;
use super::super::sample_threads::{SECOND, asleep, frame, stack_in, stack_outside, thread};
use super::ThreadVerdict::{Idle, Moving, Stuck, Unknown};
use super::*;
use crate::samples;

/// The verdict on a thread with these samples.
fn verdict(samples: Vec<ThreadSample>) -> ThreadVerdict {
    ThreadVerdict::of(&thread(1, samples))
}

/// Two samples of a sleeping thread a second apart, the second one changed.
fn changed(stack: &ThreadStack, change: impl Fn(&mut ThreadSample)) -> ThreadVerdict {
    let mut second = asleep(SECOND, stack);
    change(&mut second);
    verdict(vec![asleep(0, stack), second])
}

fn sync() -> ThreadStack {
    stack_in("cuStreamSynchronize", 1, 0x7f00)
}

#[test]
fn a_thread_that_sleeps_in_one_call_is_stuck() {
    assert_eq!(changed(&sync(), |_| ()), Stuck);
    // it did not run, so its state cannot have changed by itself
    assert_eq!(changed(&sync(), |sample| sample.caller_state = 2), Stuck);
    assert_eq!(changed(&sync(), |sample| sample.state = 'D'), Stuck);
    assert_eq!(changed(&sync(), |sample| sample.state = 'T'), Stuck);
}

#[test]
fn a_thread_that_spins_or_polls_in_one_call_is_stuck() {
    let spin = |sample: &mut ThreadSample| {
        (sample.state, sample.cpu_ns, sample.waits) = ('R', SECOND, 900);
        // inside of the call, it is somewhere else
        let mut stack = sync();
        stack.frames[0] = frame("sched_yield", "libc.so.6");
        sample.stack = Arc::new(stack);
    };
    assert_eq!(changed(&sync(), spin), Stuck);
    let next = |sample: &mut ThreadSample| {
        spin(sample);
        sample.caller_state = 2;
    };
    assert_eq!(changed(&sync(), next), Moving, "its caller has gone on meanwhile");
}

#[test]
fn frames_of_a_spinning_thread_may_be_wrong_in_some_samples() {
    let spinning = |at, stack: &ThreadStack| {
        let mut sample = asleep(at, &ThreadStack { is_torn: true, ..stack.clone() });
        (sample.state, sample.cpu_ns, sample.waits) = ('R', at, at);
        sample
    };
    let wrong = stack_in("libcuda.so.1", 1, 0x7100);
    let seen = |other: &ThreadStack| {
        let (second, third) = (spinning(SECOND / 2, other), spinning(SECOND, &sync()));
        let mut thread = thread(1, vec![spinning(0, &sync()), second, third]);
        let without = ThreadVerdict::of(&thread);
        thread.has_returned = Some(false);
        (without, ThreadVerdict::of(&thread))
    };
    assert_eq!(seen(&wrong), (Stuck, Stuck));
    assert_eq!(seen(&stack_outside(3)), (Moving, Moving), "wrong frames do not lead out of GPU libraries");
}

#[test]
fn another_call_is_a_move() {
    for other in [
        stack_in("cuCtxSynchronize", 1, 0x7f00),
        stack_in("cuStreamSynchronize", 1, 0x7f40),
        stack_outside(3),
    ] {
        assert_eq!(changed(&sync(), |sample| sample.stack = Arc::new(other.clone())), Moving);
        let first = asleep(0, &other);
        assert_eq!(verdict(vec![first, asleep(SECOND / 10, &sync())]), Moving, "also in a short time");
    }
}

#[test]
fn outside_of_calls_a_thread_moves_or_is_idle() {
    let stack = stack_outside(3);
    assert_eq!(changed(&stack, |_| ()), Idle);
    assert_eq!(changed(&stack, |sample| sample.stack = Arc::new(stack_outside(4))), Idle, "it did not run");
    let woke = |sample: &mut ThreadSample| (sample.waits, sample.cpu_ns) = (13, 8);
    assert_eq!(changed(&stack, woke), Idle, "it woke up and went back to sleep");
    let went_on = |sample: &mut ThreadSample| {
        woke(sample);
        sample.stack = Arc::new(stack_outside(4));
    };
    assert_eq!(changed(&stack, went_on), Moving);
    assert_eq!(changed(&stack, |sample| sample.cpu_ns += SECOND / 50), Moving, "it computes");
}

#[test]
fn too_few_samples_have_no_verdict() {
    assert_eq!(verdict(vec![]), Unknown);
    assert_eq!(verdict(vec![asleep(0, &sync())]), Unknown);
    for stack in [sync(), stack_outside(3)] {
        assert_eq!(verdict(vec![asleep(0, &stack), asleep(SECOND / 2 - 1, &stack)]), Unknown);
        assert_ne!(verdict(vec![asleep(0, &stack), asleep(SECOND / 2, &stack)]), Unknown);
        assert_eq!(
            verdict(vec![asleep(SECOND, &stack), asleep(0, &stack)]),
            Unknown,
            "a clock that runs back"
        );
    }
}

#[test]
fn a_torn_stack_that_was_cut_says_nothing() {
    let cut = |at_ns| {
        let stack = ThreadStack {
            incomplete: Some("a return address is not in a mapping".to_owned()),
            is_torn: true,
            ..ThreadStack::default()
        };
        let mut sample = asleep(at_ns, &stack);
        (sample.state, sample.cpu_ns) = ('R', 100);
        sample
    };
    let mut last = asleep(SECOND, &sync());
    last.cpu_ns = 200;
    assert_eq!(verdict(vec![asleep(0, &sync()), cut(SECOND / 2), last.clone()]), Stuck);
    assert_eq!(verdict(vec![asleep(0, &sync()), cut(SECOND)]), Unknown);
    assert_eq!(verdict(vec![cut(0), last, cut(2 * SECOND)]), Unknown);
    let mut busy = cut(SECOND);
    busy.cpu_ns = SECOND;
    assert_eq!(verdict(vec![cut(0), busy.clone()]), Moving, "if no stack can be read, CPU time remains");
    assert_eq!(verdict(vec![asleep(0, &stack_outside(3)), busy]), Moving, "and if only one can be read");
}

/// The verdict on a thread that may spin in a call, with a call that a probe saw begin.
fn probed(stack: &ThreadStack, open: Call, age_ns: u64) -> ThreadVerdict {
    let mut last = asleep(SECOND, stack);
    (last.waits, last.cpu_ns) = (4, 1000);
    let mut thread = thread(1, vec![asleep(0, stack), last]);
    (thread.open_call, thread.open_call_age_ns) = (Some(open), Some(age_ns));
    ThreadVerdict::of(&thread)
}

#[test]
fn a_probe_that_saw_the_call_begin_is_believed() {
    let open = |name| samples::unfinished(samples::call(Api::Driver, name, 0));
    let begun_now = probed(&sync(), open("cuStreamSynchronize"), SECOND / 2);
    assert_eq!(begun_now, Moving, "the same call, made again from the same place");
    assert_eq!(probed(&sync(), open("cuStreamSynchronize"), 12 * SECOND), Stuck);

    let collective = stack_in("ncclAllReduce", 1, 0x7f00);
    assert_eq!(probed(&collective, open("cuEventQuery"), 1000), Stuck, "a call inside of the outermost one");

    let cut = ThreadStack { incomplete: Some("cut".to_owned()), ..stack_outside(3) };
    assert_eq!(probed(&cut, open("cuStreamSynchronize"), 12 * SECOND), Stuck, "its frame is missing");
    assert_eq!(probed(&stack_outside(3), open("cuInit"), 12 * SECOND), Idle, "left by longjmp");
    let torn = ThreadStack { is_torn: true, ..cut.clone() };
    assert_eq!(probed(&torn, open("cuStreamSynchronize"), 12 * SECOND), Stuck, "no stack can be read");
    let hooked = samples::unfinished(samples::call(Api::Hook, "train_step", 0));
    assert_eq!(probed(&cut, hooked, 12 * SECOND), Idle, "a hooked function is no GPU call");
}

#[test]
fn cpu_time_is_a_share_of_the_time_between_samples() {
    let share = |cpu_ns, span_ns| {
        let mut last = asleep(span_ns, &sync());
        last.cpu_ns = cpu_ns;
        cpu_share(&asleep(0, &sync()), &last)
    };
    assert_eq!(share(7 + SECOND / 4, SECOND), Some(0.25));
    assert_eq!(share(u64::MAX, 1), Some(1.0));
    assert_eq!(share(0, SECOND), Some(0.0));
    assert_eq!(share(100, 0), None);
}

#[test]
fn a_watched_return_decides() {
    let running = |at_ns, caller_state| ThreadSample {
        state: 'R',
        cpu_ns: at_ns,
        caller_state,
        ..asleep(at_ns, &sync())
    };
    let of = |second, has_returned| {
        let samples = vec![running(0, 1), second];
        ThreadVerdict::of(&SampledThread { has_returned, ..thread(1, samples) })
    };
    // a loop whose counter is elsewhere, and a hung call whose caller shares a variable with another thread
    assert_eq!(of(running(SECOND, 1), Some(true)), Moving);
    assert_eq!(of(running(SECOND, 2), Some(false)), Stuck);
    // a call that had ended before it was watched
    assert_eq!(of(asleep(SECOND, &stack_in("cuMemFree_v2", 1, 0x7f10)), Some(false)), Moving);
    assert_eq!(of(running(SECOND / 4, 1), Some(false)), Unknown, "too short");
    let young = |has_returned| {
        let open_call =
            Some(Call { name: "cuStreamSynchronize".into(), ..samples::call(Api::Driver, "x", 0) });
        let samples = vec![asleep(0, &sync()), asleep(SECOND, &sync())];
        let open = SampledThread { open_call, open_call_age_ns: Some(7), has_returned, ..thread(1, samples) };
        ThreadVerdict::of(&open)
    };
    assert_eq!((young(None), young(Some(false))), (Moving, Stuck), "the age was read too early");
}
