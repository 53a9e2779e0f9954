//! Reads the tables of the BPF programs, and removes the rows of exited processes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, FailureCounts, GpuIdentity, GpuOpRows, LaunchCounts, PendingCall,
    ProcessKey, ProcessMemory,
};
use gpuprobe_event::driver::Version;
use gpuprobe_event::{Losses, SiteId, UnifiedTotals, UnifiedUse};
use libbpf_rs::{Map, MapCore, MapFlags, Object};

use super::exited_rows::{self, ExitedRows};
use super::gpu_ops::{self, Launched};
use super::indexed_table::IndexedTable;
use super::process_filter::{ProcessFilter, hash_rows};
use super::process_rows::{HasProcess, remove_of, remove_physical};
use super::range_sweeper::RangeSweeper;
use super::{call_counts, memory_tables, task_iterator, unified_memory};
use crate::error::CaptureError;
use crate::host::clock::Clock;
use crate::load::collect::CountedOps;
use crate::wire::object_handles::map_of;
use crate::wire::{
    MapName, as_bytes, from_bytes, gp_context_key, gp_exec_launches, gp_failure_key, gp_launch_key,
    gp_live_key,
};

/// Finds the name of a CUDA kernel by the handle with which a process launches it.
pub(crate) type NameKernel<'a> = &'a mut dyn FnMut(ProcessKey, u64) -> Option<Arc<str>>;

/// The tables of the loaded object.
pub(crate) struct TableReader {
    object: Rc<Object>,
    pub(crate) counted: CountedOps,
    /// Whether memory is counted by call site.
    pub(crate) has_sites: bool,
    /// Whether tensors are accounted for.
    pub(crate) has_tensors: bool,
    /// Site tree entries for which the maps had no room.
    pub(crate) refused_sites: u64,
    /// The word of kernel handles that the BPF programs read now.
    name_word: u16,
    sweeper: RangeSweeper,
}

impl TableReader {
    pub(crate) fn new(object: Rc<Object>, counted: CountedOps, has_sites: bool, has_tensors: bool) -> Self {
        let sweeper = RangeSweeper::default();
        Self { object, counted, has_sites, has_tensors, refused_sites: 0, name_word: 0, sweeper }
    }

