//! One process at one moment.

use gpuprobe_event::counters::{CallCounts, ProcessKey, ProcessMemory};
use gpuprobe_event::{Container, Gpu, SiteId, Space, Tgid};
use serde::Serialize;

use super::function_counts::{Failure, FunctionCounts};
use super::memory_counts::{MemoryCounts, memory_counts};
use crate::gpu_ops::process_ops::Work;
use crate::process_info::ProcessInfo;

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LiveAllocation {
    /// Its address.
    pub ptr: u64,
    /// Its size.
    pub bytes: u64,
    /// Kind of memory.
    pub kind: Space,
    /// The GPU.
    pub gpu: Option<Gpu>,
    /// When it was made, on the kernel's monotonic clock.
    pub since_ns: u64,
    /// Where it was made.
    pub site: SiteId,
}

/// One run of one program in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSnapshot {
    /// Its pid.
    pub pid: Tgid,
    /// Tells runs apart that share a pid.
    pub instance: u64,
    /// Its name.
    pub name: String,
    /// Its pid as it sees it itself, where that is another.
    pub ns_pid: Option<Tgid>,
    /// The container it is in.
    pub container: Option<Container>,
    /// When it ended, if it did.
    pub exited_at_ns: Option<u64>,
    /// By function, sorted by family and name.
    pub functions: Vec<FunctionCounts>,
    /// In which ways they failed, by function and error.
    pub failures: Vec<Failure>,
    /// Memory.
    pub memory: MemoryCounts,
    /// Launches and copies.
    pub work: Work,
    /// Live allocations by address; empty where they were not read.
    pub allocations: Vec<LiveAllocation>,
}

impl ProcessSnapshot {
    /// A process with these rows.
    pub(crate) fn new(
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
            exited_at_ns: info.exited_at_ns,
            functions: Vec::with_capacity(calls.len()),
            failures: Vec::new(),
            memory: memory.map(memory_counts).unwrap_or_default(),
            work: Work {
                launched: info.launched.series().clone(),
                asked: info.asked.series().clone(),
                ..Work::default()
            },
            allocations: Vec::new(),
        };
        calls.iter().for_each(|counts| process.add_calls(counts));
        process.sort();
        process
    }

    /// Whether the series of this process are those of another with this pid.
    pub fn is_labelled(&self, pid: Tgid, info: &ProcessInfo) -> bool {
        (self.pid, &self.name, &self.container) == (pid, &info.name, &info.container)
    }

    /// Whether the series of this process are those of the other.
    pub(crate) fn has_labels_of(&self, other: &Self) -> bool {
        (self.pid, &self.name, &self.container) == (other.pid, &other.name, &other.container)
    }

    pub(super) fn key(&self) -> ProcessKey {
        ProcessKey { tgid: self.pid, instance: self.instance }
    }

    pub(super) fn sort(&mut self) {
        self.memory.tidy();
        self.work.tidy();
        self.functions.sort_unstable_by_key(|f| (f.api, f.function));
        self.allocations.sort_unstable_by_key(|a| a.ptr);
    }

    /// Adds a row. Signatures of one name are one function to people, so their rows are summed.
    pub(super) fn add_calls(&mut self, counts: &CallCounts) {
        let more = FunctionCounts::from(counts);
        match self.functions.iter_mut().find(|f| f.is_same(&more)) {
            Some(sum) => sum.add(&more),
            None => self.functions.push(more),
        }
    }
}
