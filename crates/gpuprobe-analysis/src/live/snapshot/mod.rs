//! The snapshot that the daemon serves: the counters of the BPF side with names, at one moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, FailureCounts, GpuOpRows, GraphKernelCounts, LaunchCounts,
    ProcessKey, ProcessMemory,
};
use gpuprobe_event::{Gpu, HostGpu, Losses, Tgid};
use serde::Serialize;

use super::exited::{ExitedProcesses, PastProcesses};
pub use super::function_counts::{Failure, FunctionCounts};
use super::gpu_state::GpuStates;
use super::memory_counts::memory_counts;
pub use super::memory_counts::{GpuMemory, MemoryCounts, MemoryTotals};
use super::pending_calls::OldestCall;
pub use super::process_snapshot::{LiveAllocation, ProcessSnapshot};
use super::self_metrics::{Pushed, Recordings, SelfMetrics, Served};
use crate::cost::budget::BudgetReport;
use crate::executions::{GpuKernelTime, ProcessGpuTime};
use crate::gpu_ops::launches::by_kernel;
use crate::gpu_ops::process_ops::GpuOps;
use crate::leaks::live_memory::ProcessCallSites;
use crate::leaks::live_tensors::ProcessTensors;
use crate::process_info::ProcessInfo;
use crate::stats::loss_counts::{LossCount, every_cause};

/// The probes on one library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LibraryProbes {
    pub path: String,
    /// Functions with a probe.
    pub attached: u64,
    /// Functions that could not be probed.
    pub skipped: u64,
    /// A word for the state of the library.
    pub state: String,
}

/// Files that are not probed for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedFiles {
    /// One of a fixed set of words.
    pub reason: &'static str,
    /// Files that look like CUDA libraries, each counted when it is found.
    pub files: u64,
}

/// The input of a snapshot. The caller reads the clocks.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Calls, one row per process and function.
    pub calls: &'a [CallCounts],
    /// Failures, one row per process, function and error.
    pub failures: &'a [FailureCounts],
    /// Memory, one row per process.
    pub memory: &'a [ProcessMemory],
    /// Memory, one row per context. The GPU of memory outside of these rows is not known.
    pub contexts: &'a [ContextMemory],
    /// Live allocations; empty if they were not requested.
    pub allocations: &'a [Allocation],
    /// Rows of GPU operations: launches, graphs, copies and gaps.
    pub gpu_ops: &'a GpuOpRows,
    /// Live memory by call site.
    pub call_sites: &'a [ProcessCallSites],
    /// The processes of the rows above.
    pub processes: &'a HashMap<ProcessKey, ProcessInfo>,
    /// Exited processes whose rows are no longer in the tables.
    pub exited: &'a ExitedProcesses,
    pub gpus: &'a [HostGpu],
    pub losses: &'a Losses,
    pub libraries: &'a [LibraryProbes],
    /// Every reason once.
    pub skipped: &'a [SkippedFiles],
    /// The time in seconds since 1970.
    pub unix_seconds: f64,
}

