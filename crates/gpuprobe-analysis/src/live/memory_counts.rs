//! Memory of one process and of all processes, as the tables of the BPF side count it.

use gpuprobe_event::counters::{ContextMemory, Held, ProcessMemory};
use gpuprobe_event::{Gpu, Space};
use serde::Serialize;

/// Live memory of one kind on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KindHeld {
    /// The GPU; `None` where it is not known.
    pub gpu: Option<Gpu>,
    /// The kind.
    pub kind: Space,
    /// Bytes live now.
    pub live_bytes: u64,
    /// Allocations live now.
    pub live_allocations: u64,
}

/// What one process did to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryCounts {
    /// By GPU and kind, every kind once for each GPU; empty where the process did nothing to memory.
    pub held: Vec<KindHeld>,
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Bytes ever freed by a call.
    pub freed_bytes: u64,
    /// Successful frees of unknown addresses.
    pub unknown_frees: u64,
    /// Addresses allocated again while still live: a free was missed.
    pub replaced: u64,
    /// Allocations that ended with the context they were made in.
    pub ended_allocations: u64,
    /// Their bytes.
    pub ended_bytes: u64,
    /// The most that was live at once.
    pub peak_bytes: u64,
}

/// Allocations and frees of all processes, also of those that are no longer shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryTotals {
    /// Allocations that succeeded.
    pub allocations: u64,
    /// Allocations that failed.
    pub failed_allocations: u64,
    /// Frees that succeeded, those of unknown addresses too.
    pub frees: u64,
    /// Frees that failed.
    pub failed_frees: u64,
    /// Of the frees that succeeded, those of addresses whose allocation was not seen.
    pub unknown_frees: u64,
    /// Addresses allocated again while still live: a free was missed.
    pub replaced: u64,
    /// Allocations live now.
    pub live_allocations: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Allocations that nobody freed and that are gone all the same: with their context, or with their process.
    pub ended_allocations: u64,
    /// Their bytes.
    pub ended_bytes: u64,
}

impl MemoryTotals {
    /// Adds what one process did that runs.
    pub fn add(&mut self, memory: &ProcessMemory) {
        self.add_counts(memory);
        let held = memory.held_in_all();
        self.live_allocations += held.live_allocations;
        self.live_bytes = self.live_bytes.saturating_add(held.live_bytes);
    }

    /// Adds what one process did that has ended, and its memory with it.
    pub fn add_ended(&mut self, memory: &ProcessMemory) {
        self.add_counts(memory);
        let held = memory.held_in_all();
        self.ended_allocations += held.live_allocations;
        self.ended_bytes = self.ended_bytes.saturating_add(held.live_bytes);
    }

    fn add_counts(&mut self, memory: &ProcessMemory) {
        self.allocations += memory.allocations;
        self.failed_allocations += memory.failed_allocations;
        self.frees += memory.frees + memory.unknown_frees;
        self.failed_frees += memory.failed_frees;
        self.unknown_frees += memory.unknown_frees;
        self.replaced += memory.replaced;
        self.ended_allocations += memory.ended_allocations;
        self.ended_bytes = self.ended_bytes.saturating_add(memory.ended_bytes);
    }
}

impl MemoryCounts {
    /// Moves what is held in a context from no known GPU to the context's.
    pub(super) fn add_context(&mut self, gpu: Gpu, context: &ContextMemory) {
        for more in kinds(Some(gpu), &context.held) {
            // the two are read one after the other, so what is moved may be more than there is
            let unknown = self.held.iter_mut().find(|held| held.gpu.is_none() && held.kind == more.kind);
            if let Some(unknown) = unknown {
                unknown.live_bytes = unknown.live_bytes.saturating_sub(more.live_bytes);
                unknown.live_allocations = unknown.live_allocations.saturating_sub(more.live_allocations);
            }
            match self.held.iter_mut().find(|held| held.gpu == Some(gpu) && held.kind == more.kind) {
                Some(held) => {
                    held.live_bytes += more.live_bytes;
                    held.live_allocations += more.live_allocations;
                }
                None => self.held.push(more),
            }
        }
    }

    /// Leaves out memory of no known GPU where there is none.
    pub(super) fn tidy(&mut self) {
        let is_held = |held: &KindHeld| held.gpu.is_none() && held.live_allocations > 0;
        if self.held.iter().any(|held| held.gpu.is_some()) && !self.held.iter().any(is_held) {
            self.held.retain(|held| held.gpu.is_some());
        }
        self.held.sort_unstable_by_key(|held| (held.gpu.is_none(), held.gpu, held.kind));
    }

    /// Adds what another process did; what it holds is its own.
    pub(crate) fn add(&mut self, more: &Self) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(more.allocated_bytes);
        self.freed_bytes = self.freed_bytes.saturating_add(more.freed_bytes);
        self.unknown_frees += more.unknown_frees;
        self.replaced += more.replaced;
        self.ended_allocations += more.ended_allocations;
        self.ended_bytes = self.ended_bytes.saturating_add(more.ended_bytes);
    }
}

pub(super) fn memory_counts(memory: &ProcessMemory) -> MemoryCounts {
    MemoryCounts {
        held: kinds(None, &memory.held).collect(),
        allocated_bytes: memory.allocated_bytes,
        freed_bytes: memory.freed_bytes,
        unknown_frees: memory.unknown_frees,
        replaced: memory.replaced,
        ended_allocations: memory.ended_allocations,
        ended_bytes: memory.ended_bytes,
        peak_bytes: memory.peak_bytes,
    }
}

/// What is held on one GPU, by kind.
fn kinds(gpu: Option<Gpu>, held: &[Held; Space::ALL.len()]) -> impl Iterator<Item = KindHeld> {
    Space::ALL.into_iter().zip(held).map(move |(kind, held)| KindHeld {
        gpu,
        kind,
        live_bytes: held.live_bytes,
        live_allocations: held.live_allocations,
    })
}
