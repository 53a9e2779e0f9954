//! The GPUs of a process, with what NVML says about them.

use std::collections::BTreeSet;

use gpuprobe_analysis::{GpuStates, ProcessThreads};

/// A GPU that a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessGpu {
    /// The host's number.
    pub(super) gpu: u32,
    /// Share of the last sampling period in which a CUDA kernel ran.
    pub(super) busy_percent: Option<u32>,
    /// The part of this process.
    pub(super) busy_percent_by_process: Option<u32>,
}

/// The GPUs that the process has open, and those that NVML finds it on.
pub(super) fn of_process(process: &ProcessThreads, states: &GpuStates) -> Vec<ProcessGpu> {
    let users = || states.users.iter().filter(|user| user.pid == process.tgid);
    let numbers: BTreeSet<u32> =
        process.gpus.iter().copied().chain(users().map(|user| user.gpu.into())).collect();
    let gpu = |gpu: u32| {
        let state = states.gpus.iter().find(|state| u32::from(state.gpu) == gpu);
        let user = users().find(|user| u32::from(user.gpu) == gpu);
        ProcessGpu {
            gpu,
            busy_percent: state.and_then(|state| state.state.busy_percent),
            busy_percent_by_process: user.and_then(|user| user.busy_percent).map(|[sm, ..]| sm),
        }
    };
    numbers.into_iter().map(gpu).collect()
}
