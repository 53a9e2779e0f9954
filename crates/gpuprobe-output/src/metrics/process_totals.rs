//! What counters of a process are collected from.

use gpuprobe_analysis::snapshot::{Failure, FunctionCounts, MemoryCounts};
use gpuprobe_analysis::{GpuOps, ProcessSnapshot};

use super::process_series::BoundedLabels;

/// The counters of one process.
pub(super) struct ProcessTotals<'a> {
    pub(super) functions: &'a [FunctionCounts],
    pub(super) failures: &'a [Failure],
    /// `None` if it allocated and freed nothing.
    pub(super) memory: Option<&'a MemoryCounts>,
    pub(super) gpu_ops: &'a GpuOps,
    /// Whether tensors are accounted for.
    pub(super) has_tensors: bool,
    /// Kernels and commands with series; `None` for all.
    pub(super) bounded: Option<&'a BoundedLabels>,
}

impl<'a> ProcessTotals<'a> {
    pub(super) fn new(
        process: &'a ProcessSnapshot,
        has_tensors: bool,
        bounded: Option<&'a BoundedLabels>,
    ) -> Self {
        let memory = (!process.memory.live.is_empty()).then_some(&process.memory);
        let (functions, failures) = (&process.functions, &process.failures);
        Self { functions, failures, memory, gpu_ops: &process.gpu_ops, has_tensors, bounded }
    }
}
