//! `gpuprobe stacks`: shows what the threads of GPU processes wait for.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::StacksReport;
use gpuprobe_capture::{ThreadSampler, may_read_others, terminal_size};
use gpuprobe_discover::{gpu_processes, read_files_by};
use gpuprobe_event::Tgid;
use gpuprobe_output::units::count;
use gpuprobe_output::{Architecture, StacksOptions, stacks, stacks_json};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::cli::StacksArgs;
use crate::session::follow::process_set::process_of_thread;
use crate::session::host::gpu_look::GpuLook;
use crate::session::host::nccl_ras::nccl_status;
use crate::session::host::observer::unix_seconds;
use crate::session::probes::helper_commands;
use crate::session::threads::thread_samples;
use crate::terminal::notes::note;
use crate::terminal::stdout::print;

/// Columns if the output is not a terminal.
const WIDTH: usize = 160;

pub(crate) fn run(args: &StacksArgs) -> Result<u8> {
    let mut sampler = ThreadSampler::new()?;
    read_files_by(helper_commands::file_reader_starter(false)).context("cannot start the file reader")?;
    let processes = processes(&args.pids)?;
    let gpus = GpuLook::start(&args.nvml, &processes)?;
    let sampled = thread_samples::sample(&mut sampler, &processes, args.samples, gpus.host())?;
    if sampler.is_cut() {
        note!("gpuprobe: there are more threads than are read at once: -d PID chooses processes");
    }
    if sampled.is_empty() {
        bail!("no thread could be sampled: the processes have exited, or belong to the Linux kernel");
    }
    let states = gpus.states();
    let mut report = StacksReport::build(sampled, args.all_threads);
    report.nccl = nccl_status(&processes);
    report.xids = gpus.recent_xids();
    let architecture = Architecture::OF_HOST;
    let text = if args.json {
        stacks_json(&report, &states, unix_seconds(), architecture)
    } else {
        let width = terminal_size(io::stdout()).map_or(WIDTH, |(columns, _)| columns.into());
        stacks(&report, &states, &StacksOptions { width, architecture })
    };
    print(&text)?;
    Ok(0)
}

/// The processes that the user gave, or all that use GPUs.
fn processes(pids: &[u32]) -> Result<Vec<Tgid>> {
    for pid in pids {
        check_process(*pid)?;
    }
    if !pids.is_empty() {
        return Ok(pids.iter().copied().map(Tgid).collect());
    }
    let found: Vec<u32> = gpu_processes(Path::new("/proc"));
    if found.is_empty() {
        let among = if may_read_others() { "" } else { " that may be examined without CAP_SYS_PTRACE" };
        bail!("no process{among} has a GPU open or a CUDA library mapped; -d PID shows any process");
    }
    let denied = found.iter().filter(|pid| !may_read_memory(**pid)).count();
    if denied > 0 {
        let denied = count(denied as u64, "process", "processes");
        note!("gpuprobe: the memory of {denied} may not be read, so frames are missing: {}", remedy());
    }
    Ok(found.into_iter().map(Tgid).collect())
}

const REMEDY: &str = "run as root or with CAP_SYS_PTRACE";

/// What to do if the memory of a process may not be read.
fn remedy() -> &'static str {
    let despite = "gpuprobe has CAP_SYS_PTRACE, but the process is protected or in another user namespace";
    if may_read_others() { despite } else { REMEDY }
}

fn check_process(pid: u32) -> Result<()> {
    if let Some(process) = process_of_thread(pid) {
        bail!("{pid} is a thread of process {process}: use -d {process}");
    }
    if !Path::new("/proc").join(pid.to_string()).exists() {
        if is_hidden(pid) {
            bail!("/proc does not show process {pid} to this user: {REMEDY}");
        }
        bail!("there is no process {pid}");
    }
    if !may_read_memory(pid) {
        bail!("the memory of process {pid} may not be read: {}", remedy());
    }
    Ok(())
}

/// Whether a process that /proc does not show is there: the option `hidepid` hides those of other users.
fn is_hidden(pid: u32) -> bool {
    let number = i32::try_from(pid).ok().filter(|number| *number > 0);
    number.is_some_and(|number| kill(Pid::from_raw(number), None) == Err(Errno::EPERM))
}

/// Recent Linux kernels show the mappings of a process to those who may not read its memory: native frames would be
/// there, and Python frames would be missing.
fn may_read_memory(pid: u32) -> bool {
    let opened = File::open(format!("/proc/{pid}/mem"));
    !opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}
