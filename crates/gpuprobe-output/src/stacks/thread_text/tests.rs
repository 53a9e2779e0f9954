use std::sync::Arc;

use gpuprobe_analysis::ThreadStack;
use gpuprobe_event::Tid;

use super::*;

fn sample() -> ThreadGroup {
    ThreadGroup {
        tids: vec![Tid(7)],
        count: 1,
        name: "python".to_owned(),
        is_main: true,
        verdict: ThreadVerdict::Stuck,
        state: 'S',
        system_call: Some(202),
        wait_channel: Some("futex_wait_queue".to_owned()),
        stack: Arc::default(),
        function: Some("cuStreamSynchronize".to_owned()),
        open_call: None,
        age_ns: None,
        has_same_arguments: true,
        cpu: None,
    }
}

fn text(group: &ThreadGroup) -> String {
    let mut out = String::new();
    super::group(&mut out, group, None, &StacksOptions { width: 80, architecture: Architecture::X86_64 });
    out
}

#[test]
fn the_verdict_is_a_sentence() {
    let of = |verdict, function: Option<&str>| {
        activity(&ThreadGroup { verdict, function: function.map(str::to_owned), ..sample() })
    };
    let call = Some("cuCtxSynchronize");
    assert_eq!(of(ThreadVerdict::Stuck, call), "stuck in cuCtxSynchronize, began before gpuprobe attached");
    assert_eq!(of(ThreadVerdict::Unknown, call), "in cuCtxSynchronize, began before gpuprobe attached");
    assert_eq!(of(ThreadVerdict::Moving, call), "moving, in cuCtxSynchronize");
    assert_eq!(of(ThreadVerdict::Moving, None), "moving");
    assert_eq!(of(ThreadVerdict::Idle, None), "idle");
    assert_eq!(of(ThreadVerdict::Unknown, None), "outside of GPU calls");
}

#[test]
fn a_state_has_words() {
    let of = |state, system_call, wait_channel: Option<&str>| {
        let wait_channel = wait_channel.map(str::to_owned);
        super::state(&ThreadGroup { state, system_call, wait_channel, ..sample() }, Architecture::X86_64)
    };
    assert_eq!(of('S', Some(202), Some("futex_wait_queue")), "sleeping in futex, futex_wait_queue");
    assert_eq!(of('D', Some(16), None), "sleeping (cannot be interrupted) in ioctl");
    assert_eq!(of('D', None, None), "sleeping (cannot be interrupted)");
    assert_eq!(of('S', Some(9999), None), "sleeping in system call 9999");
    assert_eq!(of('R', None, None), "running");
    assert_eq!(of('T', None, Some("do_signal_stop")), "stopped in do_signal_stop");
    assert_eq!(of('\x1b', None, Some("\n")), "state \\u{1b} in \\n");
}

#[test]
fn cpu_time_is_a_range_if_threads_differ() {
    assert_eq!(cpu_time(CpuShares { least: 0.991, most: 0.994 }), "CPU 99%");
    assert_eq!(cpu_time(CpuShares { least: 0.0, most: 0.5 }), "CPU 0% to 50%");
}

#[test]
fn other_threads_are_listed_up_to_a_bound() {
    let of = |count: u32| {
        others(&ThreadGroup { tids: (1..=count.min(32)).map(Tid).collect(), count: count.into(), ..sample() })
    };
    assert_eq!(of(1), None);
    assert_eq!(of(2).as_deref(), Some("also thread 2"));
    assert_eq!(of(3).as_deref(), Some("also threads 2, 3"));
    assert_eq!(of(100_000).as_deref(), Some("also threads 2, 3, 4, 5, 6, 7, 8, 9 and 99991 more"));
}

#[test]
fn a_long_stack_loses_its_middle() {
    let frame = |address| Frame { address, ..Frame::default() };
    let with = |frames: u64| {
        let stack = ThreadStack { frames: (0..frames).map(frame).collect(), ..ThreadStack::default() };
        text(&ThreadGroup { stack: Arc::new(stack), ..sample() })
    };
    assert_eq!(with(100).lines().count(), 102);
    let long = with(1_000_000);
    assert_eq!(long.lines().count(), 103);
    assert!(long.contains("at 0x4f\n      ... 999900 frames not shown\n      at 0xf422c\n"), "{long}");
}

#[test]
fn lines_fit_and_control_no_terminal() {
    let evil = "\x1b[2J\n\u{202e}".repeat(5000);
    let frame = Frame { function: Some(evil.clone()), module: Some(evil.clone()), ..Frame::default() };
    let stack = ThreadStack {
        frames: vec![frame],
        incomplete: Some("\x07".to_owned()),
        is_torn: true,
        ..ThreadStack::default()
    };
    let shown = text(&ThreadGroup {
        name: "a\"\x1b\n".to_owned(),
        function: Some("f\x1b".to_owned()),
        stack: Arc::new(stack),
        ..sample()
    });
    assert!(shown.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{shown}");
    assert!(shown.contains("Thread 7 \"a\\\"\\u{1b}\\n\": stuck in f\\u{1b}"), "{shown}");
    let frame = shown.lines().find(|line| line.trim_start().starts_with("at ")).unwrap();
    assert_eq!(frame.chars().count(), 80);
    assert_eq!(shown.lines().count(), 5);
}
