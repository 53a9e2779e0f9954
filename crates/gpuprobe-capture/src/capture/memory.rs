//! The tables of memory and of tensors.

use std::collections::HashSet;

use gpuprobe_event::counters::{
    Allocation, ContextMemory, DeviceRange, GpuIdentity, ProcessKey, ProcessMemory, SiteMemory, TensorMemory,
};

use super::Capture;
use crate::error::CaptureError;
use crate::stacks::call_sites::SiteKind;

impl Capture {
    /// GPU memory of every process: what it allocated and freed, and what is live in every context.
    pub fn memory(&self) -> Result<(Vec<ProcessMemory>, Vec<ContextMemory>), CaptureError> {
        self.tables.memory()
    }

    /// The identities of the GPUs, as the CUDA driver reported them to every process.
    pub fn identities(&self) -> Result<Vec<GpuIdentity>, CaptureError> {
        self.tables.identities()
    }

    /// Every live allocation.
    pub fn allocations(&self) -> Result<Vec<Allocation>, CaptureError> {
        self.tables.allocations(|number| self.ring.decoder.sites.site(number))
    }

    /// The memory of every process by call site.
    pub fn sites(&self) -> Result<Vec<SiteMemory>, CaptureError> {
        self.tables.sites(&self.ring.decoder.sites, SiteKind::is_memory)
    }

    /// The tensors of every process on every GPU, as frameworks report them.
    pub fn tensors(&self) -> Result<Vec<TensorMemory>, CaptureError> {
        self.tables.tensors()
    }

    /// The tensors of every process by call site.
    pub fn tensor_sites(&self) -> Result<Vec<SiteMemory>, CaptureError> {
        self.tables.sites(&self.ring.decoder.sites, |kind| kind == SiteKind::Tensors)
    }

    /// The part of [`Capture::sites`] that was allocated asynchronously, from pools; empty if tensors are not followed.
    pub fn pool_sites(&self) -> Result<Vec<SiteMemory>, CaptureError> {
        if !self.tables.has_tensors {
            return Ok(Vec::new());
        }
        self.tables.sites(&self.ring.decoder.sites, |kind| kind == SiteKind::PoolMemory)
    }

    /// Every live tensor.
    pub fn live_tensors(&self) -> Result<Vec<Allocation>, CaptureError> {
        self.tables.live_tensors(|number| self.ring.decoder.sites.site(number))
    }

    /// The addresses of device memory that may contain tensors; empty if tensors are not followed.
    pub fn device_ranges(&self) -> Result<Vec<DeviceRange>, CaptureError> {
        self.tables.device_ranges()
    }

    /// Removes the live allocations of exited processes, and returns how many there were.
    pub fn release_memory(&mut self, exited: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
        self.tables.release_memory(exited)
    }
}
