//! Reads what the kernel side counts of launches, graphs, copies, gaps and commands of the driver, and takes the rows of ended processes out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::counters::{
    CallCounts, CommandCounts, CommandTotals, CopyCounts, CopyDirection, CopyTotals, Dimensions, GapCounts,
    GapKind, GraphCounts, HostMemory, LATENCY_BUCKETS, LaunchCounts, LaunchTotals, LongGap, ProcessKey,
    StreamGaps, WorkRows,
};
use gpuprobe_event::driver::{CommandCode, DeviceKind, Version, command_name};
use gpuprobe_event::{Api, DriverTime, FunctionId};
use libbpf_rs::Map;

use crate::batch;
use crate::counters::{OfProcess, process_of, remove_of};
use crate::error::CaptureError;
use crate::handles::map_of;
use crate::numbered::Numbered;
use crate::object::Capture;
use crate::unified::unified;
use crate::wire::{
    MapName, Wire, as_bytes, from_bytes, gp_command, gp_command_key, gp_context_key, gp_copies, gp_copy_key,
    gp_gap, gp_graph_counts, gp_launch_key, gp_launches, gp_live_key, gp_process_key, gp_range_key,
    gp_stream,
};

/// The stream that stands for all streams of a process: no stream of its own.
const ALL_STREAMS: u64 = u64::MAX;

impl Capture {
    /// What a kernel is called, by what a process launches it with.
    fn kernel_name(&mut self, process: ProcessKey, handle: u64) -> Option<Arc<str>> {
        self.decoder.kernel(process, Api::Driver, handle)
    }

    fn streams(&self) -> Result<Numbered<'_>, CaptureError> {
        self.numbered(MapName::Streams, MapName::StreamRows, MapName::UnusedStreams)
    }

    fn launches_of(&mut self, of: Of<'_>) -> Result<Launched, CaptureError> {
        let mut launched = Launched::default();
        let table = self.numbered(MapName::Launches, MapName::LaunchRows, MapName::UnusedLaunches)?;
        of.each(&table, |key: gp_launch_key, row| launched.add(&key, from_bytes(row)))?;
        for row in launched.rows.values_mut() {
            row.kernel = self.kernel_name(row.process, row.handle);
        }
        Ok(launched)
    }

    /// What every process launched, and nothing else.
    pub fn launches(&mut self) -> Result<Vec<LaunchCounts>, CaptureError> {
        if self.counted.in_rows() {
            Ok(self.launches_of(Of::Everybody)?.rows.into_values().collect())
        } else {
            Ok(Vec::new())
        }
    }

    /// What every process launched, copied and waited for; nothing of what is not counted.
    pub fn work(&mut self) -> Result<WorkRows, CaptureError> {
        self.work_of(Of::Everybody)
    }

    fn work_of(&mut self, of: Of<'_>) -> Result<WorkRows, CaptureError> {
        let mut rows = WorkRows::default();
        if !self.counted.rows {
            return Ok(rows);
        }
        if self.counted.launches {
            let Launched { rows: launches, calls } = self.launches_of(of)?;
            rows.launches = launches.into_values().collect();
            rows.calls = calls.into_values().collect();
        }
        if self.counted.copies {
            rows.copies = copies(&self.map(MapName::Copies)?, of)?;
        }
        if self.counted.launches || self.counted.copies {
            rows.graphs = graphs(&self.map(MapName::GraphCounts)?, of)?;
            rows.gaps = gaps(&self.streams()?, of)?;
        }
        if self.counted.driver {
            rows.commands = commands(&self.map(MapName::Commands)?, of, self.decoder.version)?;
            rows.unified = unified(&self.map(MapName::Unified)?, of)?;
        }
        Ok(rows)
    }

    /// Takes out the rows of processes that ended.
    pub(crate) fn take_work(&mut self, ended: &HashSet<ProcessKey>) -> Result<WorkRows, CaptureError> {
        let rows = self.work_of(Of::Ended(ended))?;
        self.forget_graphs(ended)?;
        Ok(rows)
    }

    /// Takes out what is known of the streams and graphs of processes that ended, where no rows are read of them.
    pub(crate) fn forget_streams(&mut self, ended: &[ProcessKey]) -> Result<(), CaptureError> {
        if self.counted.rows || ended.is_empty() {
            return Ok(());
        }
        let ended = ended.iter().copied().collect();
        self.streams()?.take(&ended, |_: gp_live_key, _| {})?;
        self.forget_graphs(&ended)?;
        self.release_ranges(&ended)
    }

    fn forget_graphs(&self, ended: &HashSet<ProcessKey>) -> Result<(), CaptureError> {
        if self.counted.launches || self.counted.copies {
            for name in [MapName::Recorded, MapName::Graphs, MapName::Execs, MapName::Nodes] {
                remove_of::<gp_live_key>(&self.map(name)?, ended)?;
            }
            remove_of::<gp_context_key>(&self.map(MapName::Captures)?, ended)?;
        }
        Ok(())
    }

    /// Takes out the addresses of what processes held that ended.
    pub(crate) fn release_ranges(&mut self, ended: &HashSet<ProcessKey>) -> Result<(), CaptureError> {
        if self.counted.copies {
            let ranges = map_of(&self.object, MapName::Ranges)?;
            self.sweeper.sweep(&ranges, ended.clone())?;
        }
        Ok(())
    }
}

