//! The figures, as plain data.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use gpuprobe_event::Tgid;
use gpuprobe_event::counters::CopyDirection;
use serde::Serialize;

use super::host_calls::HostActivity;
use super::{Agent, Gpu, GpuKey, GpuTimeAccount, Stream, TimeRow};

/// Rows of a list in a report.
const MOST_ROWS: usize = 1000;

/// What GPUs executed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuTime {
    /// The agents of processes, with what they did last.
    pub agents: Vec<AgentSummary>,
    pub executions: u64,
    /// Executions whose submission was not found.
    pub unmatched: u64,
    /// Executions that were reported too late to be counted completely in the busy and idle times.
    pub late: u64,
    /// By CUDA kernel, most time first.
    pub kernels: Vec<KernelTime>,
    /// CUDA graphs that were recorded as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graphs: Option<KernelTime>,
    /// Copies and memsets, by direction.
    pub copies: Vec<CopyTime>,
    /// By process and GPU.
    pub gpus: Vec<GpuBusy>,
    /// Idle time of GPUs between executions, by what the thread did that submitted what ended it; most time first.
    pub idle: Vec<GpuIdle>,
    /// `None` if no submission was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queueing: Option<QueueingDelay>,
    /// By NVTX range, most GPU time first: executions that were submitted in it, and in no range inside it.
    pub ranges: Vec<RangeTime>,
}

impl GpuTime {
    /// Whether no agent reported anything.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// GPU time of everything, as a sum over executions.
    pub fn total_ns(&self) -> u64 {
        let kernels = self.kernels.iter().chain(&self.graphs).map(|row| row.total_ns);
        kernels.chain(self.copies.iter().map(|row| row.total_ns)).fold(0, u64::saturating_add)
    }
}

/// The agent of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentSummary {
    pub tgid: Tgid,
    pub process: Arc<str>,
    /// The last state, by its word in traces.
    pub state: &'static str,
    /// Why, if it does not collect.
    pub text: Arc<str>,
    /// How graphs are recorded, by its word in traces.
    pub graphs: &'static str,
    /// How long it collected.
    pub covered_ns: u64,
}

/// The executions of one CUDA kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelTime {
    pub kernel: Arc<str>,
    pub executions: u64,
    pub total_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

impl KernelTime {
    fn of(kernel: &Arc<str>, row: &TimeRow) -> Self {
        Self {
            kernel: Arc::clone(kernel),
            executions: row.executions,
            total_ns: row.total_ns,
            min_ns: row.min_ns,
            max_ns: row.max_ns,
            p50_ns: row.times.quantile(500),
            p99_ns: row.times.quantile(990),
        }
    }

    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.executions)
    }
}

/// Copies of one direction, or memsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyTime {
    pub direction: CopyDirection,
    pub copies: u64,
    pub bytes: u64,
    pub total_ns: u64,
}

impl CopyTime {
    /// Bytes per second of GPU time.
    pub fn bandwidth(&self) -> Option<f64> {
        (self.total_ns > 0).then(|| self.bytes as f64 / (self.total_ns as f64 / 1e9))
    }
}

/// The busy time of a GPU with the executions of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuBusy {
    pub tgid: Tgid,
    pub process: Arc<str>,
    /// By the process's number.
    pub gpu: u32,
    pub executions: u64,
    /// Time in which at least one execution ran.
    pub busy_ns: u64,
    /// Time in which executions were collected.
    pub covered_ns: u64,
    /// Most busy time first.
    pub streams: Vec<StreamBusy>,
}

/// The busy time of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StreamBusy {
    /// CUPTI's numbers.
    pub context: u32,
    pub stream: u32,
    pub executions: u64,
    pub busy_ns: u64,
}

/// Idle time of GPUs in which the host did the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuIdle {
    pub host: HostActivity,
    /// Idle times of which this was a part.
    pub times: u64,
    pub idle_ns: u64,
    pub longest_ns: u64,
}

