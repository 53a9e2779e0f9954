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
    open: Arc<Mutex<OpenCalls>>,
}

impl StacksService {
    /// Starts the thread. The iterator was loaded before privileges were given up.
    pub(crate) fn start(iterator: ThreadIterator, pids: &[u32], latest: Latest) -> Result<Self> {
        let (source, requests) = stacks_requests();
        let open = Arc::new(Mutex::new(OpenCalls::default()));
        let worker = Worker {
            requests,
            pids: pids.iter().copied().map(Tgid).collect(),
            latest,
            open: Arc::clone(&open),
        };
        let thread = std::thread::Builder::new().name("stacks".to_owned());
        thread.spawn(move || worker.run(iterator)).context("cannot start the thread that samples stacks")?;
        Ok(Self { source, open })
    }

    pub(crate) fn source(&self) -> StacksSource {
        self.source.clone()
    }

    /// Sets the calls that have not returned, as the probes see them now.
    pub(crate) fn set_open_calls(&self, open: OpenCalls) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = open;
    }
}

struct Worker {
    requests: StacksRequests,
    /// The observed processes; all that use GPUs if there are none.
    pids: Vec<Tgid>,
    latest: Latest,
    open: Arc<Mutex<OpenCalls>>,
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
        let processes: Vec<Tgid> = if self.pids.is_empty() { all() } else { self.pids.clone() };
        let mut sampled = thread_samples::sample(sampler, &processes, DEFAULT_SAMPLES)?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).add_to(&mut sampled);
        let report = StacksReport::build(sampled, false);
        let states = &self.latest.get().gpu_states;
        Ok(stacks_json(&report, states, unix_seconds(), Architecture::OF_HOST))
    }
}
