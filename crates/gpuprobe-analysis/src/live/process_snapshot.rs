//! One process at one moment.

use gpuprobe_event::counters::{CallCounts, ProcessKey, ProcessMemory};
use gpuprobe_event::{Container, Gpu, SiteId, Space, Tgid};
use serde::Serialize;

use super::function_counts::{Failure, FunctionCounts};
use super::memory_counts::{MemoryCounts, memory_counts};
use crate::gpu_ops::process_ops::GpuOps;
use crate::process_info::ProcessInfo;

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LiveAllocation {
    pub ptr: u64,
    pub bytes: u64,
    pub kind: Space,
    pub gpu: Option<Gpu>,
    /// When it was made, on the monotonic clock.
    pub since_ns: u64,
    /// The call site that made it.
    pub site: SiteId,
}

/// One run of one program in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSnapshot {
    pub pid: Tgid,
    /// Distinguishes runs that share a pid.
    pub instance: u64,
    pub name: String,
    /// The pid in its own namespace, if that is a different one.
    pub ns_pid: Option<Tgid>,
    pub container: Option<Container>,
    /// Its user, if that could be read.
    pub uid: Option<u32>,
    /// `None` if it is running.
    pub exited_at_ns: Option<u64>,
    /// Sorted by API and name.
    pub functions: Vec<FunctionCounts>,
    /// Sorted by function and error.
    pub failures: Vec<Failure>,
    pub memory: MemoryCounts,
    /// Time in open calls of APIs that do the work that `functions` does not have yet.
    pub open_ns: u64,
    /// GPU operations.
    pub gpu_ops: GpuOps,
    /// Live allocations by address; empty if they were not read.
    pub allocations: Vec<LiveAllocation>,
}

impl ProcessSnapshot {
    /// A process with these table rows.
    pub fn new(
        key: ProcessKey,
        info: &ProcessInfo,
        calls: &[CallCounts],
        memory: Option<&ProcessMemory>,
    ) -> Self {
        let mut process = Self {
            pid: key.tgid,
            instance: key.instance,
            name: info.name.clone(),
            ns_pid: info.ns_pid,
            container: info.container.clone(),
            uid: info.uid,
            exited_at_ns: info.exited_at_ns,
            functions: Vec::with_capacity(calls.len()),
            failures: Vec::new(),
            memory: memory.map(memory_counts).unwrap_or_default(),
            open_ns: 0,
            gpu_ops: GpuOps {
                launched: info.launched.series().clone(),
                graph_kernels: info.graph_kernels.series().clone(),
                requests: info.requests.series().clone(),
                ..GpuOps::default()
            },
            allocations: Vec::new(),
        };
        calls.iter().for_each(|counts| process.add_calls(counts));
        process.sort();
        process
    }

    /// Whether this process shares its metric series with another of this pid.
    pub fn is_labelled(&self, pid: Tgid, info: &ProcessInfo) -> bool {
        (self.pid, &self.name, &self.container) == (pid, &info.name, &info.container)
    }

    /// Whether this process shares its metric series with the other.
    pub(crate) fn has_labels_of(&self, other: &Self) -> bool {
        (self.pid, &self.name, &self.container) == (other.pid, &other.name, &other.container)
    }

    pub(super) fn key(&self) -> ProcessKey {
        ProcessKey { tgid: self.pid, instance: self.instance }
    }

    pub(super) fn sort(&mut self) {
        self.memory.tidy();
        self.gpu_ops.tidy();
        self.functions.sort_unstable_by_key(|f| (f.api, f.function));
        self.allocations.sort_unstable_by_key(|a| a.ptr);
    }

    /// Adds a row. Rows of several signatures with the same name are summed, because users know them as one function.
    pub(super) fn add_calls(&mut self, counts: &CallCounts) {
        let more = FunctionCounts::from(counts);
        match self.functions.iter_mut().find(|f| f.is_same(&more)) {
            Some(sum) => sum.add(&more),
            None => self.functions.push(more),
        }
    }
}
