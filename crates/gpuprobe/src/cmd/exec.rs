//! The other half of `launch`: stops, and becomes the command when it is let go.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};

use crate::cli::ExecArgs;
use crate::signals::let_through;

pub(crate) fn run(args: &ExecArgs) -> Result<u8> {
    let [program, name, arguments @ ..] = args.command.as_slice() else { bail!("nothing to run") };
    // whoever started us watches first; should it be killed before it lets us go, nobody would ever do so
    set_pdeathsig(Signal::SIGKILL)?;
    raise(Signal::SIGSTOP)?;
    set_pdeathsig(None)?;
    let_through()?;
    let error = Command::new(program).arg0(name).args(arguments).exec();
    bail!("cannot run {}: {error}", program.display());
}
