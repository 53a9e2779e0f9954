//! A thread with its verdict, and the one of its samples to show.

use gpuprobe_event::{Call, Tgid};

use super::gpu_call::{call_of, open_gpu_call};
use super::sample::{GpuCall, SampledThread, ThreadSample};
use super::verdict::{ThreadVerdict, cpu_share, is_readable};

#[derive(Clone, Debug)]
pub(super) struct JudgedThread<'t> {
    pub(super) thread: &'t SampledThread,
    pub(super) verdict: ThreadVerdict,
    /// The last sample in a GPU call; the last one that says where the thread is, if none is in a call.
    pub(super) sample: &'t ThreadSample,
    /// The GPU call on the stack of that sample.
    pub(super) call: Option<&'t GpuCall>,
    /// The open call that a probe saw.
    pub(super) open_call: Option<&'t Call>,
    pub(super) cpu_share: Option<f64>,
    pub(super) is_main: bool,
}

impl<'t> JudgedThread<'t> {
    /// `None` for a thread without samples.
    pub(super) fn of(thread: &'t SampledThread, tgid: Tgid) -> Option<Self> {
        let (first, last) = (thread.samples.first()?, thread.samples.last()?);
        let from_last = || thread.samples.iter().rev();
        let in_call = |sample: &&ThreadSample| call_of(&sample.stack).is_some();
        let sample = from_last()
            .find(|sample| in_call(sample) && is_readable(sample))
            .or_else(|| from_last().find(in_call))
            .or_else(|| from_last().find(|sample| is_readable(sample)))
            .unwrap_or(last);
        let call = call_of(&sample.stack);
        let verdict = ThreadVerdict::of(thread);
        // of a thread that moves, the open call may be a later one than that of the sample
        let is_shown = |open: &&Call| match (verdict, call) {
            (ThreadVerdict::Moving, Some(call)) => call.function == open.name,
            (_, Some(_)) => true,
            (_, None) => sample.stack.incomplete.is_some(),
        };
        Some(Self {
            thread,
            verdict,
            sample,
            call,
            open_call: open_gpu_call(thread).filter(is_shown),
            cpu_share: cpu_share(first, last),
            is_main: thread.tid.0 == tgid.0,
        })
    }

    /// The function of the GPU call that it is in. If frames are missing, the probe knows.
    pub(super) fn function(&self) -> Option<&'t str> {
        let opened = || self.open_call.map(|open| open.name.as_ref());
        self.call.map(|call| call.function.as_str()).or_else(opened)
    }

    /// How long the call has been open, if a probe saw it begin.
    pub(super) fn age_ns(&self) -> Option<u64> {
        self.open_call.and(self.thread.open_call_age_ns)
    }

    /// Sorts the oldest call first. A call that no probe saw begin is older than all others.
    pub(super) fn oldest_first(&self) -> impl Ord + use<> {
        (self.age_ns().map(std::cmp::Reverse), !self.is_main, self.thread.tid)
    }
}
