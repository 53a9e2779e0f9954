//! What was seen of the threads of processes, several times within about a second. Nothing was stopped meanwhile.

use std::sync::Arc;

use gpuprobe_event::{Api, Call, Frame, Tgid, Tid};
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
    /// Its number among the processes of its job.
    pub rank: Option<Rank>,
    /// The GPUs that it uses, by their numbers on the host.
    pub gpus: Vec<u32>,
    pub threads: Vec<SampledThread>,
    /// Threads that exited before they were sampled.
    pub exited_threads: u64,
    /// Why its Python frames are missing, if it runs Python.
    pub python_problem: Option<String>,
    /// Why its stacks are missing.
    pub problem: Option<String>,
    /// The last operation on each of its streams, if probes saw it.
    pub streams: Vec<LastOperation>,
}

/// The number of a process among those of its job, from its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// The variable that has it: `RANK`, `OMPI_COMM_WORLD_RANK` or `LOCAL_RANK`.
    pub variable: String,
    pub number: u32,
}

/// The last operation submitted to a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastOperation {
    /// As it is shown elsewhere, such as `stream 3` or `default stream`.
    pub stream: String,
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
}

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadSample {
    pub at_ns: u64,
    /// As in /proc: `R` runs, `S` sleeps, `D` waits in the Linux kernel and cannot be interrupted, `T` is stopped.
    pub state: char,
    /// The number of the system call that it is in.
    pub system_call: Option<u32>,
    /// The function of the Linux kernel that it waits in.
    pub wait_channel: Option<String>,
    /// CPU time since the thread began.
    pub cpu_ns: u64,
    /// How often it began to wait.
    pub waits: u64,
    pub stack: Arc<ThreadStack>,
    /// A hash of the frames that called the outermost GPU call, with the memory of their variables, native and Python. It
    /// does not change while that call lasts.
    pub caller_state: u64,
}

/// The merged native and Python stack of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ThreadStack {
    /// The innermost first.
    pub frames: Vec<Frame>,
    /// Why frames are missing; `None` if there are all.
    pub incomplete: Option<String>,
    /// The thread ran in user mode, so the registers and the memory of the stack are not from the same moment.
    pub is_torn: bool,
    /// The outermost call of CUDA, NCCL or NVML.
    pub gpu_call: Option<GpuCall>,
}

/// A call of a GPU library on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GpuCall {
    pub api: Api,
    /// The exported function; the file name of the library if the function is not known.
    pub function: String,
    /// The index of its frame.
    pub frame: usize,
    /// Where its return address is on the stack: the same function called again from elsewhere has another one.
    pub slot: u64,
}
