//! Collects the counters of memory of a process.

use gpuprobe_analysis::snapshot::MemoryCounts;

use super::process_totals::ProcessTotals;
use super::samples::Samples;

fn memory(totals: &ProcessTotals<'_>, samples: &mut Samples, value: impl Fn(&MemoryCounts) -> u64) {
    totals.memory.iter().for_each(|memory| samples.number(&[], value(memory)));
}

pub(super) fn allocated(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.allocated_bytes);
}

pub(super) fn freed(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.freed_bytes);
}

pub(super) fn freed_with_context_allocations(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.freed_with_context_allocations);
}

pub(super) fn freed_with_context_bytes(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.freed_with_context_bytes);
}

pub(super) fn replaced(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.replaced);
}

pub(super) fn out_of_memory(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    if totals.has_tensors {
        memory(totals, samples, |memory| memory.out_of_memory);
    }
}

pub(super) fn unknown_frees(totals: &ProcessTotals<'_>, samples: &mut Samples) {
    memory(totals, samples, |memory| memory.unknown_frees);
}
