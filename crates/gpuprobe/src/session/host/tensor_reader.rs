//! Reads tensors: those that frameworks report, and those that are allocations of the CUDA driver's pool each, because
//! their process uses PyTorch's `cudaMallocAsync` backend.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use gpuprobe_analysis::{FragmentationByGpu, fragmentation, tensors_of_pools};
use gpuprobe_capture::{Capture, CaptureError};
use gpuprobe_discover::uses_cuda_malloc_async;
use gpuprobe_event::Space;
use gpuprobe_event::counters::{Allocation, ProcessKey, SiteMemory, TensorMemory};

const PROC: &str = "/proc";
/// How often a process is examined that uses pools but has not loaded PyTorch.
const EXAMINE_EVERY: Duration = Duration::from_secs(1);
/// Reading every tensor and allocation takes at most this part of the time: there may be a million of them.
const SHARE: u32 = 100;

/// What is known about the backend of a process.
#[derive(Clone, Copy, Debug)]
struct Backend {
    is_async: Option<bool>,
    examined: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct TensorReader {
    /// Of processes that use pools.
    backends: HashMap<ProcessKey, Backend>,
    /// Before this, fragmentation is not read again.
    rests_until: Option<Instant>,
}

impl TensorReader {
    /// Tensors by call site and by GPU.
    pub(crate) fn rows(
        &mut self,
        capture: &Capture,
    ) -> Result<(Vec<SiteMemory>, Vec<TensorMemory>), CaptureError> {
        let (mut sites, mut gpus) = (capture.tensor_sites()?, capture.tensors()?);
        let mut of_pools = capture.pool_sites()?;
        self.backends.retain(|process, _| of_pools.iter().any(|row| row.process == *process));
        of_pools.retain(|row| self.is_async(row.process));
        gpus.extend(tensors_of_pools(&of_pools));
        sites.extend(of_pools);
        Ok((sites, gpus))
    }

    /// Every live tensor, with its age.
    pub(crate) fn live(&self, capture: &Capture) -> Result<Vec<Allocation>, CaptureError> {
        let mut live = capture.live_tensors()?;
        let is_async =
            |process: &ProcessKey| self.backends.get(process).and_then(|b| b.is_async) == Some(true);
        if self.backends.keys().any(is_async) {
            let allocations = capture.allocations()?.into_iter();
            live.extend(allocations.filter(|a| a.space == Space::Pool && is_async(&a.process)));
        }
        Ok(live)
    }

    /// How fragmented the memory of frameworks is; `None` if that was read not long ago, unless it is needed now.
    pub(crate) fn fragmentation(
        &mut self,
        capture: &Capture,
        needed: bool,
    ) -> Result<Option<FragmentationByGpu>, CaptureError> {
        let begun = Instant::now();
        if !needed && self.rests_until.is_some_and(|until| begun < until) {
            return Ok(None);
        }
        // the tensors first: a segment outlives them
        let tensors = capture.live_tensors()?;
        let found = fragmentation(&tensors, &capture.device_ranges()?);
        self.rests_until = Some(begun + begun.elapsed().saturating_mul(SHARE));
        Ok(Some(found))
    }

    /// Whether the allocations of a process from pools are tensors.
    fn is_async(&mut self, process: ProcessKey) -> bool {
        let examine = || Backend {
            is_async: uses_cuda_malloc_async(Path::new(PROC), process.tgid.0),
            examined: Instant::now(),
        };
        let backend = self.backends.entry(process).or_insert_with(examine);
        // PyTorch may be loaded later
        if backend.is_async.is_none() && backend.examined.elapsed() >= EXAMINE_EVERY {
            *backend = examine();
        }
        backend.is_async == Some(true)
    }
}