/// Whose rows are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of<'a> {
    Everybody,
    /// Of these, and then there are none any more.
    Ended(&'a HashSet<ProcessKey>),
}

impl Of<'_> {
    /// Hands over the rows of a table whose rows have numbers.
    fn each<K: OfProcess>(
        self,
        table: &Numbered<'_>,
        then: impl FnMut(K, &[u8]),
    ) -> Result<(), CaptureError> {
        match self {
            Self::Everybody => table.each(then),
            Self::Ended(ended) => table.take(ended, then),
        }
    }

    fn takes(self, process: ProcessKey) -> bool {
        match self {
            Self::Everybody => true,
            Self::Ended(ended) => ended.contains(&process),
        }
    }
}

impl OfProcess for gp_launch_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_command_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_copy_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_range_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

/// Launches, and the calls that made them.
#[derive(Debug, Default)]
struct Launched {
    /// By process, kernel and stream.
    rows: HashMap<(ProcessKey, u64, u64), LaunchCounts>,
    calls: HashMap<(ProcessKey, FunctionId), CallCounts>,
}

impl Launched {
    /// Takes a row of the kernel's, which is of one function.
    fn add(&mut self, key: &gp_launch_key, row: gp_launches) {
        let calls: u64 = row.latency.iter().sum();
        // met when it was captured, and never launched
        if calls == 0 {
            return;
        }
        if let Some(function) = key.counted_as.checked_sub(1).map(FunctionId) {
            self.add_calls(key.process(), function, calls, &row);
        }
        let more = LaunchCounts {
            process: key.process(),
            handle: key.handle,
            kernel: None,
            stream: key.stream,
            totals: LaunchTotals {
                // a row that is counted in meanwhile may have its error before its call
                launches: calls.saturating_sub(row.errors),
                errors: row.errors,
                threads: row.threads,
                total_ns: row.total_ns,
                grid: range(row.grid_least, row.grid_most),
                block: range(row.block_least, row.block_most),
                shared_most: row.shared_most,
                latency: row.latency,
            },
        };
        self.rows
            .entry((more.process, more.handle, more.stream))
            .and_modify(|sum| sum.totals.add(&more.totals))
            .or_insert(more);
    }

    fn add_calls(&mut self, process: ProcessKey, function: FunctionId, calls: u64, row: &gp_launches) {
        let none = || CallCounts {
            process,
            function,
            calls: 0,
            errors: 0,
            bytes: 0,
            total_ns: 0,
            driver: DriverTime::default(),
            latency: [0; LATENCY_BUCKETS],
        };
        let sum = self.calls.entry((process, function)).or_insert_with(none);
        sum.calls += calls;
        sum.errors += row.errors;
        sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
        sum.latency.iter_mut().zip(row.latency).for_each(|(sum, n)| *sum += n);
    }
}

/// Two packed dimensions: x in the low half, then y and z. A row that was never told any has 0.
fn range(least: u64, most: u64) -> Dimensions {
    let unpacked = |n: u64| [n as u32, (n >> 32) as u32 & 0xffff, (n >> 48) as u32];
    (most != 0).then(|| (unpacked(least), unpacked(most)))
}

/// Gaps of streams that have any.
fn gaps(table: &Numbered<'_>, of: Of<'_>) -> Result<Vec<StreamGaps>, CaptureError> {
    let mut all = Vec::new();
    of.each(table, |key: gp_live_key, row| {
        let row: gp_stream = from_bytes(row);
        let gaps = row.gaps.map(|g| GapCounts {
            gaps: g.lengths.iter().sum(),
            total_ns: g.total_ns,
            lengths: g.lengths,
        });
        if key.pointer != ALL_STREAMS && gaps.iter().any(|g| g.gaps > 0) {
            let mut longest: Vec<_> = row.longest.iter().filter(|gap| gap.ns > 0).map(long_gap).collect();
            longest.sort_by_key(|gap| std::cmp::Reverse(gap.ns));
            all.push(StreamGaps { process: key.process(), stream: key.pointer, gaps, longest });
        }
    })?;
    Ok(all)
}

fn long_gap(gap: &gp_gap) -> LongGap {
    LongGap {
        ns: gap.ns,
        since_ns: gap.since_ns,
        kind: GapKind::ALL.get(gap.kind as usize).copied().unwrap_or(GapKind::AfterLaunch),
        meanwhile: gap.meanwhile.checked_sub(1).map(FunctionId),
    }
}

