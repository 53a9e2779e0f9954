//! What NVML tells of GPUs, with the host's numbers and the processes' names to it, and **reconciled**: the bytes that the
//! API was seen to hold against NVML's figure of the same process on the same GPU.
//!
//! The rest that no call explains is the context, the code of kernels, what libraries and the driver keep for themselves,
//! what was allocated before the probes came, and the part of managed memory that lies on the GPU: how much that is only
//! the driver knows, so managed memory is not counted as seen. Neither is pinned memory, which is the host's.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::gpu_state::{Engine, GpuReadings, GpuState};
use gpuprobe_event::{Gpu, Space, Tgid};
use serde::Serialize;

use crate::live::snapshot::{ProcessSnapshot, Snapshot};

/// Kinds of memory that lie on a GPU for as long as they live.
const ON_GPU: [Space; 4] = [Space::Device, Space::Pool, Space::Vmm, Space::Array];

/// Of whom NVML's figures can be compared with what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared<'a> {
    /// Memory is not followed.
    Nobody,
    /// Only these processes are watched, and what they begin.
    Only(&'a [Tgid]),
    /// The whole host is.
    Everybody,
}

impl Compared<'_> {
    /// Whether calls of this process would have been seen.
    fn watches(self, pid: Tgid) -> bool {
        match self {
            Self::Nobody => false,
            Self::Only(pids) => pids.contains(&pid),
            Self::Everybody => true,
        }
    }
}

/// One of the host's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumberedGpu {
    /// Its number.
    pub gpu: u8,
    /// How it stands.
    pub state: GpuState,
}

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuUser {
    /// The GPU's number.
    pub gpu: u8,
    /// The process.
    pub pid: Tgid,
    /// Its name.
    pub name: String,
    /// All memory that it has there, as NVML tells it.
    pub memory_bytes: Option<u64>,
    /// What calls were seen to allocate there and is live; `None` where that cannot be said.
    pub seen_bytes: Option<u64>,
    /// How busy it kept each [`Engine`].
    pub busy_percent: Option<[u32; Engine::ALL.len()]>,
}

impl GpuUser {
    /// Memory that no call explains.
    pub fn unexplained_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes?.saturating_sub(self.seen_bytes?))
    }

    /// What was seen beyond what NVML tells. The two are not read at the same moment; and memory of another process that
    /// is used here may be counted there.
    pub fn seen_above_bytes(&self) -> Option<u64> {
        Some(self.seen_bytes?.saturating_sub(self.memory_bytes?))
    }
}

/// Errors of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuErrors {
    /// The GPU's number.
    pub gpu: u8,
    /// The number of the error.
    pub xid: u64,
    /// How often it came.
    pub count: u64,
}

/// All that NVML tells, put beside what was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuStates {
    /// Whether it answers; `None` where nobody asked.
    pub is_up: Option<bool>,
    /// By number.
    pub gpus: Vec<NumberedGpu>,
    /// By GPU and pid.
    pub users: Vec<GpuUser>,
    /// By GPU and number.
    pub xids: Vec<GpuErrors>,
}

impl GpuStates {
    /// Puts a reading beside a snapshot. `others` names the processes that run and that the snapshot does not know; whoever
    /// is in neither has ended since.
    pub fn build(
        readings: &GpuReadings,
        snapshot: &Snapshot,
        others: &HashMap<Tgid, String>,
        compared: Compared<'_>,
    ) -> Self {
        let numbered = readings.gpus.iter().filter_map(|s| Some((s.id.number_among(&snapshot.gpus)?, s)));
        let gpus: BTreeMap<u8, &GpuState> = numbered.collect();
        let mut on: HashMap<Tgid, usize> = HashMap::new();
        for process in gpus.values().flat_map(|state| &state.processes) {
            *on.entry(process.pid).or_default() += 1;
        }
        let mut users = Vec::new();
        for (&gpu, state) in &gpus {
            for process in &state.processes {
                let known = snapshot.running(process.pid);
                let name = known.map(|p| &p.name).or_else(|| others.get(&process.pid));
                let Some(name) = name else { continue };
                let is_only = on.get(&process.pid) == Some(&1);
                let is_compared =
                    compared.watches(process.pid) || known.is_some() && compared != Compared::Nobody;
                users.push(GpuUser {
                    gpu,
                    pid: process.pid,
                    name: name.clone(),
                    memory_bytes: process.memory_bytes,
                    seen_bytes: is_compared.then(|| seen(known, gpu, is_only)).flatten(),
                    busy_percent: process.busy_percent,
                });
            }
        }
        let mut xids: BTreeMap<(u8, u64), u64> = BTreeMap::new();
        for errors in &readings.xids {
            if let Some(gpu) = errors.id.number_among(&snapshot.gpus) {
                let sum = xids.entry((gpu, errors.xid)).or_default();
                *sum = sum.saturating_add(errors.count);
            }
        }
        Self {
            is_up: Some(readings.is_up),
            gpus: gpus.into_iter().map(|(gpu, state)| NumberedGpu { gpu, state: state.clone() }).collect(),
            users,
            xids: xids.into_iter().map(|((gpu, xid), count)| GpuErrors { gpu, xid, count }).collect(),
        }
    }
}

/// Live bytes that calls of a process were seen to allocate on a GPU; 0 where it made no call. Memory whose GPU is not
/// known counts if NVML finds the process on one GPU only; otherwise the sum is not known.
fn seen(process: Option<&ProcessSnapshot>, gpu: u8, is_only: bool) -> Option<u64> {
    let live = process.into_iter().flat_map(|process| &process.memory.live);
    let mut bytes = 0_u64;
    for live in live.filter(|live| ON_GPU.contains(&live.amount.kind) && live.amount.bytes > 0) {
        match live.gpu {
            Some(Gpu::Host(number)) if number == gpu => bytes = bytes.saturating_add(live.amount.bytes),
            Some(Gpu::Host(_)) => {}
            Some(Gpu::OfProcess(_)) | None if is_only => bytes = bytes.saturating_add(live.amount.bytes),
            Some(Gpu::OfProcess(_)) | None => return None,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
