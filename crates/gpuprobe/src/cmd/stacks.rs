//! `gpuprobe stacks`: shows what the threads of GPU processes wait for.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::ThreadSampler;
use gpuprobe_discover::{gpu_processes, read_files_by};
use gpuprobe_event::Tgid;

use crate::cli::StacksArgs;
use crate::session::follow::process_set::process_of_thread;
use crate::session::probes::helper_commands;
use crate::session::threads::thread_samples;
use crate::terminal::stdout::print;

pub(crate) fn run(args: &StacksArgs) -> Result<u8> {
    let mut sampler = ThreadSampler::new()?;
    read_files_by(helper_commands::file_reader_starter(false)).context("cannot start the file reader")?;
    let processes = processes(&args.pids)?;
    let sampled = thread_samples::sample(&mut sampler, &processes, args.samples)?;
    print(&format!("{sampled:#?}\n"))?;
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
