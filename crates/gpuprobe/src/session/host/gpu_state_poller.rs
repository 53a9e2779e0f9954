//! Reads the state of GPUs from NVML and ROCm SMI, and adds it to snapshots.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use gpuprobe_analysis::{Compared, GpuStates, Snapshot};
use gpuprobe_capture::{NVML_LIBRARY, Nvml, NvmlLoader, trusted_nvml};
use gpuprobe_event::{GpuReadings, Tgid};

use super::nvml_loader::nvml_loader;
use crate::cli::NvmlArgs;
use crate::terminal::notes::note;

#[derive(Debug)]
pub(crate) struct GpuStatePoller {
    nvml: Nvml,
    /// The observed processes; `None` for the whole host.
    only: Option<Vec<Tgid>>,
    verbose: bool,
}

impl GpuStatePoller {
    /// Starts to read at this interval; `None` with `--nvml off`.
    pub(crate) fn start(
        args: &NvmlArgs,
        every: Duration,
        only: Option<Vec<Tgid>>,
        verbose: bool,
    ) -> Result<Option<Self>> {
        Self::start_with(nvml_loader(), args, every, only, verbose)
    }

    /// The same, with a helper process that may run already.
    pub(crate) fn start_with(
        loader: NvmlLoader,
        args: &NvmlArgs,
        every: Duration,
        only: Option<Vec<Tgid>>,
        verbose: bool,
    ) -> Result<Option<Self>> {
        if args.nvml == "off" {
            return Ok(None);
        }
        // a library that the user named must be usable; the default one is optional
        if args.nvml != NVML_LIBRARY {
            trusted_nvml(&args.nvml).map_err(Error::msg)?;
        }
        let nvml =
            Nvml::start(loader, &args.nvml, every).context("cannot start the thread that reads NVML")?;
        Ok(Some(Self { nvml, only, verbose }))
    }

    /// Changes how often NVML is read.
    pub(crate) fn read_every(&self, every: Duration) {
        self.nvml.read_every(every);
    }

    /// Adds the last readings to a snapshot. Never blocks.
    pub(crate) fn add_to(&self, snapshot: &mut Snapshot, follows_memory: bool) {
        if let Some(trouble) = self.nvml.error_message().filter(|_| self.verbose) {
            note!("gpuprobe: {trouble}");
        }
        for refusal in self.nvml.refusals() {
            note!("gpuprobe: {refusal}");
        }
        self.add_quietly(snapshot, follows_memory);
    }

    /// The same without notes about what NVML refuses, for one look at the GPUs.
    pub(crate) fn add_quietly(&self, snapshot: &mut Snapshot, follows_memory: bool) {
        let compared = match &self.only {
            _ if !follows_memory => Compared::NoProcess,
            Some(pids) => Compared::Only(pids),
            None => Compared::AllProcesses,
        };
        let readings = self.nvml.readings();
        let others = others(&readings, snapshot);
        snapshot.gpu_states = GpuStates::build(&readings, snapshot, &others, compared);
    }
}

/// The names of processes that use a GPU but have no observed calls. Exited processes have no name.
fn others(readings: &GpuReadings, snapshot: &Snapshot) -> HashMap<Tgid, String> {
    let gpus = readings.gpus.iter().chain(&readings.amd);
    let pids = gpus.flat_map(|gpu| &gpu.processes).map(|process| process.pid);
    let unobserved = pids.filter(|pid| snapshot.running(*pid).is_none());
    unobserved.filter_map(|pid| Some((pid, name(pid)?))).collect()
}

fn name(pid: Tgid) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}
