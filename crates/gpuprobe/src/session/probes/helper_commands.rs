//! The command lines of the helper processes: the attach helper, the file readers and the recorder.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The attach helper owns the BPF links. If gpuprobe is killed, it detaches the probes and resumes the processes that
/// gpuprobe has paused. With `pauses`, processes are paused until their libraries are probed.
pub(crate) fn attach_helper(pauses: bool) -> Command {
    let mut command = helper("__guard", pauses);
    // Ctrl-C in the terminal must not reach it
    command.process_group(0);
    command
}

/// The process that starts file readers.
pub(crate) fn file_reader_starter(pauses: bool) -> Command {
    let mut command = file_reader(pauses);
    command.arg("--starter");
    command
}

/// A process that reads files of other processes: a file system that does not respond blocks the reader, not gpuprobe.
/// With `pauses`, processes are paused meanwhile, so the reader must not wait for a CPU.
pub(crate) fn file_reader(pauses: bool) -> Command {
    helper("__reader", pauses)
}

/// The process that records on demand for a daemon that may no longer load BPF programs or execute programs.
pub(crate) fn recorder() -> Command {
    let mut command = helper("__recorder", false);
    command.process_group(0);
    command
}

/// A process that makes one recording.
pub(crate) fn record_one() -> Command {
    helper("__record", false)
}

fn helper(subcommand: &str, pauses: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand);
    if pauses {
        command.arg("--holds");
    }
    command
}
