//! The daemon's thread that samples stacks when a client of the endpoint asks for them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use gpuprobe_analysis::StacksReport;
use gpuprobe_capture::{ThreadIterator, ThreadSampler};
use gpuprobe_discover::gpu_processes;
use gpuprobe_event::Tgid;
use gpuprobe_output::{Architecture, Latest, StacksRequests, StacksSource, stacks_json, stacks_requests};

use super::thread_samples::{self, OpenCalls};
use crate::cli::DEFAULT_SAMPLES;
use crate::session::host::observer::unix_seconds;
use crate::terminal::notes::note;

/// Samples on request.
#[derive(Debug)]
pub(crate) struct StacksService {
    source: StacksSource,
    seen: Arc<Mutex<SeenByProbes>>,
}

/// What the daemon's probes see.
#[derive(Debug, Default)]
pub(crate) struct SeenByProbes {
    /// The observed processes; `None` for all of the host.
    pub(crate) processes: Option<Vec<Tgid>>,
    /// Calls that have not returned.
    pub(crate) open: OpenCalls,
}

impl StacksService {
    /// Starts the thread. The iterator was loaded before privileges were given up.
    pub(crate) fn start(iterator: ThreadIterator, latest: Latest) -> Result<Self> {
        let (source, requests) = stacks_requests();
        let seen = Arc::new(Mutex::new(SeenByProbes::default()));
        let worker = Worker { requests, latest, seen: Arc::clone(&seen) };
        let thread = std::thread::Builder::new().name("stacks".to_owned());
        thread.spawn(move || worker.run(iterator)).context("cannot start the thread that samples stacks")?;
        Ok(Self { source, seen })
    }

    pub(crate) fn source(&self) -> StacksSource {
        self.source.clone()
    }

    /// Sets what the probes see now.
    pub(crate) fn set_seen(&self, seen: SeenByProbes) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

struct Worker {
    requests: StacksRequests,
    latest: Latest,
    seen: Arc<Mutex<SeenByProbes>>,
}

impl Worker {
    fn run(mut self, iterator: ThreadIterator) {
        let mut sampler = ThreadSampler::of(iterator);
        while let Some(clients) = self.requests.wait() {
            match self.stacks(&mut sampler) {
                Ok(json) => clients.answer(json),
                // the clients get an error when this is dropped
                Err(error) => note!("gpuprobe: cannot sample stacks: {error:#}"),
            }
        }
    }

    fn stacks(&self, sampler: &mut ThreadSampler) -> Result<String> {
        let all = || gpu_processes(Path::new("/proc")).into_iter().map(Tgid).collect();
        let chosen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).processes.clone();
        let processes: Vec<Tgid> = chosen.unwrap_or_else(all);
        let mut sampled = thread_samples::sample(sampler, &processes, DEFAULT_SAMPLES)?;
        // read after the samples, because calls may have returned
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).open.add_to(&mut sampled);
        let report = StacksReport::build(sampled, false);
        let states = &self.latest.get().gpu_states;
        Ok(stacks_json(&report, states, unix_seconds(), Architecture::OF_HOST))
    }
}
