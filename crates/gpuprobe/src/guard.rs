//! A small process beside us that puts probes in and takes them out, and lets go what we have stopped, should we be
//! killed.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts it. With `holds`, processes are held until their libraries are probed.
pub(crate) fn command(holds: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("__guard");
    if holds {
        command.arg("--holds");
    }
    // out of reach of a Ctrl-C meant for the command
    command.process_group(0);
    command
}
