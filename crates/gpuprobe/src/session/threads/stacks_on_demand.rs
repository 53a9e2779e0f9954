//! Ctrl-\ during a recording: shows what the threads wait for, while the recording goes on.

use std::collections::HashMap;
use std::io;
use std::thread::JoinHandle;

use anyhow::Result;
use gpuprobe_analysis::StacksReport;
use gpuprobe_analysis::threads::sample::LastOperation;
use gpuprobe_capture::{ThreadSampler, terminal_size};
use gpuprobe_event::Tgid;
use gpuprobe_output::{Architecture, StacksOptions, stacks};

use super::thread_samples::{self, OpenCalls};
use crate::cli::{DEFAULT_SAMPLES, NvmlArgs};
use crate::session::host::gpu_look::GpuLook;
use crate::session::host::nccl_ras::nccl_status;
use crate::terminal::notes::{note, print_stderr};

/// Columns if stderr is not a terminal.
const WIDTH: usize = 160;

/// Shows stacks in a thread of its own, because reading the ring buffer must not wait for it.
#[derive(Debug)]
pub(crate) struct StacksOnDemand {
    nvml: NvmlArgs,
    running: Option<JoinHandle<()>>,
}

/// What the probes of a recording know about the processes.
#[derive(Debug)]
pub(crate) struct KnownByProbes {
    pub(crate) open: OpenCalls,
    /// The last operation on each stream.
    pub(crate) streams: HashMap<Tgid, Vec<LastOperation>>,
}

impl StacksOnDemand {
    pub(crate) fn new(nvml: &NvmlArgs) -> Self {
        Self { nvml: nvml.clone(), running: None }
    }

    /// Starts to sample these processes, unless this is still under way.
    pub(crate) fn request(&mut self, processes: Vec<Tgid>, known: KnownByProbes) {
        if self.running.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let nvml = self.nvml.clone();
        let show = move || {
            if let Err(error) = show(&nvml, &processes, known) {
                note!("gpuprobe: cannot show the stacks: {error:#}");
            }
        };
        self.running = std::thread::Builder::new().name("gpuprobe-stacks".to_owned()).spawn(show).ok();
    }
}

impl Drop for StacksOnDemand {
    /// What was asked for is shown, even if the command exits meanwhile.
    fn drop(&mut self) {
        if let Some(thread) = self.running.take() {
            thread.join().ok();
        }
    }
}

fn show(nvml: &NvmlArgs, processes: &[Tgid], mut known: KnownByProbes) -> Result<()> {
    let mut sampler = ThreadSampler::new()?;
    let gpus = GpuLook::start(nvml, processes).unwrap_or_else(|error| {
        note!("gpuprobe: the state of GPUs is not read: {error:#}");
        GpuLook::without_nvml(nvml)
    });
    let mut sampled = thread_samples::sample(&mut sampler, processes, DEFAULT_SAMPLES, gpus.host())?;
    known.open.add_to(&mut sampled);
    for process in &mut sampled {
        process.streams = known.streams.remove(&process.tgid).unwrap_or_default();
    }
    let mut report = StacksReport::build(sampled, false);
    report.nccl = nccl_status(processes);
    report.xids = gpus.recent_xids();
    let width = terminal_size(io::stderr()).map_or(WIDTH, |(columns, _)| columns.into());
    let options = StacksOptions { width, architecture: Architecture::OF_HOST };
    print_stderr(format_args!("{}", stacks(&report, &gpus.states(), &options)));
    Ok(())
}
