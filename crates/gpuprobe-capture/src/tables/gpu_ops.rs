//! Reads the counts of GPU operations: launches, graph launches, copies, gaps between them, and commands to the
//! NVIDIA kernel module.

use std::collections::HashMap;

use gpuprobe_event::counters::{
    CallCounts, CommandCounts, CommandTotals, CopyCounts, CopyDirection, CopyTotals, Dimensions, GapCounts,
    GapKind, GraphCounts, HostMemory, LATENCY_BUCKETS, LaunchCounts, LaunchTotals, LongGap, ProcessKey,
    StreamGaps,
};
use gpuprobe_event::driver::{CommandCode, DeviceKind, Version, command_name};
use gpuprobe_event::{DeviceTime, FunctionId};
use libbpf_rs::Map;

use super::indexed_table::IndexedTable;
use super::process_filter::{ProcessFilter, hash_rows};
use super::process_rows::HasProcess;
use crate::error::CaptureError;
use crate::wire::{
    from_bytes, gp_command, gp_command_key, gp_copies, gp_copy_key, gp_gap, gp_graph_counts, gp_launch_key,
    gp_launches, gp_live_key, gp_process_key, gp_stream,
};

/// The stream number that stands for all streams of a process.
const ALL_STREAMS: u64 = u64::MAX;

/// Launches, and the calls that made them.
#[derive(Debug, Default)]
pub(crate) struct Launched {
    /// By process, CUDA kernel and stream.
    pub(crate) rows: HashMap<(ProcessKey, u64, u64), LaunchCounts>,
    pub(crate) calls: HashMap<(ProcessKey, FunctionId), CallCounts>,
}

impl Launched {
    /// Adds a row of the BPF table, which has one row for each function.
    pub(crate) fn add(&mut self, key: &gp_launch_key, row: gp_launches) {
        let calls: u64 = row.latency.iter().sum();
        // created by a capture, and never launched
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
                // a row that changes while it is read may have the error before the call
                launches: calls.saturating_sub(row.errors),
                errors: row.errors,
                threads: row.threads,
                total_ns: row.total_ns,
                grid: range(row.grid_least, row.grid_most),
                block: range(row.block_least, row.block_most),
                shared_most: row.shared_most,
                unprobed_returns: row.unprobed_returns,
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
            driver: DeviceTime::default(),
            latency: [0; LATENCY_BUCKETS],
        };
        let sum = self.calls.entry((process, function)).or_insert_with(none);
        sum.calls += calls;
        sum.errors += row.errors;
        sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
        sum.latency.iter_mut().zip(row.latency).for_each(|(sum, n)| *sum += n);
    }
}

/// Unpacks the smallest and largest dimensions: x in the low half, then y and z. A row without dimensions has 0.
fn range(least: u64, most: u64) -> Dimensions {
    let unpacked = |n: u64| [n as u32, (n >> 32) as u32 & 0xffff, (n >> 48) as u32];
    (most != 0).then(|| (unpacked(least), unpacked(most)))
}

