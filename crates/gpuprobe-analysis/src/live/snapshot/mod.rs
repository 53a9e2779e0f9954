//! What the daemon shows: the kernel's counters with names to them, at one moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, FailureCounts, LaunchCounts, ProcessKey, ProcessMemory, WorkRows,
};
use gpuprobe_event::{Gpu, HostGpu, Losses, Tgid};
use serde::Serialize;

use super::exited::{Ended, PastProcesses};
pub use super::function_counts::{Failure, FunctionCounts};
use super::gpu_state::GpuStates;
use super::memory_counts::memory_counts;
pub use super::memory_counts::{GpuMemory, MemoryCounts, MemoryTotals};
pub use super::process_snapshot::{LiveAllocation, ProcessSnapshot};
use super::self_metrics::{OwnProcess, Served};
use crate::cost::budget::BudgetReport;
use crate::gpu_ops::launches::by_kernel;
use crate::gpu_ops::process_ops::Work;
use crate::leaks::live_memory::ProcessPlaces;
use crate::process_info::ProcessInfo;
use crate::stats::loss_counts::{LossCount, every_cause};

/// The probes on one library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LibraryProbes {
    /// The file.
    pub path: String,
    /// Functions with a probe.
    pub attached: u64,
    /// Functions that should have one and have not.
    pub skipped: u64,
    /// How it stands with it, in a word.
    pub state: String,
}

/// How many files are not probed for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedFiles {
    /// Why, in a word of a fixed set.
    pub reason: &'static str,
    /// Files that looked like CUDA libraries, each counted when it was found.
    pub files: u64,
}

/// What a snapshot is made of. Clocks are read by who fills this in.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Calls, a row per process and function.
    pub calls: &'a [CallCounts],
    /// Failures, a row per process, function and error.
    pub failures: &'a [FailureCounts],
    /// Memory, a row per process.
    pub memory: &'a [ProcessMemory],
    /// Memory, a row per context; where a process has none of these its memory is of no known GPU.
    pub contexts: &'a [ContextMemory],
    /// Live allocations; may be empty where nobody asked for them.
    pub allocations: &'a [Allocation],
    /// Launches, graphs, copies and gaps.
    pub work: &'a WorkRows,
    /// What is held from which place.
    pub places: &'a [ProcessPlaces],
    /// Names and ends of the processes that these rows are of.
    pub processes: &'a HashMap<ProcessKey, ProcessInfo>,
    /// Processes that ended, with rows of their own.
    pub ended: &'a Ended,
    /// The GPUs of the host.
    pub gpus: &'a [HostGpu],
    /// What was lost.
    pub losses: &'a Losses,
    /// How the probes stand.
    pub libraries: &'a [LibraryProbes],
    /// What could not be probed, every reason once.
    pub skipped: &'a [SkippedFiles],
    /// Now, in seconds since 1970.
    pub unix_seconds: f64,
}

/// Everything the daemon shows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    /// Processes by pid. Those that have ended are the same in every snapshot.
    pub processes: Vec<Arc<ProcessSnapshot>>,
    /// Sums of the processes that ended and are no longer among these, by name.
    pub past: Vec<Arc<PastProcesses>>,
    /// Memory of all processes.
    pub totals: MemoryTotals,
    /// The GPUs of the host.
    pub gpus: Vec<HostGpu>,
    /// How it stands with them.
    pub gpu_states: GpuStates,
    /// What processes hold, by place; only of those that run.
    pub places: Vec<ProcessPlaces>,
    /// What was lost, every cause once.
    pub losses: Vec<LossCount>,
    /// How the probes stand.
    pub libraries: Vec<LibraryProbes>,
    /// What could not be probed, every reason once.
    pub skipped: Vec<SkippedFiles>,
    /// What gpuprobe itself takes up, where somebody looked.
    pub own: Option<OwnProcess>,
    /// How it stands with the budget, where there is one.
    pub budget: Option<BudgetReport>,
    /// What the endpoint has answered so far.
    pub served: Served,
}

impl Inputs<'_> {
    /// The GPU that a number of a process means.
    fn gpu_of(&self, process: ProcessKey, number: Option<u8>) -> Option<Gpu> {
        let number = number?;
        Some(self.processes.get(&process).map_or(Gpu::OfProcess(number), |info| info.gpus.of(number)))
    }
}

impl Snapshot {
    /// Puts the kernel's counters and the names together.
    pub fn build(inputs: &Inputs<'_>) -> Self {
        let of_ended = |p: &Arc<ProcessSnapshot>| (p.key(), Arc::clone(p));
        let mut processes: BTreeMap<_, _> = inputs.ended.iter().map(of_ended).collect();
        let mut totals = inputs.ended.totals();
        for counts in inputs.calls.iter().chain(&inputs.work.calls) {
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
                Some(_) => totals.add_ended(memory),
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
        add_work(&mut processes, inputs);
        let mut processes: Vec<Arc<ProcessSnapshot>> = processes.into_values().collect();
        // those that are shared are in order already
        for process in processes.iter_mut().filter_map(Arc::get_mut) {
            process.sort();
        }
        Self {
            unix_seconds: inputs.unix_seconds,
            processes,
            past: inputs.ended.past().cloned().collect(),
            totals,
            gpus: inputs.gpus.to_vec(),
            gpu_states: GpuStates::default(),
            places: inputs.places.to_vec(),
            losses: every_cause(inputs.losses),
            libraries: inputs.libraries.to_vec(),
            skipped: inputs.skipped.to_vec(),
            own: None,
            budget: None,
            served: Served::default(),
        }
    }

    /// The one program that runs under a pid.
    pub fn running(&self, pid: Tgid) -> Option<&ProcessSnapshot> {
        let from = self.processes.partition_point(|process| process.pid < pid);
        let mut all = self.processes.iter().skip(from).take_while(|process| process.pid == pid);
        all.find(|process| process.exited_at_ns.is_none()).map(AsRef::as_ref)
    }
}

/// Puts rows about work to their processes.
fn add_work(processes: &mut BTreeMap<ProcessKey, Arc<ProcessSnapshot>>, inputs: &Inputs<'_>) {
    let mut add = |key: ProcessKey, add: &dyn Fn(&mut Work)| {
        if let Some(process) = entry(processes, inputs, key) {
            add(&mut process.work);
        }
    };
    let WorkRows { launches, graphs, copies, gaps, calls: _, commands: _, unified: _ } = inputs.work;
    let mut launched: BTreeMap<ProcessKey, Vec<&LaunchCounts>> = BTreeMap::new();
    launches.iter().for_each(|row| launched.entry(row.process).or_default().push(row));
    for (process, rows) in launched {
        add(process, &|work| work.kernels.extend(by_kernel(rows.iter().copied())));
    }
    graphs.iter().for_each(|row| add(row.process, &|work| work.graphs.add_row(row)));
    copies.iter().for_each(|row| add(row.process, &|work| work.copies.push(row.totals.clone())));
    gaps.iter().for_each(|row| add(row.process, &|work| work.gaps.add_row(row)));
}

/// The process's row, made at its first use. Rows may be read before it is known whose they are: a name that a series has
/// for a moment would be another series, so the next snapshot has them. One that ended is shown until its rows are taken
/// out of the kernel, however short the time it is kept for, so that it is always there or in the sums.
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
