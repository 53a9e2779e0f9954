//! Reads what the kernel side counts of launches, graphs, copies and gaps, and takes the rows of ended processes out.

use std::collections::HashSet;
use std::sync::Arc;

use gpuprobe_event::counters::{
    CopyCounts, CopyDirection, GapCounts, GapKind, GraphCounts, HostMemory, LaunchCounts, LongGap,
    ProcessKey, StreamGaps, WorkRows,
};
use gpuprobe_event::{Api, FunctionId};
use libbpf_rs::{Map, MapCore, MapFlags, Object};

use crate::batch::{self, READ, WRITE};
use crate::counters::{OfProcess, process_of, remove_of};
use crate::error::CaptureError;
use crate::object::{Capture, map_of};
use crate::wire::{
    Wire, as_bytes, from_bytes, gp_context_key, gp_copies, gp_copy_key, gp_gap, gp_graph_counts,
    gp_launch_key, gp_launches, gp_live_key, gp_process_key, gp_range_key, gp_stream,
};

/// The stream that stands for all streams of a process: no stream of its own.
const ALL_STREAMS: u64 = u64::MAX;

impl Capture {
    /// What every process launched; nothing where launches are not counted. Likewise for all of these.
    pub fn launches(&mut self) -> Result<Vec<LaunchCounts>, CaptureError> {
        self.launches_of(Of::Everybody)
    }

    /// What every process copied.
    pub fn copies(&self) -> Result<Vec<CopyCounts>, CaptureError> {
        copies(&self.map("copies")?, Of::Everybody)
    }

    /// What every process did with graphs.
    pub fn graphs(&self) -> Result<Vec<GraphCounts>, CaptureError> {
        graphs(&self.map("graph_counts")?, Of::Everybody)
    }

    /// When the streams of every process were given nothing to do.
    pub fn gaps(&self) -> Result<Vec<StreamGaps>, CaptureError> {
        gaps(&Numbered::streams(&self.object)?, Of::Everybody)
    }

    /// What a kernel is called, by what a process launches it with.
    pub fn kernel_name(&mut self, process: ProcessKey, handle: u64) -> Option<Arc<str>> {
        self.decoder.kernel(process, Api::Driver, handle)
    }

    fn launches_of(&mut self, of: Of<'_>) -> Result<Vec<LaunchCounts>, CaptureError> {
        let decoder = &mut self.decoder;
        let name = |process, handle| decoder.kernel(process, Api::Driver, handle);
        launches(&Numbered::launches(&self.object)?, of, name)
    }

    /// All of these; nothing of what is not counted.
    pub fn work(&mut self) -> Result<WorkRows, CaptureError> {
        self.work_of(Of::Everybody)
    }

    fn work_of(&mut self, of: Of<'_>) -> Result<WorkRows, CaptureError> {
        let mut rows = WorkRows::default();
        if self.counted.launches {
            rows.launches = self.launches_of(of)?;
        }
        if self.counted.copies {
            rows.copies = copies(&self.map("copies")?, of)?;
        }
        if self.counted.launches || self.counted.copies {
            rows.graphs = graphs(&self.map("graph_counts")?, of)?;
            rows.gaps = gaps(&Numbered::streams(&self.object)?, of)?;
        }
        Ok(rows)
    }

    /// Takes out the rows of processes that ended.
    pub(crate) fn take_work(&mut self, ended: &HashSet<ProcessKey>) -> Result<WorkRows, CaptureError> {
        let rows = self.work_of(Of::Ended(ended))?;
        if self.counted.launches || self.counted.copies {
            for name in ["recorded", "graphs", "execs", "nodes"] {
                remove_of::<gp_live_key>(&self.map(name)?, ended)?;
            }
            remove_of::<gp_context_key>(&self.map("captures")?, ended)?;
        }
        Ok(rows)
    }

    /// Takes out the addresses of what processes held that ended.
    pub(crate) fn release_ranges(&self, ended: &HashSet<ProcessKey>) -> Result<(), CaptureError> {
        if self.counted.copies {
            remove_of::<gp_range_key>(&self.map("ranges")?, ended)?;
        }
        Ok(())
    }
}

/// Whose rows are read.
#[derive(Clone, Copy, Debug)]
enum Of<'a> {
    Everybody,
    /// Of these, and then there are none any more.
    Ended(&'a HashSet<ProcessKey>),
}

impl Of<'_> {
    fn takes(self, process: ProcessKey) -> bool {
        match self {
            Self::Everybody => true,
            Self::Ended(ended) => ended.contains(&process),
        }
    }
}

/// A table whose rows have numbers: where the numbers are, the rows, and the numbers that may be given again.
#[derive(Debug)]
struct Numbered<'o> {
    numbers: Map<'o>,
    rows: Map<'o>,
    free: Map<'o>,
}

impl<'o> Numbered<'o> {
    fn launches(object: &'o Object) -> Result<Self, CaptureError> {
        Self::of(object, ["launch_rows", "launches", "free_launches"])
    }

