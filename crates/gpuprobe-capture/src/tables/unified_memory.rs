//! Reads the counts of faults and migrations of unified memory.

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Moved, UnifiedTotals};
use libbpf_rs::Map;

use super::process_filter::{ProcessFilter, hash_rows};
use super::process_rows::HasProcess;
use crate::error::CaptureError;
use crate::wire::{gp_process_key, gp_unified, number};

pub(crate) fn unified(
    map: &Map<'_>,
    filter: ProcessFilter<'_>,
) -> Result<Vec<(ProcessKey, UnifiedTotals)>, CaptureError> {
    let row = |(key, row): (gp_process_key, gp_unified)| (key.process(), totals(&row));
    Ok(hash_rows(map, filter)?.into_iter().map(row).collect())
}

fn totals(row: &gp_unified) -> UnifiedTotals {
    let events = |event: u32| row.events[event as usize];
    let moved = |event: u32| Moved { migrations: events(event), bytes: row.bytes[event as usize] };
    UnifiedTotals {
        cpu_faults: events(number::UNIFIED_CPU_FAULT),
        gpu_faults: events(number::UNIFIED_GPU_FAULT),
        to_gpu: moved(number::UNIFIED_MOVED_TO_GPU),
        to_cpu: moved(number::UNIFIED_MOVED_TO_CPU),
        between_gpus: moved(number::UNIFIED_MOVED_BETWEEN_GPUS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_by_cause_and_direction() {
        let row = gp_unified { events: [1, 2, 3, 4, 5], bytes: [0, 0, 30, 40, 50] };
        let moved = |migrations, bytes| Moved { migrations, bytes };
        let expected = UnifiedTotals {
            cpu_faults: 1,
            gpu_faults: 2,
            to_gpu: moved(3, 30),
            to_cpu: moved(4, 40),
            between_gpus: moved(5, 50),
        };
        assert_eq!(totals(&row), expected);
    }
}