    pub(crate) fn map(&self, name: MapName) -> Result<Map<'_>, CaptureError> {
        map_of(&self.object, name)
    }

    fn indexed(
        &self,
        index: MapName,
        rows: MapName,
        unused: MapName,
    ) -> Result<IndexedTable<'_>, CaptureError> {
        Ok(IndexedTable { index: self.map(index)?, rows: self.map(rows)?, unused: self.map(unused)? })
    }

    fn count_rows(&self) -> Result<IndexedTable<'_>, CaptureError> {
        self.indexed(MapName::Counts, MapName::CountRows, MapName::UnusedCounts)
    }

    fn process_rows(&self) -> Result<IndexedTable<'_>, CaptureError> {
        self.indexed(MapName::Processes, MapName::MemoryRows, MapName::UnusedMemory)
    }

    pub(crate) fn context_rows(&self) -> Result<IndexedTable<'_>, CaptureError> {
        self.indexed(MapName::Contexts, MapName::ContextRows, MapName::UnusedContexts)
    }

    fn stream_rows(&self) -> Result<IndexedTable<'_>, CaptureError> {
        self.indexed(MapName::Streams, MapName::StreamRows, MapName::UnusedStreams)
    }

    fn copy_rows(&self) -> Result<IndexedTable<'_>, CaptureError> {
        self.indexed(MapName::Copies, MapName::CopyRows, MapName::UnusedCopies)
    }

    /// Writes which word of kernel handles the BPF programs read, if it has changed.
    pub(crate) fn write_name_word(&mut self, word: u16) -> Result<(), CaptureError> {
        if word != self.name_word {
            self.map(MapName::NameWord)?
                .update(&0u32.to_ne_bytes(), &u32::from(word).to_ne_bytes(), MapFlags::ANY)
                .map_err(CaptureError::bpf("write the position of kernel names"))?;
        }
        self.name_word = word;
        Ok(())
    }

    pub(crate) fn losses(&self) -> Result<Losses, CaptureError> {
        call_counts::losses(&self.map(MapName::Losses)?)
    }

    pub(crate) fn counts(&self) -> Result<Vec<CallCounts>, CaptureError> {
        call_counts::counts(&self.count_rows()?)
    }

    pub(crate) fn pending_calls(&self, clock: Clock) -> Result<Vec<PendingCall>, CaptureError> {
        task_iterator::pending_calls(&self.object, clock)
    }

    pub(crate) fn failures(&self) -> Result<Vec<FailureCounts>, CaptureError> {
        call_counts::failures(&self.map(MapName::Failures)?, &self.process_rows()?)
    }

    pub(crate) fn memory(&self) -> Result<(Vec<ProcessMemory>, Vec<ContextMemory>), CaptureError> {
        memory_tables::memory(&self.process_rows()?, &self.context_rows()?)
    }

    pub(crate) fn identities(&self) -> Result<Vec<GpuIdentity>, CaptureError> {
        memory_tables::identities(&self.map(MapName::Identities)?)
    }

    pub(crate) fn allocations(&self, site: impl Fn(u32) -> SiteId) -> Result<Vec<Allocation>, CaptureError> {
        let (live, physical) = (self.map(MapName::Live)?, self.map(MapName::Physical)?);
        memory_tables::allocations(&live, &self.context_rows()?, &physical, site)
    }

    fn read_launches(
        &self,
        filter: ProcessFilter<'_>,
        name_of: NameKernel<'_>,
    ) -> Result<Launched, CaptureError> {
        let mut launched = Launched::default();
        let table = self.indexed(MapName::Launches, MapName::LaunchRows, MapName::UnusedLaunches)?;
        filter.each(&table, |key: gp_launch_key, row| launched.add(&key, from_bytes(row)))?;
        for row in launched.rows.values_mut() {
            row.kernel = name_of(row.process, row.handle);
        }
        Ok(launched)
    }

    pub(crate) fn launches(&self, name_of: NameKernel<'_>) -> Result<Vec<LaunchCounts>, CaptureError> {
        if !self.counted.launch_rows() {
            return Ok(Vec::new());
        }
        Ok(self.read_launches(ProcessFilter::All, name_of)?.rows.into_values().collect())
    }

    /// The calls that launched something.
    pub(crate) fn launch_calls(&self) -> Result<Vec<CallCounts>, CaptureError> {
        if !self.counted.launch_rows() {
            return Ok(Vec::new());
        }
        Ok(self.read_launches(ProcessFilter::All, &mut |_, _| None)?.calls.into_values().collect())
    }

    /// The counts of GPU operations. `version` is that of the NVIDIA kernel module, and names its commands.
    pub(crate) fn gpu_ops(
        &self,
        filter: ProcessFilter<'_>,
        name_of: NameKernel<'_>,
        version: Version,
    ) -> Result<GpuOpRows, CaptureError> {
        let mut rows = GpuOpRows::default();
        if !self.counted.rows {
            return Ok(rows);
        }
        if self.counted.launches {
            let Launched { rows: launches, calls } = self.read_launches(filter, name_of)?;
            rows.launches = launches.into_values().collect();
            rows.calls = calls.into_values().collect();
        }
        if self.counted.copies {
            rows.copies = gpu_ops::copies(&self.copy_rows()?, filter)?;
        }
        if self.counted.launches || self.counted.copies {
            rows.graphs = gpu_ops::graphs(&self.map(MapName::GraphCounts)?, filter)?;
            rows.gaps = gpu_ops::gaps(&self.stream_rows()?, filter)?;
        }
        if self.counted.device_calls {
            rows.commands = gpu_ops::commands(&self.map(MapName::Commands)?, filter, version)?;
            rows.unified = unified_memory::unified(&self.map(MapName::Unified)?, filter)?;
        }
        Ok(rows)
    }

    pub(crate) fn unified(&self) -> Result<Vec<UnifiedUse>, CaptureError> {
        if !self.counted.device_calls {
            return Ok(Vec::new());
        }
        let mut by_pid: BTreeMap<u32, UnifiedTotals> = BTreeMap::new();
        for (key, totals) in unified_memory::unified(&self.map(MapName::Unified)?, ProcessFilter::All)? {
            by_pid.entry(key.tgid.0).or_default().add(&totals);
        }
        Ok(by_pid.into_iter().map(|(pid, totals)| UnifiedUse { pid, totals }).collect())
    }

    /// Removes the rows of exited processes and returns them, without those of call sites.
    pub(crate) fn take_rows(
        &mut self,
        exited: &HashSet<ProcessKey>,
        name_of: NameKernel<'_>,
        version: Version,
    ) -> Result<ExitedRows, CaptureError> {
        for name in [MapName::Addresses, MapName::Primaries, MapName::Identities] {
            remove_of::<gp_context_key>(&self.map(name)?, exited)?;
        }
        // read first: some failures are counted in the process rows that are removed next
        let mut failures = self.failures()?;
        failures.retain(|row| exited.contains(&row.process));
        let tables = (&self.count_rows()?, &self.process_rows()?, &self.context_rows()?);
        let mut rows = exited_rows::take_rows(tables.0, tables.1, tables.2, exited)?;
        self.remove_tensors(exited, &mut rows.exited_with_live_memory)?;
        let gpu_ops = self.gpu_ops(ProcessFilter::Exited(exited), name_of, version)?;
        self.forget_graphs(exited)?;
        remove_of::<gp_failure_key>(&self.map(MapName::Failures)?, exited)?;
        Ok(ExitedRows { gpu_ops, failures, ..rows })
    }

    /// Removes the live allocations of exited processes, and returns how many there were.
    pub(crate) fn release_memory(&mut self, exited: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
        let live = remove_of::<gp_live_key>(&self.map(MapName::Live)?, exited)?;
        for name in [MapName::Handles, MapName::Mapped, MapName::Objects, MapName::NamedKernels] {
            remove_of::<gp_live_key>(&self.map(name)?, exited)?;
        }
        self.release_tensors(exited)?;
        self.release_ranges(exited)?;
        Ok(live + remove_physical(&self.map(MapName::Physical)?, exited)?)
    }

    /// Removes the streams and graphs of exited processes where no rows are read of them.
    pub(crate) fn forget_streams(&mut self, exited: &[ProcessKey]) -> Result<(), CaptureError> {
        if self.counted.rows || exited.is_empty() {
            return Ok(());
        }
        let exited = exited.iter().copied().collect();
        self.stream_rows()?.take(&exited, |_: gp_live_key, _| {})?;
        self.forget_graphs(&exited)?;
        self.release_ranges(&exited)
    }

    /// Launches of executable graphs, by process, with the number of their contents.
    pub(crate) fn exec_launches(
        &self,
        filter: ProcessFilter<'_>,
    ) -> Result<HashMap<ProcessKey, Vec<(u64, gp_exec_launches)>>, CaptureError> {
        let mut by_process: HashMap<_, Vec<_>> = HashMap::new();
        if self.counted.launch_rows() {
            let rows =
                hash_rows::<gp_context_key, gp_exec_launches>(&self.map(MapName::ExecLaunches)?, filter)?;
            for (key, row) in rows {
                by_process.entry(key.process()).or_default().push((key.id, row));
            }
        }
        Ok(by_process)
    }

    /// Removes the launches of executable graphs with these contents, and returns them.
    pub(crate) fn take_exec_launches(
        &self,
        process: ProcessKey,
        contents: u64,
    ) -> Result<Option<gp_exec_launches>, CaptureError> {
        let key = gp_context_key {
            instance: process.instance,
            id: contents,
            tgid: process.tgid.0,
            ..gp_context_key::default()
        };
        let map = self.map(MapName::ExecLaunches)?;
        let cannot = CaptureError::bpf("read the launches of graphs");
        let row = map.lookup(as_bytes(&key), MapFlags::ANY).map_err(cannot)?;
        if row.is_some() {
            // it may be gone: that is the same
            map.delete(as_bytes(&key)).ok();
        }
        Ok(row.map(|row| from_bytes(&row)))
    }

    fn forget_graphs(&self, exited: &HashSet<ProcessKey>) -> Result<(), CaptureError> {
        if self.counted.launches || self.counted.copies {
            for name in [MapName::Recorded, MapName::Graphs, MapName::Execs, MapName::Nodes] {
                remove_of::<gp_live_key>(&self.map(name)?, exited)?;
            }
            for name in [MapName::Captures, MapName::ExecLaunches] {
                remove_of::<gp_context_key>(&self.map(name)?, exited)?;
            }
        }
        Ok(())
    }

    /// Removes the address ranges that exited processes had allocated.
    fn release_ranges(&mut self, exited: &HashSet<ProcessKey>) -> Result<(), CaptureError> {
        if self.counted.copies {
            let ranges = map_of(&self.object, MapName::Ranges)?;
            self.sweeper.sweep(&ranges, exited.clone())?;
        }
        Ok(())
    }
}
