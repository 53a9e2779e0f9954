//! What every output format implements, and names that all formats use.

use std::io;

use gpuprobe_analysis::{Sample, Slice};
use gpuprobe_event::trace::End;
use gpuprobe_event::{
    AgentEvent, Execution, LossEvent, OutOfMemoryEvent, ProcessEvent, RangeEvent, Tgid, Tid, XidEvent,
};

use crate::gpu_op_text;

/// Writes the events of a trace in one format.
pub(super) trait TraceWriter {
    /// Outermost calls, each followed by the calls inside it.
    fn slices(&mut self, slices: &[Slice]) -> io::Result<()>;
    fn process(&mut self, change: &ProcessEvent) -> io::Result<()>;
    fn loss(&mut self, loss: &LossEvent) -> io::Result<()>;
    fn xid(&mut self, xid: &XidEvent) -> io::Result<()>;
    fn out_of_memory(&mut self, event: &OutOfMemoryEvent) -> io::Result<()>;
    fn execution(&mut self, execution: &Execution) -> io::Result<()>;
    fn range(&mut self, range: &RangeEvent) -> io::Result<()>;
    fn agent(&mut self, state: &AgentEvent) -> io::Result<()>;
    fn sample(&mut self, sample: &Sample) -> io::Result<()>;
    fn finish(&mut self, end: Option<&End>) -> io::Result<()>;
}

/// The name of a thread. A trace has no thread names.
pub(super) fn thread_name(tgid: Tgid, tid: Tid) -> String {
    if tgid.0 == tid.0 { "main thread".to_owned() } else { format!("thread {tid}") }
}

/// A track of a process that is no thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    /// What was submitted to a stream, by its handle.
    Stream(u64),
    /// What a GPU executed of a stream, by CUPTI's number. Executions that overlap are in further lanes.
    Gpu { gpu: u32, stream: u32, lane: usize },
    /// NVTX ranges of a thread.
    ThreadRanges(Tid),
    /// NVTX ranges that may overlap.
    ProcessRanges { lane: usize },
}

impl Track {
    pub(super) fn with_lane(self, lane: usize) -> Self {
        match self {
            Self::Gpu { gpu, stream, .. } => Self::Gpu { gpu, stream, lane },
            Self::ProcessRanges { .. } => Self::ProcessRanges { lane },
            Self::Stream(_) | Self::ThreadRanges(_) => self,
        }
    }

    pub(super) fn name(self, tgid: Tgid) -> String {
        let numbered = |name: String, lane: usize| match lane {
            0 => name,
            _ => format!("{name} ({})", lane + 1),
        };
        match self {
            Self::Stream(stream) => gpu_op_text::stream(stream).into_owned(),
            Self::Gpu { gpu, stream, lane } => numbered(format!("GPU {gpu}, stream {stream}"), lane),
            Self::ThreadRanges(tid) => format!("NVTX, {}", thread_name(tgid, tid)),
            Self::ProcessRanges { lane } => numbered("NVTX".to_owned(), lane),
        }
    }
}
