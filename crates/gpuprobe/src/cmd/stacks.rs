//! `gpuprobe stacks`: shows what the threads of GPU processes wait for.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::{Snapshot, StacksReport};
use gpuprobe_capture::{ThreadSampler, terminal_size};
use gpuprobe_discover::{gpu_processes, read_files_by};
use gpuprobe_event::Tgid;
use gpuprobe_output::{Architecture, StacksOptions, stacks, stacks_json};

use crate::cli::StacksArgs;
use crate::session::follow::process_set::process_of_thread;
use crate::session::host::gpu_state_poller::GpuStatePoller;
use crate::session::host::nccl_ras::nccl_status;
use crate::session::host::observer::unix_seconds;
use crate::session::probes::helper_commands;
use crate::session::threads::thread_samples;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;

/// How often the state of the GPUs is read.
const GPU_STATE_EVERY: Duration = Duration::from_millis(200);
/// Columns if the output is not a terminal.
const WIDTH: usize = 160;

pub(crate) fn run(args: &StacksArgs) -> Result<u8> {
    let mut sampler = ThreadSampler::new()?;
    read_files_by(helper_commands::file_reader_starter(false)).context("cannot start the file reader")?;
    let processes = processes(&args.pids)?;
    let states = GpuStatePoller::start(&args.nvml, GPU_STATE_EVERY, Some(processes.clone()), false)?;
    let sampled = thread_samples::sample(&mut sampler, &processes, args.samples)?;
    if sampler.is_cut() {
        note!("gpuprobe: there are more threads than are read at once: -d PID chooses processes");
    }
    let mut snapshot = Snapshot::default();
    if let Some(states) = &states {
        states.add_to(&mut snapshot, false);
    }
    let mut report = StacksReport::build(sampled, args.all_threads);
    report.nccl = nccl_status(&processes);
    let architecture = Architecture::OF_HOST;
    let text = if args.json {
        stacks_json(&report, &snapshot.gpu_states, unix_seconds(), architecture)
    } else {
        let width = terminal_size(io::stdout()).map_or(WIDTH, |(columns, _)| columns.into());
        stacks(&report, &snapshot.gpu_states, &StacksOptions { width, architecture })
    };
    print(&text)?;
    Ok(0)
}

/// The processes that the user gave, or all that use GPUs.
fn processes(pids: &[u32]) -> Result<Vec<Tgid>> {
    for pid in pids {
        if let Some(process) = process_of_thread(*pid) {
            bail!("{pid} is a thread of process {process}: use -d {process}");
        }
        if !Path::new("/proc").join(pid.to_string()).exists() {
            bail!("there is no process {pid}");
        }
    }
    if !pids.is_empty() {
        return Ok(pids.iter().copied().map(Tgid).collect());
    }
    let found: Vec<Tgid> = gpu_processes(Path::new("/proc")).into_iter().map(Tgid).collect();
    if found.is_empty() {
        bail!("no process has a GPU open or a CUDA library mapped; -d PID shows any process");
    }
    Ok(found)
}
