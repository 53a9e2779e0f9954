//! Maps the GPU numbers of each process to the host's GPU numbers.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuprobe_discover::{View, host_gpus};
use gpuprobe_event::HostGpu;
use gpuprobe_event::counters::{ContextMemory, GpuIdentity, ProcessKey};

use super::processes::Processes;

const PROC: &str = "/proc";

#[derive(Debug)]
pub(crate) struct GpuNumbering {
    folder: PathBuf,
    host: Vec<HostGpu>,
    /// Last time the host's GPUs were read, and how often they are: the NVIDIA kernel module may be loaded late, and
    /// shows the UUID of a GPU only once it is used.
    read_at: Instant,
    interval: Duration,
    /// Of running processes that use a GPU.
    views: HashMap<ProcessKey, View>,
}

impl GpuNumbering {
    /// The GPUs that the NVIDIA kernel module lists in this folder, read again at this interval.
    pub(crate) fn new(folder: &Path, interval: Duration) -> Self {
        let (host, read_at) = (host_gpus(folder), Instant::now());
        Self { folder: folder.to_owned(), host, read_at, interval, views: HashMap::new() }
    }

    /// Changes how often the GPUs are read.
    pub(crate) fn set_rescan(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// The GPUs of the host.
    pub(crate) fn host(&self) -> &[HostGpu] {
        &self.host
    }

    /// Takes in GPU identities that processes were given by the CUDA driver, and the GPUs of their contexts, and
    /// updates the numbers of processes that changed. Processes without a GPU are never examined.
    pub(crate) fn learn(
        &mut self,
        identities: &[GpuIdentity],
        contexts: &[ContextMemory],
        processes: &mut Processes,
    ) {
        self.track(identities.iter().map(|one| one.process), processes);
        self.track(contexts.iter().filter(|c| c.gpu.is_some()).map(|c| c.process), processes);
        let mut changed: HashSet<ProcessKey> = HashSet::new();
        if self.read_at.elapsed() >= self.interval {
            self.read_at = Instant::now();
            let host = host_gpus(&self.folder);
            if host != self.host {
                self.host = host;
                changed.extend(self.views.keys());
            }
        }
        for GpuIdentity { process, gpu, identity } in identities {
            if self.views.get_mut(process).is_some_and(|view| view.add_identity(*gpu, *identity)) {
                changed.insert(*process);
            }
        }
        for ContextMemory { process, gpu, .. } in contexts {
            let (Some(view), Some(gpu)) = (self.views.get_mut(process), gpu) else { continue };
            if !view.is_used(*gpu) {
                view.uses(Path::new(PROC), process.tgid.0, *gpu);
                changed.insert(*process);
            }
        }
        for key in changed {
            if let Some(view) = self.views.get(&key) {
                processes.set_gpus(key, view.numbers(&self.host));
            }
        }
    }

    /// Adds the new ones among these processes, and forgets exited ones.
    fn track(&mut self, keys: impl Iterator<Item = ProcessKey>, processes: &Processes) {
        let runs = |key: &ProcessKey| processes.infos().get(key).is_some_and(|i| i.exited_at_ns.is_none());
        self.views.retain(|key, _| runs(key));
        for key in keys.filter(runs) {
            self.views.entry(key).or_insert_with(|| View::of(Path::new(PROC), key.tgid.0));
        }
    }
}
