//! GPU time by process and CUDA kernel, while executions were collected.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Execution, ExecutionKind, Tgid};
use serde::Serialize;

/// The GPU time of one CUDA kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelGpuTime {
    pub kernel: Arc<str>,
    pub executions: u64,
    pub total_ns: u64,
}

/// The GPU time of the CUDA kernels of one process, most time first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessGpuTime {
    pub pid: Tgid,
    pub kernels: Vec<KernelGpuTime>,
    /// Of kernels that are not listed.
    pub other_ns: u64,
}

/// Sums of one process.
#[derive(Debug, Default)]
pub(super) struct KernelTimes {
    /// Executions and nanoseconds.
    kernels: HashMap<Arc<str>, (u64, u64)>,
    other_ns: u64,
}

impl KernelTimes {
    /// The time of further kernels is summed up.
    const MOST: usize = 1024;

    pub(super) fn add(&mut self, execution: &Execution) {
        let ExecutionKind::Kernel { name, .. } = &execution.kind else { return };
        let ns = execution.duration_ns();
        match name {
            Some(name) if self.kernels.len() < Self::MOST || self.kernels.contains_key(name) => {
                let (executions, total_ns) = self.kernels.entry(Arc::clone(name)).or_default();
                *executions += 1;
                *total_ns = total_ns.saturating_add(ns);
            }
            _ => self.other_ns = self.other_ns.saturating_add(ns),
        }
    }

    /// `None` if it executed no kernels.
    pub(super) fn report(&self, pid: Tgid) -> Option<ProcessGpuTime> {
        let row = |(kernel, &(executions, total_ns)): (&Arc<str>, &(u64, u64))| KernelGpuTime {
            kernel: Arc::clone(kernel),
            executions,
            total_ns,
        };
        let mut kernels: Vec<_> = self.kernels.iter().map(row).collect();
        kernels.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.kernel.cmp(&b.kernel)));
        (!kernels.is_empty() || self.other_ns > 0).then_some(ProcessGpuTime {
            pid,
            kernels,
            other_ns: self.other_ns,
        })
    }
}
