//! What a live view reads: the part of a snapshot's JSON that it shows, from this process or from a daemon. A field that a
//! daemon of another version does not have gets its default.

use std::collections::BTreeMap;

use gpuprobe_event::{Api, Class};
use serde::Deserialize;

/// One reading of a host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reading {
    pub unix_seconds: f64,
    pub processes: Vec<ProcessReading>,
    pub gpu_states: GpuStatesReading,
    pub call_sites: Vec<ProcessCallSitesReading>,
    pub gpu_times: Vec<GpuTimeReading>,
    pub pending: Vec<PendingReading>,
    pub losses: Vec<LossReading>,
    pub budget: Option<BudgetReading>,
    pub self_metrics: Option<SelfReading>,
}

/// The GPU time of the CUDA kernels of a process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuTimeReading {
    pub pid: u32,
    pub kernels: Vec<KernelGpuTimeReading>,
    pub other_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct KernelGpuTimeReading {
    pub kernel: String,
    pub executions: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ProcessReading {
    pub pid: u32,
    pub instance: u64,
    pub name: String,
    pub uid: Option<u32>,
    pub container: Option<ContainerReading>,
    pub exited_at_ns: Option<u64>,
    pub functions: Vec<FunctionReading>,
    pub failures: Vec<FailureReading>,
    pub memory: MemoryReading,
    /// Time since the beginning of its open calls.
    pub open_ns: u64,
    pub gpu_ops: GpuOpsReading,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct ContainerReading {
    pub id: String,
    pub pod: Option<PodReading>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct PodReading {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FunctionReading {
    pub api: String,
    pub function: String,
    pub class: String,
    pub calls: u64,
    pub errors: u64,
    pub total_ns: u64,
    pub latency: Vec<u64>,
}

impl FunctionReading {
    /// Whether it is of an API that does the work, such as the CUDA driver.
    fn does_work(&self) -> bool {
        Api::from_name(&self.api).is_some_and(Api::does_work)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FailureReading {
    pub function: String,
    pub error: String,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct MemoryReading {
    pub live: Vec<LiveReading>,
    pub peak_bytes: u64,
}

/// Live memory of one kind on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LiveReading {
    pub gpu: Option<GpuNumberReading>,
    pub kind: String,
    pub allocations: u64,
    pub bytes: u64,
}

/// The number of a GPU, of the host or of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuNumberReading {
    Host(u8),
    OfProcess(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuOpsReading {
    pub kernels: Vec<KernelReading>,
    pub graphs: GraphsReading,
    pub copies: Vec<CopyReading>,
    pub gaps: GapsReading,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct KernelReading {
    pub kernel: String,
    pub streams: u64,
    pub in_graphs: u64,
    pub launches: u64,
    pub errors: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GraphsReading {
    pub launches: u64,
    pub errors: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CopyReading {
    pub direction: String,
    pub is_async: bool,
    pub host: String,
    pub copies: u64,
    pub errors: u64,
    pub bytes: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GapsReading {
    pub streams: u64,
    pub after_sync: GapTotalsReading,
    pub after_launch: GapTotalsReading,
    pub longest: Vec<GapReading>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GapTotalsReading {
    pub gaps: u64,
    pub total_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GapReading {
    pub ns: u64,
    pub stream: u64,
    pub meanwhile: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuStatesReading {
    pub is_up: Option<bool>,
    pub gpus: Vec<GpuReading>,
    pub users: Vec<GpuUserReading>,
    pub xids: Vec<XidReading>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuReading {
    pub gpu: u8,
    pub state: GpuStateReading,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuStateReading {
    pub id: GpuIdReading,
    pub busy_percent: Option<u32>,
    pub memory_busy_percent: Option<u32>,
    pub memory: Option<GpuMemoryReading>,
    pub celsius: Option<u32>,
    pub power_mw: Option<u32>,
    pub power_limit_mw: Option<u32>,
    /// Graphics, multiprocessors, memory, video.
    pub clocks_mhz: Vec<Option<u32>>,
    pub throttled: Option<u64>,
    pub pcie_rx_bytes_per_second: Option<u64>,
    pub pcie_tx_bytes_per_second: Option<u64>,
    pub activity: Option<ActivityReading>,
}

/// What the parts of a GPU did, by their names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ActivityReading {
    pub shares: BTreeMap<String, f64>,
    pub bytes_per_second: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuIdReading {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuMemoryReading {
    pub used_bytes: u64,
    pub total_bytes: u64,
}

/// One process on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuUserReading {
    pub gpu: u8,
    pub pid: u32,
    pub name: String,
    pub memory_bytes: Option<u64>,
    /// Multiprocessors, memory, encoder, decoder.
    pub busy_percent: Option<Vec<u32>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct XidReading {
    pub gpu: u8,
    pub xid: u64,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ProcessCallSitesReading {
    pub pid: u32,
    pub name: String,
    pub has_exited: bool,
    pub call_sites: Vec<CallSiteReading>,
    pub other: TotalReading,
    pub other_sites: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TotalReading {
    pub count: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CallSiteReading {
    pub name: String,
    pub live: TotalReading,
    pub judgement: JudgementReading,
    pub curve: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JudgementReading {
    pub verdict: String,
    pub growth: GrowthReading,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GrowthReading {
    pub over_ns: u64,
    pub bytes: u64,
}

/// The oldest pending call of a process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PendingReading {
    pub pid: u32,
    pub name: String,
    pub function: String,
    pub age_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LossReading {
    pub cause: String,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BudgetReading {
    pub share: Option<f64>,
    pub sampled: Vec<SampledReading>,
    pub processes: Vec<ProcessCostReading>,
}

/// A function whose figures are estimates.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SampledReading {
    pub function: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ProcessCostReading {
    pub pid: u32,
    pub instance: u64,
    pub share: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SelfReading {
    pub cpu_ns: u64,
    pub resident_bytes: u64,
}

impl ProcessReading {
    pub(super) fn key(&self) -> (u32, u64) {
        (self.pid, self.instance)
    }

    /// Live memory on GPUs and on the host.
    pub(super) fn live_bytes(&self) -> u64 {
        self.memory.live.iter().fold(0, |sum, live| sum.saturating_add(live.bytes))
    }

    /// CUDA kernels launched by calls, and launches of graphs.
    pub(super) fn launches(&self) -> u64 {
        let kernels = self.gpu_ops.kernels.iter();
        kernels.fold(self.gpu_ops.graphs.launches, |sum, kernel| sum.saturating_add(kernel.launches))
    }

    pub(super) fn copies(&self) -> u64 {
        self.gpu_ops.copies.iter().fold(0, |sum, copies| sum.saturating_add(copies.copies))
    }

    pub(super) fn copied_bytes(&self) -> u64 {
        self.gpu_ops.copies.iter().fold(0, |sum, copies| sum.saturating_add(copies.bytes))
    }

    /// Time inside calls of the APIs that do the work, such as the CUDA driver, of all threads together. Calls of other libraries
    /// contain these calls, which would be counted twice.
    pub(super) fn call_ns(&self) -> u64 {
        let functions = self.functions.iter().filter(|function| function.does_work());
        functions.fold(self.open_ns, |sum, function| sum.saturating_add(function.total_ns))
    }

    /// Calls that failed, including those of the runtime that did not reach the CUDA driver.
    pub(super) fn errors(&self) -> u64 {
        self.failures.iter().fold(0, |sum, failure| sum.saturating_add(failure.count))
    }

    /// The host's numbers of the GPUs with live memory.
    pub(super) fn gpus(&self) -> impl Iterator<Item = u8> {
        self.memory.live.iter().filter(|live| live.bytes > 0).filter_map(|live| match live.gpu {
            Some(GpuNumberReading::Host(gpu)) => Some(gpu),
            _ => None,
        })
    }
}

/// Which figures of a process are estimates, because their functions were sampled to stay within the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimates {
    pub(super) launches: bool,
    pub(super) copies: bool,
    /// Time in calls.
    pub(super) calls: bool,
    pub(super) errors: bool,
}

impl Reading {
    /// Whether figures of a function are estimates, because it was sampled to stay within the budget.
    pub(super) fn is_estimated(&self, function: &str) -> bool {
        let sampled = self.budget.iter().flat_map(|budget| &budget.sampled);
        sampled.into_iter().any(|sampled| sampled.function == function)
    }

    /// Which figures of a process are estimates.
    pub(super) fn estimates(&self, process: &ProcessReading) -> Estimates {
        if self.budget.as_ref().is_none_or(|budget| budget.sampled.is_empty()) {
            return Estimates::default();
        }
        let of_classes = |classes: &[Class]| {
            let is_of_classes =
                |function: &FunctionReading| classes.iter().any(|class| class.as_str() == function.class);
            process.functions.iter().any(|f| is_of_classes(f) && self.is_estimated(&f.function))
        };
        Estimates {
            launches: of_classes(&[Class::Launch, Class::GraphLaunch]),
            copies: of_classes(&[Class::Memcpy, Class::Memset]),
            calls: process.functions.iter().any(|f| f.does_work() && self.is_estimated(&f.function)),
            errors: process.failures.iter().any(|failure| self.is_estimated(&failure.function)),
        }
    }

    /// The oldest pending call of a process.
    pub(super) fn pending_of(&self, process: &ProcessReading) -> Option<&PendingReading> {
        let is_it = |pending: &&PendingReading| (pending.pid, &pending.name) == (process.pid, &process.name);
        self.pending.iter().find(is_it).filter(|_| process.exited_at_ns.is_none())
    }
}
