//! The other half of `launch`: waits, and becomes the command when it is let go.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};

use crate::cli::ExecArgs;
use crate::launch::{GO, READY};
use crate::signals::let_through;

pub(crate) fn run(args: &ExecArgs) -> Result<u8> {
    let [program, name, arguments @ ..] = args.command.as_slice() else { bail!("nothing to run") };
    // whoever started us watches first; should it be killed before it lets us go, nobody would ever do so
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != Pid::from_raw(args.parent) {
        bail!("whoever started this has ended");
    }
    set_name(READY)?;
    let mut word = SigSet::empty();
    word.add(GO);
    word.wait()?;
    set_pdeathsig(None)?;
    if let [soft, hard] = args.files[..] {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    let_through()?;
    let error = Command::new(program).arg0(name).args(arguments).exec();
    bail!("cannot run {}: {error}", program.display());
}
