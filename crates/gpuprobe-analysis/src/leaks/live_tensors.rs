//! Tensors by process, GPU and call site. Their call sites are followed and judged like those of memory.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::{LiveTotals, ProcessKey, SiteMemory, TensorMemory};
use gpuprobe_event::{Container, Gpu, Losses, MemoryBySite, TensorSource, Total};
use serde::Serialize;

use crate::leaks::fragmentation::{Fragmentation, FragmentationByGpu};
use crate::leaks::live_memory::{LiveMemory, MemoryReport, ProcessCallSites, by_site};
use crate::process_info::ProcessInfo;

/// Tensors of one process on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuTensors {
    pub gpu: Option<Gpu>,
    pub source: TensorSource,
    /// Tensors whose allocation was observed.
    pub live: Total,
    /// Bytes of all tensors, by the framework's own account.
    pub in_use_bytes: u64,
    /// Device memory that the framework has reserved for tensors, if it reports that.
    pub reserved_bytes: Option<u64>,
    /// What is reserved and not in use.
    pub cached_bytes: Option<u64>,
    /// `None` if it was not read.
    pub fragmentation: Option<Fragmentation>,
    /// Frees of tensors whose allocation was not observed.
    pub unknown_frees: u64,
}

impl GpuTensors {
    /// Bytes of live tensors whose allocation was not observed.
    pub fn unattributed_bytes(&self) -> u64 {
        self.in_use_bytes.saturating_sub(self.live.bytes)
    }

    /// The part of the cached bytes that is in segments with live tensors. It is read at another moment than these.
    pub fn fragmented_bytes(&self) -> Option<u64> {
        Some(self.fragmentation?.bytes.min(self.cached_bytes?))
    }

    /// Whether all segments with live tensors are known. Otherwise more bytes may be fragmented.
    pub fn knows_all_segments(&self) -> bool {
        self.unattributed_bytes() == 0 && self.fragmentation.is_some_and(|found| found.unplaced_bytes == 0)
    }

    pub fn of(row: &TensorMemory, info: &ProcessInfo, fragmentation: Option<Fragmentation>) -> Self {
        Self {
            gpu: row.gpu.map(|number| info.gpus.of(number)),
            source: row.source,
            fragmentation,
            live: Total { count: row.live.live_allocations, bytes: row.live.live_bytes },
            in_use_bytes: row.in_use_bytes,
            reserved_bytes: row.reserved_bytes,
            cached_bytes: row.cached_bytes(),
            unknown_frees: row.unknown_frees,
        }
    }
}

/// Accounts of tensors that are allocations from a pool each, from their rows by call site.
pub fn tensors_of_pools(sites: &[SiteMemory]) -> Vec<TensorMemory> {
    let mut accounts: BTreeMap<(ProcessKey, Option<u8>), TensorMemory> = BTreeMap::new();
    for row in sites {
        let account = accounts.entry((row.process, row.gpu)).or_insert(TensorMemory {
            process: row.process,
            gpu: row.gpu,
            live: LiveTotals::default(),
            allocations: 0,
            allocated_bytes: 0,
            frees: 0,
            unknown_frees: 0,
            replaced: 0,
            in_use_bytes: 0,
            reserved_bytes: None,
            source: TensorSource::CudaMallocAsync,
        });
        let live = &mut account.live;
        live.live_bytes = live.live_bytes.saturating_add(row.live.live_bytes);
        live.live_allocations = live.live_allocations.saturating_add(row.live.live_allocations);
        account.in_use_bytes = live.live_bytes;
        account.allocations = account.allocations.saturating_add(row.allocations);
        account.allocated_bytes = account.allocated_bytes.saturating_add(row.allocated_bytes);
        account.frees = account.allocations.saturating_sub(account.live.live_allocations);
    }
    accounts.into_values().collect()
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
    /// As it was read last.
    fragmentation: FragmentationByGpu,
}

impl LiveTensors {
    pub fn new(call_sites: LiveMemory) -> Self {
        Self { call_sites, accounts: BTreeMap::new(), fragmentation: FragmentationByGpu::new() }
    }

