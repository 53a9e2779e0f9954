//! Ctrl-\ during a recording: shows what the threads wait for, while the recording goes on.

use std::io;
use std::thread::JoinHandle;

use anyhow::Result;
use gpuprobe_analysis::{GpuStates, StacksReport};
use gpuprobe_capture::{Capture, ThreadSampler, terminal_size};
use gpuprobe_event::{Call, Tgid};
use gpuprobe_output::{Architecture, StacksOptions, stacks};

use super::thread_samples::{self, OpenCalls};
use crate::cli::DEFAULT_SAMPLES;
use crate::session::host::nccl_ras::nccl_status;
use crate::terminal::notes::{note, print_stderr};

/// Columns if stderr is not a terminal.
const WIDTH: usize = 160;

/// Shows stacks in a thread of its own, because reading the ring buffer must not wait for it.
#[derive(Debug, Default)]
pub(crate) struct StacksOnDemand {
    running: Option<JoinHandle<()>>,
    /// There was a request since the last [`Self::take_request`].
    is_new: bool,
}

impl StacksOnDemand {
    /// Whether stacks were requested since the last time.
    pub(crate) fn take_request(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Starts to sample these processes, unless this is still under way.
    pub(crate) fn request(&mut self, capture: &mut Capture, processes: Vec<Tgid>) {
        if self.running.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        self.is_new = true;
        let calls: Vec<Call> = capture.open_calls().unwrap_or_default();
        let open = OpenCalls { calls, now_ns: capture.clock().elapsed_ns() };
        let show = move || {
            if let Err(error) = show(&processes, &open) {
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

fn show(processes: &[Tgid], open: &OpenCalls) -> Result<()> {
    let mut sampler = ThreadSampler::new()?;
    let mut sampled = thread_samples::sample(&mut sampler, processes, DEFAULT_SAMPLES)?;
    open.add_to(&mut sampled);
    let mut report = StacksReport::build(sampled, false);
    report.nccl = nccl_status(processes);
    let width = terminal_size(io::stderr()).map_or(WIDTH, |(columns, _)| columns.into());
    let options = StacksOptions { width, architecture: Architecture::OF_HOST };
    print_stderr(format_args!("{}", stacks(&report, &GpuStates::default(), &options)));
    Ok(())
}
