//! Tensors by process, GPU and call site. Their call sites are followed and judged like those of memory.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::{ProcessKey, SiteMemory, TensorMemory};
use gpuprobe_event::{Container, Gpu, Losses, MemoryBySite, Total};
use serde::Serialize;

use crate::leaks::live_memory::{LiveMemory, MemoryReport, ProcessCallSites, by_site};
use crate::process_info::ProcessInfo;

/// Tensors of one process on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuTensors {
    pub gpu: Option<Gpu>,
    /// Tensors whose allocation was observed.
    pub live: Total,
    /// Bytes of all tensors, by the framework's own account.
    pub in_use_bytes: u64,
    /// Device memory that the framework has reserved for tensors.
    pub reserved_bytes: u64,
    /// What is reserved and not in use.
    pub cached_bytes: u64,
    /// Frees of tensors whose allocation was not observed.
    pub unknown_frees: u64,
}

impl GpuTensors {
    /// Bytes of live tensors whose allocation was not observed.
    pub fn unattributed_bytes(&self) -> u64 {
        self.in_use_bytes.saturating_sub(self.live.bytes)
    }

    fn of(row: &TensorMemory, info: &ProcessInfo) -> Self {
        Self {
            gpu: row.gpu.map(|number| info.gpus.of(number)),
            live: Total { count: row.live.live_allocations, bytes: row.live.live_bytes },
            in_use_bytes: row.in_use_bytes,
            reserved_bytes: row.reserved_bytes,
            cached_bytes: row.cached_bytes(),
            unknown_frees: row.unknown_frees,
        }
    }
}

/// Tensors of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessTensors {
    #[serde(flatten)]
    pub call_sites: ProcessCallSites,
    /// Sorted by number.
    pub gpus: Vec<GpuTensors>,
}

/// Tensors of all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TensorReport {
    /// Sorted by live bytes, largest first; then those without a known tensor.
    pub processes: Vec<ProcessTensors>,
    /// Whether no loss could have changed a verdict.
    pub is_complete: bool,
}

impl TensorReport {
    /// Live tensors by call site, in the form of a recording.
    pub fn by_site(&self) -> MemoryBySite {
        by_site(self.processes.iter().map(|process| &process.call_sites))
    }
}

/// The latest figures of a process.
#[derive(Clone, Debug)]
struct Account {
    name: String,
    container: Option<Container>,
    gpus: Vec<GpuTensors>,
}

/// Follows the tensors of all processes.
#[derive(Debug)]
pub struct LiveTensors {
    /// Their call sites, with as many bytes as tensors have.
    pub call_sites: LiveMemory,
    accounts: BTreeMap<ProcessKey, Account>,
}

impl LiveTensors {
    pub fn new(call_sites: LiveMemory) -> Self {
        Self { call_sites, accounts: BTreeMap::new() }
    }

    /// Takes in the rows of the BPF side: by call site, and by GPU. `infos` is as for [`LiveMemory::feed`].
    pub fn feed(
        &mut self,
        sites: &[SiteMemory],
        gpus: &[TensorMemory],
        infos: &HashMap<ProcessKey, ProcessInfo>,
        now_ns: u64,
    ) {
        self.call_sites.feed(sites, infos, now_ns);
        let is_running = |key: &ProcessKey| infos.get(key).is_some_and(|info| info.exited_at_ns.is_none());
        self.accounts.retain(|key, _| is_running(key) || self.call_sites.has(*key));
        let mut latest: BTreeMap<ProcessKey, Account> = BTreeMap::new();
        for row in gpus {
            // rows of an unknown process are left over from its exit
            let Some(info) = infos.get(&row.process) else { continue };
            let account = latest.entry(row.process).or_insert_with(|| Account {
                name: info.name.clone(),
                container: info.container.clone(),
                gpus: Vec::new(),
            });
            account.gpus.push(GpuTensors::of(row, info));
        }
        latest.values_mut().for_each(|account| account.gpus.sort_unstable_by_key(|gpu| gpu.gpu));
        self.accounts.extend(latest);
    }

