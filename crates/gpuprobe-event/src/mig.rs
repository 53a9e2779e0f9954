//! The instances into which a GPU is partitioned (MIG), as NVML reports them.

use serde::{Deserialize, Serialize};

use crate::gpu_activity::Activity;
use crate::gpu_state::GpuMemory;

/// Whether a GPU is partitioned, and into what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    pub is_enabled: bool,
    /// After the next reset of the GPU.
    pub will_be_enabled: bool,
    pub instances: Vec<MigInstance>,
    /// What each GPU instance did since the reading before, by its number; only with GPM.
    pub activities: Vec<(u32, Activity)>,
}

/// A compute instance of a GPU instance, which is what a program can use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// As `CUDA_VISIBLE_DEVICES` accepts it.
    pub uuid: String,
    /// Its size, for example `1g.18gb`.
    pub profile: String,
    pub multiprocessors: Option<u32>,
    /// Of the GPU instance.
    pub memory: Option<GpuMemory>,
}
