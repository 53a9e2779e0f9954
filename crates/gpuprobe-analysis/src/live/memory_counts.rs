//! Memory of one process and of all processes, as the tables of the BPF side count it.

use gpuprobe_event::counters::{ContextMemory, LiveTotals, ProcessMemory};
use gpuprobe_event::{Gpu, MemoryAmount, Space};
use serde::Serialize;

/// Live memory of one kind on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// `None` where the GPU is not known.
    pub gpu: Option<Gpu>,
    /// The kind, and how much of it is live.
    #[serde(flatten)]
    pub amount: MemoryAmount,
}

/// Memory counters of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryCounts {
    /// Live memory by GPU and kind, every kind once for each GPU. Empty if the process made no memory calls.
    pub live: Vec<GpuMemory>,
    /// All bytes allocated.
    pub allocated_bytes: u64,
    /// All bytes freed by a call.
    pub freed_bytes: u64,
    /// Successful frees of unknown addresses.
    pub unknown_frees: u64,
    /// Addresses allocated again while still live, because a free was missed.
    pub replaced: u64,
    /// Allocations that were freed with their context.
    pub freed_with_context_allocations: u64,
    /// Their bytes.
    pub freed_with_context_bytes: u64,
    /// The most bytes live at once.
    pub peak_bytes: u64,
    /// Allocations of tensors for which a GPU had no room.
    pub out_of_memory: u64,
}

/// Allocations and frees of all processes, including those that are no longer shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryTotals {
    /// Allocations that succeeded.
    pub allocations: u64,
    /// Allocations that failed.
    pub failed_allocations: u64,
    /// Frees that succeeded, including those of unknown addresses.
    pub frees: u64,
    /// Frees that failed.
    pub failed_frees: u64,
    /// How many of `frees` had an address whose allocation was not seen.
    pub unknown_frees: u64,
    /// Addresses allocated again while still live, because a free was missed.
    pub replaced: u64,
    pub live_allocations: u64,
    pub live_bytes: u64,
    /// Allocations that no call freed: they were freed with their context or their process.
    pub freed_with_context_allocations: u64,
    /// Their bytes.
    pub freed_with_context_bytes: u64,
}

impl MemoryTotals {
    /// Adds a running process.
    pub fn add(&mut self, memory: &ProcessMemory) {
        self.add_counts(memory);
        let live = memory.live_total();
        self.live_allocations += live.live_allocations;
        self.live_bytes = self.live_bytes.saturating_add(live.live_bytes);
    }

    /// Adds an exited process, whose live memory was freed with it.
    pub fn add_exited(&mut self, memory: &ProcessMemory) {
        self.add_counts(memory);
        let live = memory.live_total();
        self.freed_with_context_allocations += live.live_allocations;
        self.freed_with_context_bytes = self.freed_with_context_bytes.saturating_add(live.live_bytes);
    }

    fn add_counts(&mut self, memory: &ProcessMemory) {
        self.allocations += memory.allocations;
        self.failed_allocations += memory.failed_allocations;
        self.frees += memory.frees + memory.unknown_frees;
        self.failed_frees += memory.failed_frees;
        self.unknown_frees += memory.unknown_frees;
        self.replaced += memory.replaced;
        self.freed_with_context_allocations += memory.freed_with_context_allocations;
        self.freed_with_context_bytes =
            self.freed_with_context_bytes.saturating_add(memory.freed_with_context_bytes);
    }
}

impl MemoryCounts {
    /// Moves the memory of a context from "GPU not known" to the context's GPU.
    pub(super) fn add_context(&mut self, gpu: Gpu, context: &ContextMemory) {
        for GpuMemory { amount: more, .. } in by_kind(Some(gpu), &context.live) {
            // the rows of processes and of contexts are read one after the other, so this may be more than there is
            if let Some(unknown) = self.amount_mut(None, more.kind) {
                unknown.bytes = unknown.bytes.saturating_sub(more.bytes);
                unknown.allocations = unknown.allocations.saturating_sub(more.allocations);
            }
            match self.amount_mut(Some(gpu), more.kind) {
                Some(amount) => {
                    amount.bytes += more.bytes;
                    amount.allocations += more.allocations;
                }
                None => self.live.push(GpuMemory { gpu: Some(gpu), amount: more }),
            }
        }
    }

    fn amount_mut(&mut self, gpu: Option<Gpu>, kind: Space) -> Option<&mut MemoryAmount> {
        self.live
            .iter_mut()
            .find(|live| live.gpu == gpu && live.amount.kind == kind)
            .map(|live| &mut live.amount)
    }

    /// Sorts the rows, and removes those without a known GPU where they are empty and others are known.
    pub(super) fn tidy(&mut self) {
        let is_unknown = |live: &GpuMemory| live.gpu.is_none() && live.amount.allocations > 0;
        if self.live.iter().any(|live| live.gpu.is_some()) && !self.live.iter().any(is_unknown) {
            self.live.retain(|live| live.gpu.is_some());
        }
        self.live.sort_unstable_by_key(|live| (live.gpu.is_none(), live.gpu, live.amount.kind));
    }

    /// Adds the counters of another process, but not its live memory.
    pub(crate) fn add(&mut self, more: &Self) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(more.allocated_bytes);
        self.freed_bytes = self.freed_bytes.saturating_add(more.freed_bytes);
        self.unknown_frees += more.unknown_frees;
        self.replaced += more.replaced;
        self.out_of_memory += more.out_of_memory;
        self.freed_with_context_allocations += more.freed_with_context_allocations;
        self.freed_with_context_bytes =
            self.freed_with_context_bytes.saturating_add(more.freed_with_context_bytes);
    }
}

pub(super) fn memory_counts(memory: &ProcessMemory) -> MemoryCounts {
    MemoryCounts {
        live: by_kind(None, &memory.live).collect(),
        allocated_bytes: memory.allocated_bytes,
        freed_bytes: memory.freed_bytes,
        unknown_frees: memory.unknown_frees,
        replaced: memory.replaced,
        freed_with_context_allocations: memory.freed_with_context_allocations,
        freed_with_context_bytes: memory.freed_with_context_bytes,
        peak_bytes: memory.peak_bytes,
        out_of_memory: memory.out_of_memory,
    }
}

fn by_kind(gpu: Option<Gpu>, live: &[LiveTotals; Space::ALL.len()]) -> impl Iterator<Item = GpuMemory> {
    Space::ALL.into_iter().zip(live).map(move |(kind, live)| GpuMemory {
        gpu,
        amount: MemoryAmount { kind, allocations: live.live_allocations, bytes: live.live_bytes },
    })
}
