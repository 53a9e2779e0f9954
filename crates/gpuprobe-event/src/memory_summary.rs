//! The memory totals of a recording.

use serde::{Deserialize, Serialize};

use crate::catalogue::Space;
use crate::counters::ProcessMemory;
use crate::effect::MemoryAmount;

/// A number of allocations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    pub count: u64,
    /// Their total bytes.
    pub bytes: u64,
}

impl Total {
    /// The sum. Sizes come from the process, so it saturates.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self { count: self.count.saturating_add(more.count), bytes: self.bytes.saturating_add(more.bytes) }
    }

    /// One more allocation.
    pub fn add(&mut self, bytes: u64) {
        *self = self.plus(Self { count: 1, bytes });
    }
}

impl From<&MemoryAmount> for Total {
    fn from(amount: &MemoryAmount) -> Self {
        Self { count: amount.allocations, bytes: amount.bytes }
    }
}

/// Memory totals, counted as in BPF.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemorySummary {
    /// Allocations that succeeded.
    pub allocated: Total,
    /// Allocations that failed, without those that another allocation made.
    pub failed_allocations: u64,
    /// Allocations that a call freed. One call may free several.
    pub freed: Total,
    /// Allocations whose free was not observed: their addresses were allocated again.
    pub replaced: Total,
    /// Frees that failed, without those that another free made.
    pub failed_frees: u64,
    /// Frees of unknown addresses, such as memory allocated before the recording. Freeing NULL is not counted.
    pub unknown_frees: u64,
    /// Memory that was freed with its context.
    #[serde(alias = "freed_by_context")]
    pub freed_with_context: Total,
    /// Memory that was live when its process exited or executed another program, by kind: the NVIDIA driver frees it.
    pub freed_by_exit: Vec<MemoryAmount>,
    /// The most live bytes of one process.
    pub peak_bytes: u64,
    /// Live when the recording ended, by kind.
    pub live: Vec<MemoryAmount>,
}

impl MemorySummary {
    /// Adds the table row of one process, which may have exited.
    pub fn add_process(&mut self, row: &ProcessMemory, has_exited: bool) {
        let total = |count, bytes| Total { count, bytes };
        self.allocated = self.allocated.plus(total(row.allocations, row.allocated_bytes));
        self.failed_allocations += row.failed_allocations;
        self.freed = self.freed.plus(total(row.frees, row.freed_bytes));
        self.replaced = self.replaced.plus(total(row.replaced, row.replaced_bytes));
        self.failed_frees += row.failed_frees;
        self.unknown_frees += row.unknown_frees;
        self.freed_with_context = self
            .freed_with_context
            .plus(total(row.freed_with_context_allocations, row.freed_with_context_bytes));
        self.peak_bytes = self.peak_bytes.max(row.peak_bytes);
        let kinds = if has_exited { &mut self.freed_by_exit } else { &mut self.live };
        for (kind, live) in
            Space::ALL.into_iter().zip(&row.live).filter(|(_, live)| live.live_allocations > 0)
        {
            let amount = match kinds.iter_mut().find(|amount| amount.kind == kind) {
                Some(amount) => amount,
                None => {
                    kinds.push(MemoryAmount { kind, ..MemoryAmount::default() });
                    let last = kinds.len() - 1;
                    &mut kinds[last]
                }
            };
            amount.allocations = amount.allocations.saturating_add(live.live_allocations);
            amount.bytes = amount.bytes.saturating_add(live.live_bytes);
        }
        kinds.sort_by_key(|amount| (std::cmp::Reverse(amount.bytes), amount.kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{LiveTotals, ProcessKey};
    use crate::ids::Tgid;

    fn row(device: u64, managed: u64) -> ProcessMemory {
        let mut live = [LiveTotals::default(); Space::ALL.len()];
        live[Space::Device as usize] = LiveTotals { live_bytes: device, live_allocations: 1 };
        live[Space::Managed as usize] = LiveTotals { live_bytes: managed, live_allocations: 1 };
        ProcessMemory {
            process: ProcessKey { tgid: Tgid(1), instance: 1 },
            live,
            allocated_bytes: 1000,
            freed_bytes: 0,
            allocations: 10,
            failed_allocations: 1,
            frees: 0,
            failed_frees: 0,
            unknown_frees: 0,
            replaced: 1,
            replaced_bytes: 7,
            freed_with_context_allocations: 0,
            freed_with_context_bytes: 0,
            peak_bytes: device + managed,
            out_of_memory: 0,
        }
    }

    #[test]
    fn totals_are_sums_and_the_peak_is_a_maximum() {
        let mut sum = MemorySummary::default();
        sum.add_process(&row(100, 300), true);
        sum.add_process(&row(50, 10), true);
        sum.add_process(&row(7, 0), false);
        let amount = |kind, allocations, bytes| MemoryAmount { kind, allocations, bytes };
        assert_eq!(sum.freed_by_exit, [amount(Space::Managed, 2, 310), amount(Space::Device, 2, 150)]);
        assert_eq!(sum.live, [amount(Space::Device, 1, 7), amount(Space::Managed, 1, 0)]);
        assert_eq!(
            (sum.peak_bytes, sum.allocated, sum.replaced.bytes),
            (400, Total { count: 30, bytes: 3000 }, 21)
        );
    }
}
