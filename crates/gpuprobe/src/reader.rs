//! Small processes beside us that look at files of others: a file system that does not answer keeps one of them, and not us.

use std::process::Command;

/// Starts the process that starts them. With `holds`, processes are held until their libraries are probed, so that readers
/// must not wait for a CPU.
pub(crate) fn starter(holds: bool) -> Command {
    let mut command = reader(holds);
    command.arg("--starter");
    command
}

/// Starts one that reads.
pub(crate) fn reader(holds: bool) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("__reader");
    if holds {
        command.arg("--holds");
    }
    command
}
