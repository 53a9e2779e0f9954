//! A small process beside us that looks at files of others: a file system that does not answer keeps it, and not us.

use std::process::Command;

/// Starts it. With `holds`, processes are held until their libraries are probed, so that it must not wait for a CPU.
pub(crate) fn command(holds: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("__reader");
    if holds {
        command.arg("--holds");
    }
    command
}
