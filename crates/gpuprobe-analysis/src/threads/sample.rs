//! What was seen of the threads of processes, several times within about a second. Nothing was stopped meanwhile.

use gpuprobe_event::{Call, Tgid, Tid};
pub use gpuprobe_event::{GpuCall, Rank, ThreadSample, ThreadStack};
use serde::Serialize;

/// A process and its threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledProcess {
    pub tgid: Tgid,
    /// Its name, as `ps -o comm` shows it.
    pub name: String,
    /// Its command line, words joined by spaces.
    pub command: String,
    /// The container it runs in.
    pub container: Option<String>,
    /// Its parent.
    pub parent: Option<Tgid>,
    /// Its session: what was started from one terminal, or by one service.
    pub session: Option<u32>,
    /// The time since its start.
    pub age_ns: Option<u64>,
    /// Its number among the processes of its job.
    pub rank: Option<Rank>,
    /// The GPUs that it uses, by their numbers on the host.
    pub gpus: Vec<u32>,
    pub threads: Vec<SampledThread>,
    /// Threads that exited while the process was sampled.
    pub exited_threads: u64,
    /// Why its Python frames are missing, if it runs Python.
    pub python_problem: Option<String>,
    /// Why its stacks are missing.
    pub problem: Option<String>,
    /// The last operation on each of its streams, if probes saw it.
    pub streams: Vec<LastOperation>,
}

/// The last operation submitted to a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastOperation {
    /// The stream, as launches have it.
    pub stream: u64,
    /// The CUDA kernel, copy or function.
    pub operation: String,
    pub age_ns: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledThread {
    pub tid: Tid,
    pub name: String,
    /// At least one; in the order of time.
    pub samples: Vec<ThreadSample>,
    /// Its outermost open call, if a probe saw it begin.
    pub open_call: Option<Call>,
    /// The age of that call at the last sample.
    pub open_call_age_ns: Option<u64>,
    /// Whether the GPU call of the first sample returned before the last one; `None` if that was not watched.
    pub has_returned: Option<bool>,
}
