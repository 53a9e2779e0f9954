//! The state of GPUs from NVML, with the host's GPU numbers and the names of processes. It is **reconciled** with the
//! observed calls: the live bytes allocated by calls are compared with NVML's figure for the same process and GPU.
//!
//! The difference that no call explains consists of the context, the code of CUDA kernels, internal memory of
//! libraries and the CUDA driver, memory allocated before the probes were attached, and the part of managed memory
//! that resides on the GPU. Only the driver knows how much managed memory that is, so managed memory is not counted
//! as seen. Pinned memory is not counted either, because it is host memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::gpu_state::{Engine, GpuReadings, GpuState};
use gpuprobe_event::{Gpu, GpuHolder, OutOfMemoryEvent, Space, Tgid};
use serde::Serialize;

use crate::live::snapshot::{ProcessSnapshot, Snapshot};

/// Kinds of memory that stay on a GPU while they are live.
const ON_GPU: [Space; 4] = [Space::Device, Space::Pool, Space::Vmm, Space::Array];

/// The processes whose NVML figures can be compared with observed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared<'a> {
    /// Memory calls are not probed.
    NoProcess,
    /// Only these processes and their children are observed.
    Only(&'a [Tgid]),
    /// All processes of the host are observed.
    AllProcesses,
}

impl Compared<'_> {
    /// Whether calls of this process would have been seen.
    fn watches(self, pid: Tgid) -> bool {
        match self {
            Self::NoProcess => false,
            Self::Only(pids) => pids.contains(&pid),
            Self::AllProcesses => true,
        }
    }
}

/// One of the host's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexedGpu {
    /// The host's number.
    pub gpu: u8,
    pub state: GpuState,
}

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuUser {
    /// The host's number of the GPU.
    pub gpu: u8,
    pub pid: Tgid,
    pub name: String,
    /// All its memory on the GPU, according to NVML.
    pub memory_bytes: Option<u64>,
    /// Its live memory on the GPU that was allocated by observed calls; `None` if not known.
    pub seen_bytes: Option<u64>,
    /// Its utilization of each [`Engine`].
    pub busy_percent: Option<[u32; Engine::ALL.len()]>,
}

impl GpuUser {
    /// Memory that no call explains.
    pub fn unexplained_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes?.saturating_sub(self.seen_bytes?))
    }

    /// The seen bytes that exceed NVML's figure. The two are not read at the same time, and NVML may count shared
    /// memory for another process.
    pub fn seen_above_bytes(&self) -> Option<u64> {
        Some(self.seen_bytes?.saturating_sub(self.memory_bytes?))
    }
}

/// XID errors of one GPU with one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuErrors {
    /// The host's number of the GPU.
    pub gpu: u8,
    pub xid: u64,
    pub count: u64,
}

/// The figures of NVML, reconciled with observed calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuStates {
    /// Whether NVML answers; `None` if it was not read.
    pub is_up: Option<bool>,
    /// Sorted by number.
    pub gpus: Vec<IndexedGpu>,
    /// Sorted by GPU.
    pub users: Vec<GpuUser>,
    /// Sorted by GPU and number.
    pub xids: Vec<GpuErrors>,
}

impl GpuStates {
    /// Combines NVML readings with a snapshot. `others` has the names of running processes that are not in the
    /// snapshot. A process that is in neither has exited since the reading.
    pub fn build(
        readings: &GpuReadings,
        snapshot: &Snapshot,
        others: &HashMap<Tgid, String>,
        compared: Compared<'_>,
    ) -> Self {
        let gpus: BTreeMap<u8, &GpuState> = readings.numbered(&snapshot.gpus).into_iter().collect();
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
                    compared.watches(process.pid) || known.is_some() && compared != Compared::NoProcess;
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
            gpus: gpus.into_iter().map(|(gpu, state)| IndexedGpu { gpu, state: state.clone() }).collect(),
            users,
            xids: xids.into_iter().map(|((gpu, xid), count)| GpuErrors { gpu, xid, count }).collect(),
        }
    }

    /// Adds the state of this GPU to an out-of-memory error: its free memory, and the other processes on it.
    pub fn complete(&self, error: &mut OutOfMemoryEvent, gpu: u8) {
        let state = self.gpus.iter().find(|indexed| indexed.gpu == gpu).map(|indexed| &indexed.state);
        error.free_bytes = state.and_then(|state| state.memory.as_ref()).map(|memory| memory.free_bytes);
        let others = self.users.iter().filter(|user| user.gpu == gpu && user.pid != error.tgid);
        let holder = |user: &GpuUser| {
            Some(GpuHolder { tgid: user.pid, process: user.name.as_str().into(), bytes: user.memory_bytes? })
        };
        error.others = others.filter_map(holder).collect();
        error.others.sort_by_key(|other| Reverse(other.bytes));
        error.others.truncate(OutOfMemoryEvent::MOST_HOLDERS);
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
