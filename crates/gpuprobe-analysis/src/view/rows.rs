//! The rows of a live view.

use serde::{Serialize, Serializer};

/// A process of a host. Processes with the same pid have different instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ProcessId {
    /// The position of the host among those that are shown.
    pub host: usize,
    pub pid: u32,
    /// As text in JSON: numbers of browsers have 53 bits.
    #[serde(serialize_with = "as_text")]
    pub instance: u64,
}

fn as_text<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// Everything that the overview shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct View {
    /// The names of the hosts, if it is not only this one. The numbers of hosts are positions in this list.
    pub hosts: Vec<String>,
    pub unix_seconds: f64,
    /// Whether NVML answers; `None` if it was not read.
    pub is_nvml_up: Option<bool>,
    pub gpus: Vec<GpuRow>,
    pub processes: Vec<ProcessRow>,
    pub xids: Vec<XidRow>,
    /// Records and calls that were lost since the start; not processes that ran before it.
    pub lost: u64,
    /// The causes of these, most frequent first.
    pub losses: Vec<(String, u64)>,
    /// The budget as a share of a process's time, if there is one.
    pub budget: Option<f64>,
    /// Functions whose figures are estimates, because they were sampled to stay within the budget.
    pub estimated: Vec<String>,
    /// CPU time of gpuprobe as a share of one core, since the reading before.
    pub own_cpu_share: Option<f64>,
    pub own_resident_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpuRow {
    pub host: usize,
    pub gpu: u8,
    pub name: String,
    pub busy_percent: Option<u32>,
    pub memory_busy_percent: Option<u32>,
    pub used_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
    pub watts: Option<f64>,
    pub limit_watts: Option<f64>,
    pub celsius: Option<u32>,
    pub sm_mhz: Option<u32>,
    pub memory_mhz: Option<u32>,
    /// Why its clocks are lowered; empty if they are not, or if it is idle.
    pub throttled: Vec<&'static str>,
    pub pcie_rx_bytes_per_second: Option<u64>,
    pub pcie_tx_bytes_per_second: Option<u64>,
    /// How much its parts were used, of what is possible, by their names; empty where NVML does not report it.
    pub activity: Vec<(&'static str, f64)>,
    /// Bytes per second on its links, by their names.
    pub traffic: Vec<(&'static str, u64)>,
    /// XIDs since the start.
    pub xids: u64,
    /// Utilization in percent at the last readings, oldest first.
    pub busy_history: Vec<Option<u32>>,
    /// Used memory in percent at the last readings, oldest first.
    pub memory_history: Vec<Option<u32>>,
}

/// The oldest call that has not returned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PendingCall {
    pub function: String,
    pub age_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    pub id: ProcessId,
    pub name: String,
    pub uid: Option<u32>,
    /// Its pod as `NAMESPACE/NAME`, or the id of its container.
    pub container: Option<String>,
    /// The host's numbers of the GPUs that it uses.
    pub gpus: Vec<u8>,
    /// Utilization of the multiprocessors by this process, according to NVML.
    pub gpu_percent: Option<u32>,
    pub live_bytes: u64,
    pub peak_bytes: u64,
    /// Change of live memory per second over the last minute; `None` before the second reading, and after the
    /// exit.
    pub growth_per_second: Option<f64>,
    pub launches: u64,
    pub launches_per_second: Option<f64>,
    /// Launches are estimates, because their functions were sampled to stay within the budget.
    pub has_estimated_launches: bool,
    pub copies: u64,
    pub copies_per_second: Option<f64>,
    pub copied_bytes_per_second: Option<f64>,
    pub has_estimated_copies: bool,
    /// Time in calls that do the work as a share of the time since the reading before, also in calls that have not
    /// returned. Threads add up.
    pub calls_share: Option<f64>,
    pub has_estimated_calls: bool,
    pub errors: u64,
    pub errors_per_second: Option<f64>,
    pub has_estimated_errors: bool,
    pub pending: Option<PendingCall>,
    /// A call site is suspected to leak.
    pub has_suspect: bool,
    /// The share of its time that the probes take, if that is measured.
    pub cost_share: Option<f64>,
    pub has_exited: bool,
}

/// XIDs of one number on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XidRow {
    pub host: usize,
    pub gpu: u8,
    pub xid: u64,
    pub count: u64,
}

impl View {
    /// The name of a host, where there are several: one needs no name.
    pub fn host_name(&self, host: usize) -> Option<&str> {
        self.hosts.get(host).filter(|_| self.hosts.len() > 1).map(String::as_str)
    }

    /// The views of several hosts as one.
    pub fn of_hosts(views: impl IntoIterator<Item = Self>) -> Self {
        let mut views = views.into_iter();
        let mut all = views.next().unwrap_or_default();
        for view in views {
            all.unix_seconds = all.unix_seconds.max(view.unix_seconds);
            all.is_nvml_up = match (all.is_nvml_up, view.is_nvml_up) {
                (Some(a), Some(b)) => Some(a || b),
                (a, b) => a.or(b),
            };
            all.gpus.extend(view.gpus);
            all.processes.extend(view.processes);
            all.xids.extend(view.xids);
            all.lost = all.lost.saturating_add(view.lost);
            for (cause, count) in view.losses {
                match all.losses.iter_mut().find(|(known, _)| *known == cause) {
                    Some((_, sum)) => *sum = sum.saturating_add(count),
                    None => all.losses.push((cause, count)),
                }
            }
            all.budget = all.budget.or(view.budget);
            all.estimated.extend(view.estimated);
            all.estimated.sort_unstable();
            all.estimated.dedup();
            // each daemon has a core of its own
            all.own_cpu_share = match (all.own_cpu_share, view.own_cpu_share) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
            all.own_resident_bytes = None;
        }
        all
    }
}
