//! What every output format implements, and names that all formats use.

use std::io;

use gpuprobe_analysis::{Sample, Slice};
use gpuprobe_event::trace::End;
use gpuprobe_event::{LossEvent, OutOfMemoryEvent, ProcessEvent, Tgid, Tid, XidEvent};

/// Writes the events of a trace in one format.
pub(super) trait TraceWriter {
    /// Outermost calls, each followed by the calls inside it.
    fn slices(&mut self, slices: &[Slice]) -> io::Result<()>;
    fn process(&mut self, change: &ProcessEvent) -> io::Result<()>;
    fn loss(&mut self, loss: &LossEvent) -> io::Result<()>;
    fn xid(&mut self, xid: &XidEvent) -> io::Result<()>;
    fn out_of_memory(&mut self, event: &OutOfMemoryEvent) -> io::Result<()>;
    fn sample(&mut self, sample: &Sample) -> io::Result<()>;
    fn finish(&mut self, end: Option<&End>) -> io::Result<()>;
}

/// The name of a thread. A trace has no thread names.
pub(super) fn thread_name(tgid: Tgid, tid: Tid) -> String {
    if tgid.0 == tid.0 { "main thread".to_owned() } else { format!("thread {tid}") }
}
