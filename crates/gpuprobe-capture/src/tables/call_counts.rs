//! Reads the counts of calls, failures and losses.

use gpuprobe_event::counters::{CallCounts, FailureCounts, LATENCY_BUCKETS};
use gpuprobe_event::{DeviceTime, FunctionId, LossCause, Losses};
use libbpf_rs::{Map, MapCore, MapFlags};

use super::indexed_table::IndexedTable;
use super::map_io::{self, READ};
use super::process_rows::{HasProcess, process_of};
use crate::error::CaptureError;
use crate::wire::{from_bytes, gp_count, gp_count_key, gp_failure_key, gp_memory, gp_process_key};

pub(crate) fn losses(map: &Map<'_>) -> Result<Losses, CaptureError> {
    let mut losses = Losses::default();
    for index in 0..map.max_entries() {
        let Some(cause) = LossCause::from_index(index as usize) else { break };
        let values = map
            .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf(READ))?
            .unwrap_or_default();
        for value in values {
            losses.add(cause, value.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)));
        }
    }
    Ok(losses)
}

pub(crate) fn counts(counts: &IndexedTable<'_>) -> Result<Vec<CallCounts>, CaptureError> {
    let mut all = Vec::new();
    let cpu = map_io::cpu_value_bytes(&counts.rows);
    counts.each(|key, values| all.push(sum(key, values.chunks_exact(cpu))))?;
    Ok(all)
}

pub(crate) fn sum<'a>(key: gp_count_key, cpus: impl Iterator<Item = &'a [u8]>) -> CallCounts {
    let mut sum = CallCounts {
        process: process_of(key.tgid, key.instance),
        function: FunctionId(key.function),
        calls: 0,
        errors: 0,
        bytes: 0,
        total_ns: 0,
        driver: DeviceTime::default(),
        latency: [0; LATENCY_BUCKETS],
    };
    for value in cpus {
        let value: gp_count = from_bytes(value);
        sum.calls += value.latency.iter().sum::<u64>() + value.entry_count;
        sum.errors += value.errors;
        sum.bytes += value.bytes;
        sum.total_ns += value.total_ns;
        sum.driver.calls += value.entered;
        sum.driver.ns += value.device_ns;
        for (bucket, count) in sum.latency.iter_mut().zip(value.latency) {
            *bucket += count;
        }
    }
    sum
}

/// Failures by function and error, and those of each process for which that table had no room.
pub(crate) fn failures(
    map: &Map<'_>,
    processes: &IndexedTable<'_>,
) -> Result<Vec<FailureCounts>, CaptureError> {
    let mut rows: Vec<_> = map_io::entries(map)?.into_iter().map(failure).collect();
    let unnamed = |(key, row): (gp_process_key, gp_memory)| FailureCounts {
        process: key.process(),
        failure: None,
        count: row.unnamed_failures,
    };
    rows.extend(processes.entries()?.into_iter().map(unnamed).filter(|row| row.count > 0));
    Ok(rows)
}

fn failure((key, count): (gp_failure_key, u64)) -> FailureCounts {
    FailureCounts {
        process: key.process(),
        failure: Some((FunctionId(key.function), i64::from(key.error as i32))),
        count,
    }
}