/// From the beginning of a submitting call to the start of the execution. Nodes of graphs are not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueingDelay {
    pub executions: u64,
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// Executions that were submitted in NVTX ranges of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeTime {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Arc<str>>,
    pub name: Arc<str>,
    /// Ranges that ended.
    pub ranges: u64,
    pub executions: u64,
    pub gpu_ns: u64,
    /// The time of the ranges themselves.
    pub host_ns: u64,
}

/// The figures, with completed idle times.
pub(super) fn report(
    account: &GpuTimeAccount,
    gpus: &BTreeMap<GpuKey, Gpu>,
    idle: &BTreeMap<HostActivity, GpuIdle>,
) -> GpuTime {
    let mut kernels: Vec<_> = account.kernels.iter().map(|(name, row)| KernelTime::of(name, row)).collect();
    kernels.sort_by(|a, b| (b.total_ns, &a.kernel).cmp(&(a.total_ns, &b.kernel)));
    kernels.truncate(MOST_ROWS.max(GpuTimeAccount::MOST_KERNELS + 2));
    let graphs =
        (account.graphs.executions > 0).then(|| KernelTime::of(&Arc::from("graph"), &account.graphs));
    let mut idle: Vec<_> = idle.values().copied().collect();
    idle.sort_by_key(|row| (Reverse(row.idle_ns), row.host));
    let mut ranges = account.ranges.rows.clone();
    ranges.sort_by(|a, b| (b.gpu_ns, b.host_ns, &a.name).cmp(&(a.gpu_ns, a.host_ns, &b.name)));
    ranges.truncate(MOST_ROWS);
    let late = gpus.values().map(|gpu| gpu.union.late()).fold(0, u64::saturating_add);
    GpuTime {
        agents: agents(account),
        executions: account.executions,
        unmatched: account.unmatched,
        late,
        kernels,
        graphs,
        copies: account.copies.values().copied().collect(),
        gpus: busy(account, gpus),
        idle,
        queueing: queueing(account),
        ranges,
    }
}

fn agents(account: &GpuTimeAccount) -> Vec<AgentSummary> {
    let agent = |(tgid, agent): (&Tgid, &Agent)| AgentSummary {
        tgid: *tgid,
        process: Arc::clone(&agent.last.process),
        state: agent.last.collection.as_str(),
        text: Arc::clone(&agent.last.text),
        graphs: agent.last.graphs.as_str(),
        covered_ns: agent.covered_ns(),
    };
    account.agents.iter().map(agent).collect()
}

fn busy(account: &GpuTimeAccount, gpus: &BTreeMap<GpuKey, Gpu>) -> Vec<GpuBusy> {
    let gpu = |((tgid, number), gpu): (&GpuKey, &Gpu)| {
        let stream = |(&(context, stream), row): (&(u32, u32), &Stream)| StreamBusy {
            context,
            stream,
            executions: row.executions,
            busy_ns: row.union.busy_ns(),
        };
        let mut streams: Vec<_> = gpu.streams.iter().map(stream).collect();
        streams.sort_by_key(|row| (Reverse(row.busy_ns), row.context, row.stream));
        GpuBusy {
            tgid: *tgid,
            process: Arc::clone(&gpu.process),
            gpu: *number,
            executions: gpu.executions,
            busy_ns: gpu.union.busy_ns(),
            covered_ns: account.agents.get(tgid).map_or(0, Agent::covered_ns),
            streams,
        }
    };
    gpus.iter().map(gpu).collect()
}

fn queueing(account: &GpuTimeAccount) -> Option<QueueingDelay> {
    let quantile = |of_thousand| account.queued.quantile(of_thousand);
    let executions = account.queued.count();
    Some(QueueingDelay {
        executions,
        mean_ns: account.queued_ns.checked_div(executions)?,
        p50_ns: quantile(500)?,
        p90_ns: quantile(900)?,
        p99_ns: quantile(990)?,
        max_ns: account.longest_queued_ns,
    })
}