/// Everything that the daemon serves at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// The time in seconds since 1970.
    pub unix_seconds: f64,
    /// Sorted by pid. Exited processes are shared between snapshots.
    pub processes: Vec<Arc<ProcessSnapshot>>,
    /// Sums by name over exited processes that are no longer listed individually.
    pub past: Vec<Arc<PastProcesses>>,
    /// Processes that were moved to the sums since the snapshot before, with their last counters.
    #[serde(skip)]
    pub summed_up: Vec<Arc<ProcessSnapshot>>,
    pub totals: MemoryTotals,
    pub gpus: Vec<HostGpu>,
    pub gpu_states: GpuStates,
    /// Live memory of running processes by call site.
    pub call_sites: Vec<ProcessCallSites>,
    /// Tensors of running processes; empty if they are not accounted for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<ProcessTensors>,
    /// Whether they are accounted for.
    #[serde(skip)]
    pub has_tensors: bool,
    /// GPU time by GPU, while executions were collected; empty if that was not requested.
    #[serde(skip)]
    pub gpu_kernel_time: Vec<(Gpu, GpuKernelTime)>,
    /// GPU time of the CUDA kernels of each process, collected in the same time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_times: Vec<ProcessGpuTime>,
    /// The oldest pending call of each process that has one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<OldestCall>,
    /// Every cause once.
    pub losses: Vec<LossCount>,
    pub libraries: Vec<LibraryProbes>,
    /// Every reason once.
    pub skipped: Vec<SkippedFiles>,
    /// The resources of gpuprobe itself, if they were read.
    pub self_metrics: Option<SelfMetrics>,
    /// `None` if there is no budget.
    pub budget: Option<BudgetReport>,
    pub served: Served,
    /// `None` if nothing is pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pushed: Option<Pushed>,
    /// `None` if nothing is recorded on demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recordings: Option<Recordings>,
}

impl Inputs<'_> {
    /// The host's GPU for a GPU number of a process.
    fn gpu_of(&self, process: ProcessKey, number: Option<u8>) -> Option<Gpu> {
        let number = number?;
        Some(self.processes.get(&process).map_or(Gpu::OfProcess(number), |info| info.gpus.of(number)))
    }
}

impl Snapshot {
    /// Combines the rows of the BPF side with the names of processes.
    pub fn build(inputs: &Inputs<'_>) -> Self {
        let exited = |p: &Arc<ProcessSnapshot>| (p.key(), Arc::clone(p));
        let mut processes: BTreeMap<_, _> = inputs.exited.iter().map(exited).collect();
        let mut totals = inputs.exited.totals();
        for counts in inputs.calls.iter().chain(&inputs.gpu_ops.calls) {
            let Some(process) = entry(&mut processes, inputs, counts.process) else { continue };
            process.add_calls(counts);
        }
        for counts in inputs.failures {
            let Some(process) = entry(&mut processes, inputs, counts.process) else { continue };
            Failure::from(counts).add_to(&mut process.failures);
        }
        for memory in inputs.memory {
            let Some(info) = inputs.processes.get(&memory.process) else { continue };
            match info.exited_at_ns {
                None => totals.add(memory),
                Some(_) => totals.add_exited(memory),
            }
            let Some(process) = entry(&mut processes, inputs, memory.process) else { continue };
            process.memory = memory_counts(memory);
        }
        for context in inputs.contexts {
            let known = processes.get_mut(&context.process).map(Arc::make_mut);
            if let (Some(process), Some(gpu)) = (known, inputs.gpu_of(context.process, context.gpu)) {
                process.memory.add_context(gpu, context);
            }
        }
        for &Allocation { process: key, ptr, bytes, space, gpu, since_ns, site } in inputs.allocations {
            let Some(process) = entry(&mut processes, inputs, key) else { continue };
            let gpu = inputs.gpu_of(key, gpu);
            process.allocations.push(LiveAllocation { ptr, bytes, kind: space, gpu, since_ns, site });
        }
        add_gpu_ops(&mut processes, inputs);
        let mut processes: Vec<Arc<ProcessSnapshot>> = processes.into_values().collect();
        // shared ones are already sorted
        for process in processes.iter_mut().filter_map(Arc::get_mut) {
            process.sort();
        }
        Self {
            unix_seconds: inputs.unix_seconds,
            processes,
            past: inputs.exited.past().cloned().collect(),
            summed_up: Vec::new(),
            totals,
            gpus: inputs.gpus.to_vec(),
            gpu_states: GpuStates::default(),
            call_sites: inputs.call_sites.to_vec(),
            tensors: Vec::new(),
            has_tensors: false,
            gpu_kernel_time: Vec::new(),
            gpu_times: Vec::new(),
            pending: Vec::new(),
            losses: every_cause(inputs.losses),
            libraries: inputs.libraries.to_vec(),
            skipped: inputs.skipped.to_vec(),
            self_metrics: None,
            budget: None,
            served: Served::default(),
            pushed: None,
            recordings: None,
        }
    }

