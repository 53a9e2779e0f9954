//! The last rows of exited processes.

use std::collections::HashSet;

use gpuprobe_event::counters::{CallCounts, FailureCounts, GpuOpRows, ProcessKey, ProcessMemory, SiteMemory};

use super::call_counts::sum;
use super::indexed_table::IndexedTable;
use super::map_io;
use super::memory_tables::{add_live, context_memory, process_memory};
use super::process_rows::HasProcess;
use crate::error::CaptureError;
use crate::wire::{from_bytes, gp_memory, gp_process_key};

/// The last rows of exited processes.
#[derive(Debug, Default)]
pub struct ExitedRows {
    /// Calls, a row per process and function.
    pub calls: Vec<CallCounts>,
    /// Failures, a row per process, function and error.
    pub failures: Vec<FailureCounts>,
    /// Memory, a row per process.
    pub memory: Vec<ProcessMemory>,
    /// GPU operations: launches, graphs, copies and gaps.
    pub gpu_ops: GpuOpRows,
    /// Memory, a row per process, site and GPU.
    pub sites: Vec<SiteMemory>,
    /// Processes that left entries in the tables of allocations.
    pub exited_with_live_memory: HashSet<ProcessKey>,
}

/// Removes the rows of exited processes from the tables, in one pass over each.
pub(crate) fn take_rows(
    counts: &IndexedTable<'_>,
    processes: &IndexedTable<'_>,
    contexts: &IndexedTable<'_>,
    exited: &HashSet<ProcessKey>,
) -> Result<ExitedRows, CaptureError> {
    let mut rows = ExitedRows::default();
    let cpu = map_io::cpu_value_bytes(&counts.rows);
    counts.take(exited, |key, values| rows.calls.push(sum(key, values.chunks_exact(cpu))))?;
    let (mut in_contexts, mut memory) = (Vec::new(), Vec::new());
    contexts.take(exited, |key, row| in_contexts.push(context_memory((key, from_bytes(row)))))?;
    processes.take(exited, |key: gp_process_key, row| {
        let row: gp_memory = from_bytes(row);
        if row.entries > 0 {
            rows.exited_with_live_memory.insert(key.process());
        }
        memory.push(process_memory((key, row)));
    })?;
    rows.memory = add_live(memory, &in_contexts);
    let has_live = |row: &&ProcessMemory| row.live.iter().any(|live| live.live_allocations > 0);
    rows.exited_with_live_memory.extend(rows.memory.iter().filter(has_live).map(|row| row.process));
    Ok(rows)
}
