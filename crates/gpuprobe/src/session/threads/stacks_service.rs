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
use crate::session::host::kernel_log_xids::KernelLogXids;
use crate::session::host::nccl_ras::nccl_status;
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

/// What is read on request. It is opened before privileges are given up.
#[derive(Debug)]
pub(crate) struct StacksSources {
    iterator: ThreadIterator,
    log: KernelLogXids,
}

impl StacksSources {
    pub(crate) fn open() -> Result<Self> {
        Ok(Self { iterator: ThreadIterator::new()?, log: KernelLogXids::open() })
    }
}

impl StacksService {
    /// Starts the thread.
    pub(crate) fn start(sources: StacksSources, latest: Latest) -> Result<Self> {
        let (source, requests) = stacks_requests();
        let seen = Arc::new(Mutex::new(SeenByProbes::default()));
        let worker = Worker { requests, latest, seen: Arc::clone(&seen) };
        let thread = std::thread::Builder::new().name("stacks".to_owned());
        thread.spawn(move || worker.run(sources)).context("cannot start the thread that samples stacks")?;
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
    fn run(mut self, sources: StacksSources) {
        let StacksSources { iterator, mut log } = sources;
        let mut sampler = ThreadSampler::of(iterator);
        while let Some(clients) = self.requests.wait() {
            match self.stacks(&mut sampler, &mut log) {
                Ok(json) => clients.answer(json),
                // the clients get an error when this is dropped
                Err(error) => note!("gpuprobe: cannot sample stacks: {error:#}"),
            }
        }
    }

    fn stacks(&self, sampler: &mut ThreadSampler, log: &mut KernelLogXids) -> Result<String> {
        let all = || gpu_processes(Path::new("/proc")).into_iter().map(Tgid).collect();
        let chosen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).processes.clone();
        let processes: Vec<Tgid> = chosen.unwrap_or_else(all);
        let gpus = self.latest.get().gpus.clone();
        let mut sampled = thread_samples::sample(sampler, &processes, DEFAULT_SAMPLES, &gpus)?;
        // read after the samples, because calls may have returned
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).open.add_to(&mut sampled);
        let mut report = StacksReport::build(sampled, false);
        // answers within two seconds, so that no client waits in vain
        report.nccl = nccl_status(&processes);
        report.xids = log.recent(&gpus);
        let states = &self.latest.get().gpu_states;
        Ok(stacks_json(&report, states, unix_seconds(), Architecture::OF_HOST))
    }
}
