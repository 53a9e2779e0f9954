//! What the daemon shows: the kernel's counters with names to them, at one moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, FailureCounts, Held, LaunchCounts, ProcessKey, ProcessMemory,
    WorkRows,
};
use gpuprobe_event::{Container, Gpu, GpuNumbers, HostGpu, Losses, SiteId, Space, Tgid};
use serde::Serialize;

use crate::budget::BudgetReport;
use crate::command_series::Asked;
use crate::ended::{Ended, PastProcesses};
pub use crate::function_counts::{Failure, FunctionCounts};
use crate::gpu_state::GpuStates;
use crate::holdings::ProcessPlaces;
use crate::kernel_series::Launched;
use crate::launches::by_kernel;
use crate::losses::{LossCount, every_cause};
use crate::own::{OwnProcess, Served};
use crate::work::Work;

/// How long a process is shown after its end if nobody says otherwise, so that the last scrape sees its counters.
pub const KEPT_AFTER_EXIT_NS: u64 = 5 * 60 * 1_000_000_000;

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

/// Live memory of one kind on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KindHeld {
    /// The GPU; `None` where it is not known.
    pub gpu: Option<Gpu>,
    /// The kind.
    pub kind: Space,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Allocations live now.
    pub live_allocations: u64,
}

/// What one process did to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryCounts {
    /// By GPU and kind, every kind once for each GPU; empty where the process did nothing to memory.
    pub held: Vec<KindHeld>,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Bytes ever freed by a call.
    pub freed_bytes: u64,
    /// Successful frees of unknown addresses.
    pub unknown_frees: u64,
    /// Addresses allocated again while still live: a free was missed.
    pub replaced: u64,
    /// Allocations that ended with the context they were made in.
    pub ended_allocations: u64,
    /// Their bytes.
    pub ended_bytes: u64,
    /// The most that was live at once.
    pub peak_bytes: u64,
}

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

/// Allocations and frees of all processes, also of those that are no longer shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryTotals {
    /// Allocations that succeeded.
    pub allocations: u64,
    /// Allocations that failed.
    pub failed_allocations: u64,
    /// Frees that succeeded, those of unknown addresses too.
    pub frees: u64,
    /// Frees that failed.
    pub failed_frees: u64,
    /// Of the frees that succeeded, those of addresses whose allocation was not seen.
    pub unknown_frees: u64,
    /// Addresses allocated again while still live: a free was missed.
    pub replaced: u64,
    /// Allocations live now.
    pub live_allocations: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Allocations that nobody freed and that are gone all the same: with their context, or with their process.
    pub ended_allocations: u64,
    /// Their bytes.
    pub ended_bytes: u64,
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

impl MemoryTotals {
    /// Adds what one process did that runs.
    pub fn add(&mut self, memory: &ProcessMemory) {
        self.add_counts(memory);
        let held = memory.held_in_all();
        self.live_allocations += held.live_allocations;
        self.live_bytes = self.live_bytes.saturating_add(held.live_bytes);
    }

    /// Adds what one process did that has ended, and its memory with it.
    pub fn add_ended(&mut self, memory: &ProcessMemory) {
        self.add_counts(memory);
        let held = memory.held_in_all();
        self.ended_allocations += held.live_allocations;
        self.ended_bytes = self.ended_bytes.saturating_add(held.live_bytes);
    }

    fn add_counts(&mut self, memory: &ProcessMemory) {
        self.allocations += memory.allocations;
        self.failed_allocations += memory.failed_allocations;
        self.frees += memory.frees + memory.unknown_frees;
        self.failed_frees += memory.failed_frees;
        self.unknown_frees += memory.unknown_frees;
        self.replaced += memory.replaced;
        self.ended_allocations += memory.ended_allocations;
        self.ended_bytes = self.ended_bytes.saturating_add(memory.ended_bytes);
    }
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

    fn key(&self) -> ProcessKey {
        ProcessKey { tgid: self.pid, instance: self.instance }
    }

    fn sort(&mut self) {
        self.memory.tidy();
        self.work.tidy();
        self.functions.sort_unstable_by_key(|f| (f.api, f.function));
        self.allocations.sort_unstable_by_key(|a| a.ptr);
    }

    /// Adds a row. Signatures of one name are one function to people, so their rows are summed.
    fn add_calls(&mut self, counts: &CallCounts) {
        let more = FunctionCounts::from(counts);
        match self.functions.iter_mut().find(|f| f.is_same(&more)) {
            Some(sum) => sum.add(&more),
            None => self.functions.push(more),
        }
    }
}

impl MemoryCounts {
    /// Moves what is held in a context from no known GPU to the context's.
    fn add_context(&mut self, gpu: Gpu, context: &ContextMemory) {
        for more in kinds(Some(gpu), &context.held) {
            // the two are read one after the other, so what is moved may be more than there is
            let unknown = self.held.iter_mut().find(|held| held.gpu.is_none() && held.kind == more.kind);
            if let Some(unknown) = unknown {
                unknown.live_bytes = unknown.live_bytes.saturating_sub(more.live_bytes);
                unknown.live_allocations = unknown.live_allocations.saturating_sub(more.live_allocations);
            }
            match self.held.iter_mut().find(|held| held.gpu == Some(gpu) && held.kind == more.kind) {
                Some(held) => {
                    held.live_bytes += more.live_bytes;
                    held.live_allocations += more.live_allocations;
                }
                None => self.held.push(more),
            }
        }
    }

    /// Leaves out memory of no known GPU where there is none.
    fn tidy(&mut self) {
        let is_held = |held: &KindHeld| held.gpu.is_none() && held.live_allocations > 0;
        if self.held.iter().any(|held| held.gpu.is_some()) && !self.held.iter().any(is_held) {
            self.held.retain(|held| held.gpu.is_some());
        }
        self.held.sort_unstable_by_key(|held| (held.gpu.is_none(), held.gpu, held.kind));
    }

    /// Adds what another process did; what it holds is its own.
    pub(crate) fn add(&mut self, more: &Self) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(more.allocated_bytes);
        self.freed_bytes = self.freed_bytes.saturating_add(more.freed_bytes);
        self.unknown_frees += more.unknown_frees;
        self.replaced += more.replaced;
        self.ended_allocations += more.ended_allocations;
        self.ended_bytes = self.ended_bytes.saturating_add(more.ended_bytes);
    }
}

fn memory_counts(memory: &ProcessMemory) -> MemoryCounts {
    MemoryCounts {
        held: kinds(None, &memory.held).collect(),
        allocated_bytes: memory.allocated_bytes,
        freed_bytes: memory.freed_bytes,
        unknown_frees: memory.unknown_frees,
        replaced: memory.replaced,
        ended_allocations: memory.ended_allocations,
        ended_bytes: memory.ended_bytes,
        peak_bytes: memory.peak_bytes,
    }
}

/// What is held on one GPU, by kind.
fn kinds(gpu: Option<Gpu>, held: &[Held; Space::ALL.len()]) -> impl Iterator<Item = KindHeld> {
    Space::ALL.into_iter().zip(held).map(move |(kind, held)| KindHeld {
        gpu,
        kind,
        live_bytes: held.live_bytes,
        live_allocations: held.live_allocations,
    })
}

#[cfg(test)]
mod tests;
