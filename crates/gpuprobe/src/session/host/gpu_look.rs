//! One look at the GPUs of the host, for a report about threads: NVML is read while the threads are sampled.

use std::time::Duration;

use anyhow::Result;
use gpuprobe_analysis::{GpuStates, RecentXids, Snapshot};
use gpuprobe_discover::host_gpus;
use gpuprobe_event::{HostGpu, Tgid};

use super::gpu_state_poller::GpuStatePoller;
use super::kernel_log_xids::KernelLogXids;
use crate::cli::NvmlArgs;

/// How often NVML is read.
const READ_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct GpuLook {
    host: Vec<HostGpu>,
    /// `None` if NVML is not read.
    states: Option<GpuStatePoller>,
}

impl GpuLook {
    /// Starts to read what NVML says about these processes.
    pub(crate) fn start(args: &NvmlArgs, processes: &[Tgid]) -> Result<Self> {
        let states = GpuStatePoller::start(args, READ_EVERY, Some(processes.to_vec()), false)?;
        Ok(Self { states, ..Self::without_nvml(args) })
    }

    pub(crate) fn without_nvml(args: &NvmlArgs) -> Self {
        Self { host: host_gpus(&args.driver_folder), states: None }
    }

    /// The GPUs of the host.
    pub(crate) fn host(&self) -> &[HostGpu] {
        &self.host
    }

    /// What NVML said last.
    pub(crate) fn states(&self) -> GpuStates {
        let mut snapshot = Snapshot { gpus: self.host.clone(), ..Snapshot::default() };
        if let Some(states) = &self.states {
            states.add_quietly(&mut snapshot, false);
        }
        snapshot.gpu_states
    }

    /// What the kernel log says.
    pub(crate) fn recent_xids(&self) -> RecentXids {
        KernelLogXids::open().recent(&self.host)
    }
}