/// Gaps of streams, without streams that have none.
pub(crate) fn gaps(
    table: &IndexedTable<'_>,
    filter: ProcessFilter<'_>,
) -> Result<Vec<StreamGaps>, CaptureError> {
    let mut all = Vec::new();
    filter.each(table, |key: gp_live_key, row| {
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

pub(crate) fn graphs(map: &Map<'_>, filter: ProcessFilter<'_>) -> Result<Vec<GraphCounts>, CaptureError> {
    let row = |(key, row): (gp_process_key, gp_graph_counts)| GraphCounts {
        process: key.process(),
        launches: row.launches,
        errors: row.errors,
        derived: row.derived,
        unknown: row.unknown,
        captured: row.captured,
        disabled: row.disabled,
        conditional: row.conditional,
    };
    Ok(hash_rows(map, filter)?.into_iter().map(row).collect())
}

pub(crate) fn commands(
    map: &Map<'_>,
    filter: ProcessFilter<'_>,
    version: Version,
) -> Result<Vec<CommandCounts>, CaptureError> {
    let row = |(key, row): (gp_command_key, gp_command)| {
        let device = u8::try_from(key.device).map_or(DeviceKind::Other, DeviceKind::from_number);
        let code = CommandCode { device, request: key.request, detail: key.detail };
        let totals = CommandTotals { calls: row.calls, failures: row.failures, total_ns: row.total_ns };
        CommandCounts { process: key.process(), code, command: command_name(version, code).text, totals }
    };
    Ok(hash_rows(map, filter)?.into_iter().map(row).collect())
}

/// Copies, with the lanes of each process added up.
pub(crate) fn copies(
    table: &IndexedTable<'_>,
    filter: ProcessFilter<'_>,
) -> Result<Vec<CopyCounts>, CaptureError> {
    let mut copied = Copied::default();
    filter.each(table, |key: gp_copy_key, row| copied.add(&key, &from_bytes(row)))?;
    Ok(copied.0.into_values().collect())
}

/// Copies by process, and by the kind, host memory and mode of the BPF key.
#[derive(Debug, Default)]
struct Copied(HashMap<(ProcessKey, [u8; 3]), CopyCounts>);

impl Copied {
    /// Adds a row of the BPF table, which has one row for each lane.
    fn add(&mut self, key: &gp_copy_key, row: &gp_copies) {
        let none = || CopyCounts {
            process: key.process(),
            totals: CopyTotals {
                direction: *CopyDirection::ALL.get(usize::from(key.kind)).unwrap_or(&CopyDirection::Unknown),
                is_async: key.is_async != 0,
                host: *HostMemory::ALL.get(usize::from(key.host)).unwrap_or(&HostMemory::Unknown),
                copies: 0,
                errors: 0,
                bytes: 0,
                total_ns: 0,
                sizes: [0; LATENCY_BUCKETS],
            },
        };
        let sort = [key.kind, key.host, key.is_async];
        let sum = &mut self.0.entry((key.process(), sort)).or_insert_with(none).totals;
        sum.copies += row.sizes.iter().sum::<u64>();
        sum.errors += row.errors;
        // each lane may have reached the largest sum that BPF adds to
        sum.bytes = sum.bytes.saturating_add(row.bytes);
        sum.total_ns = sum.total_ns.saturating_add(row.total_ns);
        sum.sizes.iter_mut().zip(row.sizes).for_each(|(sum, n)| *sum += n);
    }
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
    fn rows_of_two_functions_add_up_by_kernel_and_stream_and_by_function() {
        let mut launched = Launched::default();
        let one = 1 | 1 << 32 | 1 << 48;
        launched.add(&key(7, 11), row(2, 1, one));
        launched.add(&key(7, 12), row(3, 0, one + 3));
        launched.add(&key(8, 11), row(4, 0, one));
        // the call that launches a list of kernels is counted elsewhere
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
    fn lanes_of_one_kind_of_copies_add_up() {
        let mut copied = Copied::default();
        let key = |tgid, host, lane| gp_copy_key { instance: 1, tgid, kind: 1, is_async: 1, host, lane };
        let mut row = gp_copies { errors: 1, bytes: 1 << 63, total_ns: 10, ..Default::default() };
        row.sizes[4] = 3;
        for (tgid, host, lane) in [(5, 1, 0), (5, 1, 16), (5, 2, 1), (6, 1, 1)] {
            copied.add(&key(tgid, host, lane), &row);
        }
        let mut rows: Vec<_> = copied.0.into_values().collect();
        rows.sort_by_key(|row| (row.process, row.totals.host));
        let counts: Vec<_> = rows
            .iter()
            .map(|row| (row.process.tgid.0, row.totals.host, row.totals.copies, row.totals.errors))
            .collect();
        let (pinned, pageable) = (HostMemory::Pinned, HostMemory::Pageable);
        assert_eq!(counts, [(5, pinned, 6, 2), (5, pageable, 3, 1), (6, pinned, 3, 1)]);
        let both = &rows[0].totals;
        assert_eq!((both.bytes, both.total_ns, both.sizes[4]), (u64::MAX, 20, 6));
        assert_eq!((both.direction, both.is_async), (CopyDirection::HostToDevice, true));
    }

    #[test]
    fn dimensions_are_unpacked() {
        let packed = |x: u64, y: u64, z: u64| x | y << 32 | z << 48;
        assert_eq!(range(0, 0), None);
        let most = packed(0x7fff_ffff, 65535, 65535);
        assert_eq!(range(packed(1, 2, 3), most), Some(([1, 2, 3], [0x7fff_ffff, 65535, 65535])));
    }
}
