//! What is known about a process besides its counters.

use gpuprobe_event::{Container, GpuNumbers, Tgid};

use crate::gpu_ops::command_series::Asked;
use crate::gpu_ops::cuda_kernel_series::Launched;

/// What is known of a process besides its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its name.
    pub name: String,
    /// Its pid as it sees it itself, where that is another.
    pub ns_pid: Option<Tgid>,
    /// The container it is in.
    pub container: Option<Container>,
    /// When it ended, on the clock that [`Ended::forget_old`] is given.
    pub exited_at_ns: Option<u64>,
    /// Which of the host's GPUs its own are.
    pub gpus: GpuNumbers,
    /// What it launched, up to the last look.
    pub launched: Launched,
    /// What it asked of the driver, up to the last look.
    pub asked: Asked,
}

impl ProcessInfo {
    /// Whether the series of this process are those of another, where the two have the same pid.
    pub fn has_labels_of(&self, other: &Self) -> bool {
        (&self.name, &self.container) == (&other.name, &other.container)
    }
}
