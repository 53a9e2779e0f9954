//! The calls that the probes of a measurement saw, to be compared with the calls made.

use gpuprobe_event::counters::{CallCounts, CopyDirection, GpuOpRows, HostMemory};
use gpuprobe_event::{LossCause, catalogue};

use super::workload::Workload;
use crate::capture::Capture;
use crate::error::CaptureError;

/// Bytes of each memory copy of the program of `bench`.
const COPY_BYTES: u64 = 4096;

/// What a capture has counted, and how many calls it has streamed.
#[derive(Debug)]
pub struct SeenCalls<'a> {
    capture: &'a Capture,
    counts: Vec<CallCounts>,
    gpu_ops: GpuOpRows,
    /// Whole calls that were received, or did not fit into the ring buffer: those were seen too.
    streamed: u64,
}

impl<'a> SeenCalls<'a> {
    /// Reads the counters. `received` is the number of whole calls that were taken out of the ring buffer.
    pub fn read(capture: &'a mut Capture, received: u64) -> Result<Self, CaptureError> {
        let gpu_ops = capture.gpu_ops()?;
        let streamed = received + capture.losses()?.get(LossCause::RingFull);
        Ok(Self { counts: capture.counts()?, gpu_ops, streamed, capture })
    }

    /// Every counter that must equal the number of calls of each function; empty if gpuprobe has no probes in them.
    pub fn counters(&self, workload: Workload) -> Result<Vec<u64>, CaptureError> {
        if matches!(workload, Workload::Stream | Workload::StreamedLaunches) {
            return Ok(vec![self.streamed]);
        }
        let mut seen: Vec<_> = workload.functions().iter().map(|name| self.counted(name)).collect();
        match workload {
            Workload::Memory => {
                let (rows, _) = self.capture.memory()?;
                seen.push(rows.iter().map(|row| row.allocations).sum());
                seen.push(rows.iter().map(|row| row.frees).sum());
            }
            Workload::Launches => {
                seen.push(self.gpu_ops.launches.iter().map(|row| row.totals.launches).sum());
            }
            Workload::Copies if self.capture.counts_copies() => {
                let from_pinned = self.gpu_ops.copies.iter().map(|row| &row.totals).filter(|totals| {
                    totals.direction == CopyDirection::HostToDevice && totals.host == HostMemory::Pinned
                });
                seen.push(from_pinned.map(|totals| totals.copies).sum());
            }
            Workload::Copies => {
                let bytes: u64 = self.counts.iter().map(|row| row.bytes).sum();
                seen.push(bytes / COPY_BYTES);
            }
            Workload::Count | Workload::EntryCount | Workload::Other => {}
            Workload::Stream | Workload::StreamedLaunches => {}
        }
        Ok(seen)
    }

    /// All calls of these workloads, whether they were counted or streamed.
    pub fn total(&self, workloads: &[Workload]) -> u64 {
        let functions = workloads.iter().flat_map(|workload| workload.functions());
        functions.map(|name| self.counted(name)).sum::<u64>() + self.streamed
    }

    fn counted(&self, name: &str) -> u64 {
        let rows = self.counts.iter().chain(&self.gpu_ops.calls);
        let is_it = |row: &&CallCounts| catalogue().get(row.function).is_some_and(|f| f.name == name);
        rows.filter(is_it).map(|row| row.calls).sum()
    }
}
