//! Faults and migrations of unified memory, which the kernel side counts by process.

use std::collections::BTreeMap;
use std::io;

use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Moved, UnifiedTotals, UnifiedUse};
use libbpf_rs::Map;

use crate::alone::Alone;
use crate::counters::OfProcess;
use crate::error::CaptureError;
use crate::functions::KernelTier;
use crate::object::Capture;
use crate::wire::{MapName, ProgramName, gp_process_key, gp_unified, number};
use crate::work::{Of, plain};

/// The function by which the driver tells its own parts of each.
const NOTIFY: Alone = Alone {
    function: "uvm_perf_event_notify",
    traced: ProgramName::UnifiedTraced,
    probed: ProgramName::UnifiedProbed,
};

impl Capture {
    /// Counts faults and migrations of unified memory; `None` where the driver has none, or cannot be asked.
    pub fn attach_unified(&mut self) -> Option<io::Result<KernelTier>> {
        let made = NOTIFY.attach(&self.object, self.forced)?;
        Some(made.map(|(link, tier)| {
            self.functions.push(link);
            tier
        }))
    }

    /// What became of the unified memory of every process, also of those that have ended; nothing where that is not
    /// counted.
    pub fn unified(&self) -> Result<Vec<UnifiedUse>, CaptureError> {
        if !self.counted.driver {
            return Ok(Vec::new());
        }
        let mut by_pid: BTreeMap<u32, UnifiedTotals> = BTreeMap::new();
        for (key, totals) in unified(&self.map(MapName::Unified)?, Of::Everybody)? {
            by_pid.entry(key.tgid.0).or_default().add(&totals);
        }
        Ok(by_pid.into_iter().map(|(pid, totals)| UnifiedUse { pid, totals }).collect())
    }
}

pub(crate) fn unified(map: &Map<'_>, of: Of<'_>) -> Result<Vec<(ProcessKey, UnifiedTotals)>, CaptureError> {
    let row = |(key, row): (gp_process_key, gp_unified)| (key.process(), totals(&row));
    Ok(plain(map, of)?.into_iter().map(row).collect())
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
    fn counts_are_told_by_who_touched_memory_and_where_it_went() {
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