    fn streams(object: &'o Object) -> Result<Self, CaptureError> {
        Self::of(object, ["stream_rows", "streams", "free_streams"])
    }

    fn of(object: &'o Object, [numbers, rows, free]: [&'static str; 3]) -> Result<Self, CaptureError> {
        Ok(Self {
            numbers: map_of(object, numbers)?,
            rows: map_of(object, rows)?,
            free: map_of(object, free)?,
        })
    }

    /// Hands over the rows with their keys.
    fn each<K: OfProcess, V: Wire>(
        &self,
        of: Of<'_>,
        mut then: impl FnMut(K, V),
    ) -> Result<(), CaptureError> {
        let entries = batch::entries::<K, u32>(&self.numbers)?;
        let mut over = Vec::new();
        for (key, number) in entries.into_iter().filter(|(key, _)| of.takes(key.process())) {
            let row =
                self.rows.lookup(&number.to_ne_bytes(), MapFlags::ANY).map_err(CaptureError::bpf(READ))?;
            then(key, from_bytes(&row.unwrap_or_default()));
            over.push((key, number));
        }
        if matches!(of, Of::Ended(_)) {
            self.free::<K, V>(&over)?;
        }
        Ok(())
    }

    /// Empties rows, and lets their numbers be given again.
    fn free<K: Wire, V: Wire>(&self, rows: &[(K, u32)]) -> Result<(), CaptureError> {
        let keys: Vec<u8> = rows.iter().flat_map(|(key, _)| as_bytes(key).to_vec()).collect();
        batch::delete_all(&self.numbers, &keys)?;
        for (_, number) in rows {
            let number = number.to_ne_bytes();
            self.rows
                .update(&number, as_bytes(&V::default()), MapFlags::ANY)
                .and_then(|()| self.free.update(&[], &number, MapFlags::ANY))
                .map_err(CaptureError::bpf(WRITE))?;
        }
        Ok(())
    }
}

impl OfProcess for gp_launch_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_copy_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_process_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl OfProcess for gp_range_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

/// Launches, with the names that are known.
fn launches(
    table: &Numbered<'_>,
    of: Of<'_>,
    mut name: impl FnMut(ProcessKey, u64) -> Option<Arc<str>>,
) -> Result<Vec<LaunchCounts>, CaptureError> {
    let mut all = Vec::new();
    table.each(of, |key: gp_launch_key, row: gp_launches| {
        // met when it was captured, and never launched
        if row.launches + row.errors == 0 {
            return;
        }
        let process = key.process();
        all.push(LaunchCounts {
            process,
            handle: key.handle,
            kernel: name(process, key.handle),
            stream: key.stream,
            launches: row.launches,
            errors: row.errors,
            threads: row.threads,
            total_ns: row.total_ns,
            grid: range(row.grid_least, row.grid_most),
            block: range(row.block_least, row.block_most),
            shared_most: row.shared_most,
            latency: row.latency,
        });
    })?;
    Ok(all)
}

/// Two packed dimensions: x in the low half, then y and z. A row that was never told any has 0.
fn range(least: u64, most: u64) -> Option<([u32; 3], [u32; 3])> {
    let unpacked = |n: u64| [n as u32, (n >> 32) as u32 & 0xffff, (n >> 48) as u32];
    (most != 0).then(|| (unpacked(least), unpacked(most)))
}

/// Gaps of streams that have any.
fn gaps(table: &Numbered<'_>, of: Of<'_>) -> Result<Vec<StreamGaps>, CaptureError> {
    let mut all = Vec::new();
    table.each(of, |key: gp_live_key, row: gp_stream| {
        let gaps = row.gaps.map(|g| GapCounts { gaps: g.gaps, total_ns: g.total_ns, lengths: g.lengths });
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

fn copies(map: &Map<'_>, of: Of<'_>) -> Result<Vec<CopyCounts>, CaptureError> {
    let row = |(key, row): (gp_copy_key, gp_copies)| CopyCounts {
        process: key.process(),
        direction: *CopyDirection::ALL.get(usize::from(key.kind)).unwrap_or(&CopyDirection::Unknown),
        is_async: key.is_async != 0,
        host: *HostMemory::ALL.get(usize::from(key.host)).unwrap_or(&HostMemory::Unknown),
        copies: row.copies,
        errors: row.errors,
        bytes: row.bytes,
        total_ns: row.total_ns,
        sizes: row.sizes,
    };
    Ok(plain(map, of)?.into_iter().map(row).collect())
}

/// The entries of a hash whose values are the rows.
fn plain<K: OfProcess, V: Wire>(map: &Map<'_>, of: Of<'_>) -> Result<Vec<(K, V)>, CaptureError> {
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

    #[test]
    fn dimensions_are_unpacked_and_none_are_none() {
        let packed = |x: u64, y: u64, z: u64| x | y << 32 | z << 48;
        assert_eq!(range(0, 0), None);
        let most = packed(0x7fff_ffff, 65535, 65535);
        assert_eq!(range(packed(1, 2, 3), most), Some(([1, 2, 3], [0x7fff_ffff, 65535, 65535])));
    }
}
