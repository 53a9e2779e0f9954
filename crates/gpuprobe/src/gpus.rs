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
    /// Of those who run and use a GPU.
    views: HashMap<ProcessKey, View>,
}

impl Gpus {
    /// The GPUs that the driver lists in this folder, asked again that often.
    pub(crate) fn new(folder: &Path, every: Duration) -> Self {
        let (host, asked) = (host_gpus(folder), Instant::now());
        Self { folder: folder.to_owned(), host, asked, every, views: HashMap::new() }
    }

    /// From now on, the driver is asked that often.
    pub(crate) fn ask_every(&mut self, every: Duration) {
        self.every = every;
    }

    /// Those of the host.
    pub(crate) fn host(&self) -> &[HostGpu] {
        &self.host
    }

    /// Takes in what the driver told processes, and which GPUs they use; whatever that changes, they are told. Who uses
    /// none is never looked at.
    pub(crate) fn learn(&mut self, told: &[ToldGpu], contexts: &[ContextMemory], processes: &mut Processes) {
        self.look_at(told.iter().map(|told| told.process), processes);
        self.look_at(contexts.iter().filter(|c| c.gpu.is_some()).map(|c| c.process), processes);
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

    /// Looks at those of these who run and are new, and forgets those who do not run any more.
    fn look_at(&mut self, keys: impl Iterator<Item = ProcessKey>, processes: &Processes) {
        let runs = |key: &ProcessKey| processes.infos().get(key).is_some_and(|i| i.exited_at_ns.is_none());
        self.views.retain(|key, _| runs(key));
        for key in keys.filter(runs) {
            self.views.entry(key).or_insert_with(|| View::of(Path::new(PROC), key.tgid.0));
        }
    }
}
