//! Adds the state of their GPUs to the out-of-memory errors of a recording: free memory, and other processes. `daemon`
//! and `memory` take the same from their snapshots.

use std::time::Duration;

use anyhow::Result;
use gpuprobe_analysis::Snapshot;
use gpuprobe_capture::{Batch, Capture};
use gpuprobe_event::{Event, OutOfMemoryEvent};

use super::gpu_numbering::GpuNumbering;
use super::gpu_state_poller::GpuStatePoller;
use super::processes::Processes;
use crate::cli::{NvmlArgs, RESCAN};

/// NVML is read this often, and errors get the last reading: the answer of NVML may take long.
const READ_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct ErrorGpus {
    numbering: GpuNumbering,
    states: GpuStatePoller,
}

impl ErrorGpus {
    /// Starts to read NVML; `None` with `--nvml off`.
    pub(crate) fn start(args: &NvmlArgs, verbose: bool) -> Result<Option<Self>> {
        let states = GpuStatePoller::start(args, READ_EVERY, None, verbose)?;
        let numbering = || GpuNumbering::new(&args.driver_folder, RESCAN);
        Ok(states.map(|states| Self { numbering: numbering(), states }))
    }

    /// Finds the GPUs of running processes. Called often, because nothing is known of a process that has exited, and
    /// errors may be decoded long after they happened.
    pub(crate) fn learn(&mut self, processes: &mut Processes, capture: &Capture) -> Result<()> {
        let (identities, (_, contexts)) = (capture.identities()?, capture.memory()?);
        self.numbering.learn(&identities, &contexts, processes);
        Ok(())
    }

    /// Takes in the processes of a batch, and completes its errors with the last reading of NVML.
    pub(crate) fn take(
        &mut self,
        batch: &mut Batch,
        processes: &mut Processes,
        capture: &Capture,
    ) -> Result<()> {
        let now_ns = capture.clock().elapsed_ns();
        if errors(batch).next().is_none() {
            processes.take(batch, now_ns);
            return Ok(());
        }
        // before and after: the GPUs of a process can be found only while it runs, and the batch may have its start or
        // its exit
        self.learn(processes, capture)?;
        processes.take(batch, now_ns);
        self.learn(processes, capture)?;
        let mut snapshot = Snapshot { gpus: self.numbering.host().to_vec(), ..Snapshot::default() };
        self.states.add_to(&mut snapshot, false);
        for error in errors(batch) {
            if let Some(gpu) = error.gpu.and_then(|gpu| processes.host_gpu(error.tgid, gpu)) {
                snapshot.gpu_states.complete(error, gpu);
            }
        }
        Ok(())
    }
}

fn errors(batch: &mut Batch) -> impl Iterator<Item = &mut OutOfMemoryEvent> {
    batch.calls.iter_mut().filter_map(|event| match event {
        Event::OutOfMemory(error) => Some(error.as_mut()),
        _ => None,
    })
}
