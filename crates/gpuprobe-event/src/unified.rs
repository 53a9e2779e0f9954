//! Page faults and migrations of unified memory.

use serde::{Deserialize, Serialize};

/// Totals of one process, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnifiedTotals {
    pub cpu_faults: u64,
    /// Faults of GPUs, as counted by the NVIDIA kernel module: several faults on one page may count once.
    pub gpu_faults: u64,
    /// From the host to a GPU.
    pub to_gpu: Moved,
    /// From a GPU to the host.
    pub to_cpu: Moved,
    pub between_gpus: Moved,
}

/// Migrations in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    pub migrations: u64,
    pub bytes: u64,
}

impl Moved {
    fn add(&mut self, more: Self) {
        self.migrations = self.migrations.saturating_add(more.migrations);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

impl UnifiedTotals {
    /// Faults by the processor that accessed the memory.
    pub fn faults(&self) -> [(&'static str, u64); 2] {
        [("cpu", self.cpu_faults), ("gpu", self.gpu_faults)]
    }

    /// Migrations by direction, in the words for copies.
    pub fn moved(&self) -> [(&'static str, Moved); 3] {
        [("H2D", self.to_gpu), ("D2H", self.to_cpu), ("D2D", self.between_gpus)]
    }

    /// Adds other totals.
    pub fn add(&mut self, more: &Self) {
        self.cpu_faults = self.cpu_faults.saturating_add(more.cpu_faults);
        self.gpu_faults = self.gpu_faults.saturating_add(more.gpu_faults);
        self.to_gpu.add(more.to_gpu);
        self.to_cpu.add(more.to_cpu);
        self.between_gpus.add(more.between_gpus);
    }
}

/// Unified memory of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnifiedUse {
    pub pid: u32,
    /// Faults and migrations.
    #[serde(flatten)]
    pub totals: UnifiedTotals,
}