    /// The running process with this pid.
    pub fn running(&self, pid: Tgid) -> Option<&ProcessSnapshot> {
        let from = self.processes.partition_point(|process| process.pid < pid);
        let mut all = self.processes.iter().skip(from).take_while(|process| process.pid == pid);
        all.find(|process| process.exited_at_ns.is_none()).map(AsRef::as_ref)
    }

    /// Sets the time in open calls of running processes. `counted` has their time in calls of the CUDA driver up to the
    /// snapshot before. It never decreases: open calls may be known late, or no longer when they have just returned, and
    /// what was counted of them is not counted again.
    pub fn set_open_times(
        &mut self,
        open: &HashMap<ProcessKey, u64>,
        counted: &mut HashMap<ProcessKey, u64>,
    ) {
        let before = std::mem::take(counted);
        for process in self.processes.iter_mut().filter(|process| process.exited_at_ns.is_none()) {
            let key = process.key();
            let of = |times: &HashMap<ProcessKey, u64>| times.get(&key).copied().unwrap_or(0);
            let functions = process.functions.iter().filter(|function| function.api.does_work());
            let returned = functions.fold(0_u64, |sum, function| sum.saturating_add(function.total_ns));
            let total = returned.saturating_add(of(open)).max(of(&before));
            if total > returned {
                Arc::make_mut(process).open_ns = total - returned;
            }
            counted.insert(key, total);
        }
    }
}

/// Adds the rows of GPU operations to their processes.
fn add_gpu_ops(processes: &mut BTreeMap<ProcessKey, Arc<ProcessSnapshot>>, inputs: &Inputs<'_>) {
    let mut add = |key: ProcessKey, add: &dyn Fn(&mut GpuOps)| {
        if let Some(process) = entry(processes, inputs, key) {
            add(&mut process.gpu_ops);
        }
    };
    let GpuOpRows { launches, graphs, graph_kernels, copies, gaps, calls: _, commands: _, unified: _ } =
        inputs.gpu_ops;
    let mut launched: BTreeMap<ProcessKey, (Vec<&LaunchCounts>, Vec<&GraphKernelCounts>)> = BTreeMap::new();
    launches.iter().for_each(|row| launched.entry(row.process).or_default().0.push(row));
    graph_kernels.iter().for_each(|row| launched.entry(row.process).or_default().1.push(row));
    for (process, (rows, in_graphs)) in launched {
        let kernels = || by_kernel(rows.iter().copied(), in_graphs.iter().copied());
        add(process, &|gpu_ops| gpu_ops.kernels.extend(kernels()));
    }
    graphs.iter().for_each(|row| add(row.process, &|gpu_ops| gpu_ops.graphs.add_row(row)));
    copies.iter().for_each(|row| add(row.process, &|gpu_ops| gpu_ops.copies.push(row.totals.clone())));
    gaps.iter().for_each(|row| add(row.process, &|gpu_ops| gpu_ops.gaps.add_row(row)));
}

/// The entry of a process, created at its first use. `None` if the process is not known yet: a series with a
/// temporary name would be a separate series, so the rows are left to the next snapshot. An exited process is shown
/// until its rows are removed from the tables, even if the retention time is shorter, so that it is always either
/// listed or in the sums.
fn entry<'a>(
    processes: &'a mut BTreeMap<ProcessKey, Arc<ProcessSnapshot>>,
    inputs: &Inputs<'_>,
    key: ProcessKey,
) -> Option<&'a mut ProcessSnapshot> {
    let info = inputs.processes.get(&key)?;
    let process =
        processes.entry(key).or_insert_with(|| Arc::new(ProcessSnapshot::new(key, info, &[], None)));
    Some(Arc::make_mut(process))
}

#[cfg(test)]
mod tests;
