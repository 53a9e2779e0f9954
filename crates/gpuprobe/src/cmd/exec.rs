//! The paused copy of gpuprobe (`__exec`): waits for a signal, then executes the command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};

use crate::cli::ExecArgs;
use crate::session::command::launch::{PAUSED_NAME, RESUME_SIGNAL};
use crate::session::signals::unblock_signals;

pub(crate) fn run(args: &ExecArgs) -> Result<u8> {
    let [program, name, arguments @ ..] = args.command.as_slice() else { bail!("nothing to run") };
    // if the parent is killed before it sends the signal, this process would wait forever
    set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != Pid::from_raw(args.parent) {
        bail!("the process that started this one has exited");
    }
    set_name(PAUSED_NAME)?;
    let mut resume = SigSet::empty();
    resume.add(RESUME_SIGNAL);
    resume.wait()?;
    set_pdeathsig(None)?;
    if let [soft, hard] = args.files[..] {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    unblock_signals()?;
    let error = Command::new(program).arg0(name).args(arguments).exec();
    bail!("cannot run {}: {error}", program.display());
}
