//! What is known about a process besides its counters.

use gpuprobe_event::{Container, GpuNumbers, Tgid};

use crate::gpu_ops::command_series::KernelModuleRequests;
use crate::gpu_ops::cuda_kernel_series::LaunchTracker;

/// What is known about a process besides its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    pub name: String,
    /// The pid in its own namespace, if that is a different one.
    pub ns_pid: Option<Tgid>,
    pub container: Option<Container>,
    /// Its user, if that could be read.
    pub uid: Option<u32>,
    /// When it exited, on the clock of [`crate::ExitedProcesses::forget_old`].
    pub exited_at_ns: Option<u64>,
    /// The host's numbers of the GPUs that the process sees.
    pub gpus: GpuNumbers,
    /// Its launches as of the last update.
    pub launched: LaunchTracker,
    /// CUDA kernels run by launches of graphs.
    pub graph_kernels: LaunchTracker,
    /// Its requests to the NVIDIA kernel module as of the last update.
    pub requests: KernelModuleRequests,
}

impl ProcessInfo {
    /// Whether this process and another one with the same pid share their metric series.
    pub fn has_labels_of(&self, other: &Self) -> bool {
        (&self.name, &self.container) == (&other.name, &other.container)
    }
}
