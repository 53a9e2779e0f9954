//! Which of the host's GPUs those of each process are: what is known of both, kept up to date.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuprobe_discover::{View, host_gpus};
use gpuprobe_event::HostGpu;
use gpuprobe_event::counters::{ContextMemory, ProcessKey, ToldGpu};

use crate::processes::Processes;

const PROC: &str = "/proc";

#[derive(Debug)]
pub(crate) struct Gpus {
    folder: PathBuf,
    host: Vec<HostGpu>,
    /// When the host was last asked, and how often it is: a driver may be loaded late, and tells a UUID only when
    /// somebody uses the GPU.
    asked: Instant,
    every: Duration,
    /// Of those who run.
    views: HashMap<ProcessKey, View>,
}

impl Gpus {
    /// The GPUs that the driver lists in this folder, asked again that often.
    pub(crate) fn new(folder: &Path, every: Duration) -> Self {
        let (host, asked) = (host_gpus(folder), Instant::now());
        Self { folder: folder.to_owned(), host, asked, every, views: HashMap::new() }
    }

    /// Those of the host.
    pub(crate) fn host(&self) -> &[HostGpu] {
        &self.host
    }

    /// Looks at processes that are new, while they are there to be looked at, and forgets those that are not.
    pub(crate) fn meet(&mut self, processes: &Processes) {
        let infos = processes.infos();
        self.views.retain(|key, _| infos.get(key).is_some_and(|info| info.exited_at_ns.is_none()));
        for (key, _) in infos.iter().filter(|(_, info)| info.exited_at_ns.is_none()) {
            self.views.entry(*key).or_insert_with(|| View::of(Path::new(PROC), key.tgid.0));
        }
    }

    /// Takes in what the driver told processes, and which GPUs they use; whatever that changes, they are told.
    pub(crate) fn learn(&mut self, told: &[ToldGpu], contexts: &[ContextMemory], processes: &mut Processes) {
        self.meet(processes);
        let mut changed: HashSet<ProcessKey> = HashSet::new();
        if self.asked.elapsed() >= self.every {
            self.asked = Instant::now();
            let host = host_gpus(&self.folder);
            if host != self.host {
                self.host = host;
                changed.extend(self.views.keys());
            }
        }
        for ToldGpu { process, gpu, identity } in told {
            if self.views.get_mut(process).is_some_and(|view| view.told(*gpu, *identity)) {
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
}
