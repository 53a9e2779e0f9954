//! A thread at one moment, as it was seen from outside without being stopped.

use std::sync::Arc;

use serde::Serialize;

use crate::catalogue::Api;
use crate::frame::Frame;

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSample {
    /// On the clock of the samples of one round after the other.
    pub at_ns: u64,
    /// As in /proc: `R` runs, `S` sleeps, `D` waits in the Linux kernel and cannot be interrupted, `T` is stopped.
    pub state: char,
    /// The number of the system call that it waits in.
    pub system_call: Option<u32>,
    /// The function of the Linux kernel that it waits in.
    pub wait_channel: Option<String>,
    /// CPU time since the thread began.
    pub cpu_ns: u64,
    /// How often it began to wait.
    pub waits: u64,
    pub stack: Arc<ThreadStack>,
    /// A hash of what called the outermost GPU call: its frames with their variables, native and Python. It does not
    /// change while that call lasts, and nearly always differs between two calls.
    pub caller_state: u64,
}

/// The merged native and Python stack of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ThreadStack {
    /// The innermost first.
    pub frames: Vec<Frame>,
    /// Why frames are missing; `None` if there are all.
    pub incomplete: Option<String>,
    /// The thread was running, so its registers and its memory are not from the same moment.
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