fn graphs(map: &Map<'_>, of: Of<'_>) -> Result<Vec<GraphCounts>, CaptureError> {
    let row = |(key, row): (gp_process_key, gp_graph_counts)| GraphCounts {
        process: key.process(),
        launches: row.launches,
        errors: row.errors,
        derived: row.derived,
        unknown: row.unknown,
        captured: row.captured,
    };
    Ok(plain(map, of)?.into_iter().map(row).collect())
}

fn commands(map: &Map<'_>, of: Of<'_>, version: Version) -> Result<Vec<CommandCounts>, CaptureError> {
    let row = |(key, row): (gp_command_key, gp_command)| {
        let device = u8::try_from(key.device).map_or(DeviceKind::Other, DeviceKind::from_number);
        let code = CommandCode { device, request: key.request, detail: key.detail };
        let totals = CommandTotals { calls: row.calls, failures: row.failures, total_ns: row.total_ns };
        CommandCounts { process: key.process(), code, command: command_name(version, code).text, totals }
    };
    Ok(plain(map, of)?.into_iter().map(row).collect())
}

fn copies(map: &Map<'_>, of: Of<'_>) -> Result<Vec<CopyCounts>, CaptureError> {
    let row = |(key, row): (gp_copy_key, gp_copies)| CopyCounts {
        process: key.process(),
        totals: CopyTotals {
            direction: *CopyDirection::ALL.get(usize::from(key.kind)).unwrap_or(&CopyDirection::Unknown),
            is_async: key.is_async != 0,
            host: *HostMemory::ALL.get(usize::from(key.host)).unwrap_or(&HostMemory::Unknown),
            copies: row.copies,
            errors: row.errors,
            bytes: row.bytes,
            total_ns: row.total_ns,
            sizes: row.sizes,
        },
    };
    Ok(plain(map, of)?.into_iter().map(row).collect())
}

/// The entries of a hash whose values are the rows.
pub(crate) fn plain<K: OfProcess, V: Wire>(map: &Map<'_>, of: Of<'_>) -> Result<Vec<(K, V)>, CaptureError> {
    let mut entries = batch::entries::<K, V>(map)?;
    entries.retain(|(key, _)| of.takes(key.process()));
    if matches!(of, Of::Ended(_)) {
        let keys: Vec<u8> = entries.iter().flat_map(|(key, _)| as_bytes(key).to_vec()).collect();
        batch::delete_all(map, &keys)?;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stream: u64, counted_as: u32) -> gp_launch_key {
        gp_launch_key { instance: 1, handle: 0x1000, stream, tgid: 5, counted_as }
    }

    fn row(launches: u64, errors: u64, grid: u64) -> gp_launches {
        let mut row =
            gp_launches { errors, total_ns: 10, grid_least: grid, grid_most: grid, ..Default::default() };
        row.latency[3] = launches + errors;
        row
    }

    #[test]
    fn rows_of_two_functions_are_one_kernel_on_a_stream_and_calls_of_each() {
        let mut launched = Launched::default();
        let one = 1 | 1 << 32 | 1 << 48;
        launched.add(&key(7, 11), row(2, 1, one));
        launched.add(&key(7, 12), row(3, 0, one + 3));
        launched.add(&key(8, 11), row(4, 0, one));
        // a list of kernels is launched by a call that is counted elsewhere
        launched.add(&key(8, 0), row(5, 0, one));
        launched.add(&key(9, 11), row(0, 0, 0));
        let mut rows: Vec<_> = launched.rows.into_values().collect();
        rows.sort_by_key(|row| row.stream);
        let counts: Vec<_> =
            rows.iter().map(|row| (row.stream, row.totals.launches, row.totals.errors)).collect();
        assert_eq!(counts, [(7, 5, 1), (8, 9, 0)]);
        assert_eq!(rows[0].totals.grid, Some(([1, 1, 1], [4, 1, 1])));
        let mut calls: Vec<_> = launched.calls.into_values().collect();
        calls.sort_by_key(|row| row.function);
        let counts: Vec<_> = calls.iter().map(|row| (row.function.0, row.calls, row.errors)).collect();
        assert_eq!(counts, [(10, 7, 1), (11, 3, 0)]);
        assert_eq!((calls[0].total_ns, calls[0].latency[3]), (20, 7));
    }

    #[test]
    fn dimensions_are_unpacked_and_none_are_none() {
        let packed = |x: u64, y: u64, z: u64| x | y << 32 | z << 48;
        assert_eq!(range(0, 0), None);
        let most = packed(0x7fff_ffff, 65535, 65535);
        assert_eq!(range(packed(1, 2, 3), most), Some(([1, 2, 3], [0x7fff_ffff, 65535, 65535])));
    }
}
