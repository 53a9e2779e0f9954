//! The tables of memory and of tensors.

use std::collections::HashSet;

use gpuprobe_event::counters::{
    Allocation, ContextMemory, GpuIdentity, ProcessKey, ProcessMemory, SiteMemory, TensorMemory,
};

use super::Capture;
use crate::error::CaptureError;

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
        self.tables.sites(&self.ring.decoder.sites, false)
    }

    /// The tensors of every process on every GPU, as frameworks report them.
    pub fn tensors(&self) -> Result<Vec<TensorMemory>, CaptureError> {
        self.tables.tensors()
    }

    /// The tensors of every process by call site.
    pub fn tensor_sites(&self) -> Result<Vec<SiteMemory>, CaptureError> {
        self.tables.sites(&self.ring.decoder.sites, true)
    }

    /// Every live tensor.
    pub fn live_tensors(&self) -> Result<Vec<Allocation>, CaptureError> {
        self.tables.live_tensors(|number| self.ring.decoder.sites.site(number))
    }

    /// Removes the live allocations of exited processes, and returns how many there were.
    pub fn release_memory(&mut self, exited: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
        self.tables.release_memory(exited)
    }
}