    pub fn report(&mut self, losses: &Losses, now_ns: u64) -> TensorReport {
        let memory = self.call_sites.report(losses, now_ns);
        let is_complete = memory.is_complete();
        let MemoryReport { processes: by_site, .. } = memory;
        let mut accounts = self.accounts.clone();
        let with_gpus = |call_sites: ProcessCallSites, account: Option<Account>| ProcessTensors {
            call_sites,
            gpus: account.map(|account| account.gpus).unwrap_or_default(),
        };
        let mut processes: Vec<_> = by_site
            .into_iter()
            .map(|call_sites| {
                let account = accounts.remove(&call_sites.key());
                with_gpus(call_sites, account)
            })
            .collect();
        for (key, account) in accounts {
            let call_sites = ProcessCallSites {
                pid: key.tgid,
                instance: key.instance,
                name: account.name.clone(),
                container: account.container.clone(),
                ..ProcessCallSites::default()
            };
            processes.push(with_gpus(call_sites, Some(account)));
        }
        TensorReport { processes, is_complete }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::LiveTotals;
    use gpuprobe_event::{SiteId, Tgid};

    use super::*;
    use crate::leaks::Rules;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { tgid: Tgid(pid), instance: 1 }
    }

    fn on_gpu(pid: u32, gpu: u8, live: u64) -> TensorMemory {
        TensorMemory {
            process: key(pid),
            gpu: Some(gpu),
            live: LiveTotals { live_bytes: 512 * live, live_allocations: live },
            allocations: live,
            allocated_bytes: 512 * live,
            frees: 0,
            unknown_frees: 1,
            replaced: 0,
            in_use_bytes: 512 * live + 100,
            reserved_bytes: 1 << 20,
        }
    }

    fn at_site(pid: u32, live: u64) -> SiteMemory {
        SiteMemory {
            process: key(pid),
            site: SiteId(1),
            gpu: Some(0),
            live: LiveTotals { live_bytes: 512 * live, live_allocations: live },
            allocations: live,
            allocated_bytes: 512 * live,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
        }
    }

    fn infos(pids: &[u32], exited_at_ns: Option<u64>) -> HashMap<ProcessKey, ProcessInfo> {
        let info =
            |pid: &u32| ProcessInfo { name: format!("p{pid}"), exited_at_ns, ..ProcessInfo::default() };
        pids.iter().map(|pid| (key(*pid), info(pid))).collect()
    }

    fn tensors(keeps_exited: bool) -> LiveTensors {
        LiveTensors::new(LiveMemory::new(Rules { warm_up_ns: 0 }, keeps_exited))
    }

    /// A process: pid, live bytes, and the cached bytes by GPU.
    type Shown = (u32, u64, Vec<(u8, u64)>);

    fn shown(tensors: &mut LiveTensors) -> Vec<Shown> {
        let report = tensors.report(&Losses::default(), 9);
        let gpu = |gpu: &GpuTensors| (gpu.gpu.map_or(255, Gpu::number), gpu.cached_bytes);
        let process = |p: &ProcessTensors| {
            (p.call_sites.pid.0, p.call_sites.live.bytes, p.gpus.iter().map(gpu).collect())
        };
        report.processes.iter().map(process).collect()
    }

    #[test]
    fn figures_of_gpus_belong_to_the_call_sites_of_their_process() {
        let mut tensors = tensors(false);
        let gpus = [on_gpu(1, 1, 2), on_gpu(1, 0, 0), on_gpu(2, 0, 0), on_gpu(3, 0, 1)];
        tensors.feed(&[at_site(1, 2)], &gpus, &infos(&[1, 2], None), 1);
        let mib = 1 << 20;
        let expected = vec![(1, 1024, vec![(0, mib - 100), (1, mib - 1124)]), (2, 0, vec![(0, mib - 100)])];
        assert_eq!(shown(&mut tensors), expected, "process 3 is not known");
    }

    #[test]
    fn an_exited_process_keeps_its_figures_if_it_is_kept() {
        for keeps_exited in [true, false] {
            let mut tensors = tensors(keeps_exited);
            tensors.feed(&[at_site(1, 2)], &[on_gpu(1, 0, 2)], &infos(&[1], None), 1);
            tensors.feed(&[at_site(1, 2)], &[on_gpu(1, 0, 2)], &infos(&[1], Some(2)), 2);
            tensors.feed(&[], &[], &infos(&[], None), 3);
            let left: Vec<_> =
                shown(&mut tensors).iter().map(|(pid, live, gpus)| (*pid, *live, gpus.len())).collect();
            assert_eq!(left, if keeps_exited { vec![(1, 1024, 1)] } else { vec![] });
        }
    }
}
