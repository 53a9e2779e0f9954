//! Sampled threads for tests.

use std::sync::Arc;

use gpuprobe_event::{Api, Frame, Tgid, Tid};

use super::sample::{GpuCall, Rank, SampledProcess, SampledThread, ThreadSample, ThreadStack};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// A native frame; without a function if it has no name.
pub(crate) fn frame(function: &str, module: &str) -> Frame {
    Frame {
        function: (!function.is_empty()).then(|| function.to_owned()),
        module: Some(module.to_owned()),
        offset: 0x1c,
        ..Frame::default()
    }
}

pub(crate) fn python(function: &str, file: &str, line: u32) -> Frame {
    Frame { file: Some(file.to_owned()), line: Some(line), python: true, ..frame(function, "") }
}

/// A stack in a GPU call that `main` made.
pub(crate) fn stack_in(function: &str, frame_index: usize, slot: u64) -> ThreadStack {
    let api = if function.starts_with("nccl") { Api::Nccl } else { Api::Driver };
    ThreadStack {
        frames: vec![
            frame("poll", "libc.so.6"),
            frame(function, "libgpu.so"),
            python("step", "/home/user/train.py", 88),
        ],
        gpu_call: Some(GpuCall { api, function: function.to_owned(), frame: frame_index, slot }),
        ..ThreadStack::default()
    }
}

/// A stack outside of GPU calls, at this line.
pub(crate) fn stack_outside(line: u32) -> ThreadStack {
    ThreadStack {
        frames: vec![frame("read", "libc.so.6"), python("load", "/home/user/data.py", line)],
        ..ThreadStack::default()
    }
}

/// A thread that sleeps.
pub(crate) fn asleep(at_ns: u64, stack: &ThreadStack) -> ThreadSample {
    ThreadSample {
        at_ns,
        state: 'S',
        system_call: Some(202),
        wait_channel: Some("futex_wait_queue".to_owned()),
        cpu_ns: 7,
        waits: 3,
        stack: Arc::new(stack.clone()),
        caller_state: 1,
    }
}

pub(crate) fn thread(tid: u32, samples: Vec<ThreadSample>) -> SampledThread {
    SampledThread {
        tid: Tid(tid),
        name: format!("t{tid}"),
        samples,
        open_call: None,
        open_call_age_ns: None,
        has_returned: None,
    }
}

/// A thread that sleeps for a second with this stack.
pub(crate) fn waiting(tid: u32, stack: &ThreadStack) -> SampledThread {
    thread(tid, vec![asleep(0, stack), asleep(SECOND, stack)])
}

/// A process of a job of `python train.py`.
pub(crate) fn ranked(tgid: u32, rank: u32, threads: Vec<SampledThread>) -> SampledProcess {
    SampledProcess {
        tgid: Tgid(tgid),
        name: "python".to_owned(),
        command: "python train.py".to_owned(),
        rank: Some(Rank { variable: "RANK".to_owned(), number: rank }),
        threads,
        ..SampledProcess::default()
    }
}
