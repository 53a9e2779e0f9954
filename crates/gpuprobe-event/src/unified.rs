//! Unified memory: how often it was touched where it was not, and what was moved.

use serde::{Deserialize, Serialize};

/// Of one process, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnifiedTotals {
    /// Faults of CPUs.
    pub cpu_faults: u64,
    /// Faults of GPUs, as many as the driver served one by one: those of one page may be one.
    pub gpu_faults: u64,
    /// To a GPU, from the host.
    pub to_gpu: Moved,
    /// To the host, from a GPU.
    pub to_cpu: Moved,
    /// From one GPU to another.
    pub between_gpus: Moved,
}

/// Memory that was moved in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// How often.
    pub migrations: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Moved {
    fn add(&mut self, more: Self) {
        self.migrations = self.migrations.saturating_add(more.migrations);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

impl UnifiedTotals {
    /// Faults, by who touched the memory.
    pub fn faults(&self) -> [(&'static str, u64); 2] {
        [("cpu", self.cpu_faults), ("gpu", self.gpu_faults)]
    }

    /// What was moved, by direction, in the words that copies have.
    pub fn moved(&self) -> [(&'static str, Moved); 3] {
        [("H2D", self.to_gpu), ("D2H", self.to_cpu), ("D2D", self.between_gpus)]
    }

    /// Adds others.
    pub fn add(&mut self, more: &Self) {
        self.cpu_faults = self.cpu_faults.saturating_add(more.cpu_faults);
        self.gpu_faults = self.gpu_faults.saturating_add(more.gpu_faults);
        self.to_gpu.add(more.to_gpu);
        self.to_cpu.add(more.to_cpu);
        self.between_gpus.add(more.between_gpus);
    }
}

/// What became of a process's unified memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnifiedUse {
    /// The process.
    pub pid: u32,
    /// Faults and migrations.
    #[serde(flatten)]
    pub totals: UnifiedTotals,
}