    /// Takes in how fragmented the memory of these rows is. It changes at the next [`LiveTensors::feed`].
    pub fn set_fragmentation(&mut self, gpus: &[TensorMemory], found: &FragmentationByGpu) {
        for row in gpus {
            let key = (row.process, row.gpu);
            // without a live tensor, nothing is
            self.fragmentation.insert(key, found.get(&key).copied().unwrap_or_default());
        }
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
            let fragmentation = self.fragmentation.get(&(row.process, row.gpu)).copied();
            account.gpus.push(GpuTensors::of(row, info, fragmentation));
        }
        latest
            .values_mut()
            .for_each(|account| account.gpus.sort_unstable_by_key(|gpu| (gpu.gpu, gpu.source)));
        self.accounts.extend(latest);
        self.fragmentation.retain(|(process, _), _| self.accounts.contains_key(process));
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
            reserved_bytes: Some(1 << 20),
            source: TensorSource::Reports,
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
        let gpu = |gpu: &GpuTensors| (gpu.gpu.map_or(255, Gpu::number), gpu.cached_bytes.unwrap());
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
    fn fragmentation_is_part_of_what_is_cached_and_stays_until_it_is_read_again() {
        let mut tensors = tensors(true);
        let (gpus, infos) = ([on_gpu(1, 0, 2), on_gpu(1, 1, 0)], infos(&[1], None));
        let mut shown = |found: Option<Vec<(u8, u64, u64)>>| -> Vec<_> {
            if let Some(found) = found {
                let of = |(gpu, bytes, unplaced_bytes): &(u8, u64, u64)| {
                    ((key(1), Some(*gpu)), Fragmentation { bytes: *bytes, unplaced_bytes: *unplaced_bytes })
                };
                tensors.set_fragmentation(&gpus, &found.iter().map(of).collect());
            }
            tensors.feed(&[at_site(1, 2)], &gpus, &infos, 1);
            let report = tensors.report(&Losses::default(), 2);
            let gpus = report.processes[0].gpus.iter();
            gpus.map(|gpu| (gpu.fragmented_bytes(), gpu.knows_all_segments())).collect()
        };
        assert_eq!(shown(None), [(None, false), (None, false)]);
        // 100 bytes of each GPU are from before the attach
        assert_eq!(shown(Some(vec![(0, 7, 0)])), [(Some(7), false), (Some(0), false)]);
        assert_eq!(shown(None), [(Some(7), false), (Some(0), false)]);
        let cached = (1 << 20) - 2 * 512 - 100;
        assert_eq!(shown(Some(vec![(0, u64::MAX, 5)]))[0], (Some(cached), false));
        let all = TensorMemory { in_use_bytes: 1024, ..on_gpu(1, 0, 2) };
        let knows = |unplaced_bytes| {
            let found = Fragmentation { bytes: 0, unplaced_bytes };
            GpuTensors::of(&all, &ProcessInfo::default(), Some(found)).knows_all_segments()
        };
        assert_eq!((knows(0), knows(1)), (true, false));
    }

    #[test]
    fn allocations_from_pools_are_tensors_without_a_reserve() {
        let (other, second) = (at_site(2, 1), SiteMemory { gpu: Some(1), ..at_site(1, 4) });
        let ended = SiteMemory { allocations: 9, allocated_bytes: 9 * 512, ..at_site(1, 3) };
        let accounts = tensors_of_pools(&[at_site(1, 2), other, second, ended]);
        let of = |account: &TensorMemory| {
            let live = account.live;
            (account.process.tgid.0, account.gpu, live.live_bytes, live.live_allocations, account.frees)
        };
        let found: Vec<_> = accounts.iter().map(of).collect();
        let expected = [(1, Some(0), 5 * 512, 5, 6), (1, Some(1), 4 * 512, 4, 0), (2, Some(0), 512, 1, 0)];
        assert_eq!(found, expected);
        let shown = GpuTensors::of(&accounts[0], &ProcessInfo::default(), None);
        assert_eq!((shown.in_use_bytes, shown.reserved_bytes, shown.cached_bytes), (5 * 512, None, None));
        assert_eq!((shown.source, shown.unattributed_bytes()), (TensorSource::CudaMallocAsync, 0));
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
