//! The paused copy of gpuprobe (`__exec`): waits for a signal, then executes the command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::ignore_quit_signal;
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Gid, Pid, Uid, getppid, setgroups, setresgid, setresuid};

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
    // last, because it needs privileges to change limits; setuid clears the parent-death signal anyway
    if let [uid, gid] = args.ids[..] {
        become_user(uid, gid, &args.groups)
            .context("cannot change the user of the command (--as-root does not)")?;
    }
    if args.ignore_quit {
        ignore_quit_signal();
    }
    unblock_signals()?;
    let error = Command::new(program).arg0(name).args(arguments).exec();
    bail!("cannot run {}: {error}", program.display());
}

/// Gives up root for good: groups first, because only root can change them.
fn become_user(uid: u32, gid: u32, groups: &[u32]) -> nix::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&groups.iter().copied().map(Gid::from_raw).collect::<Vec<_>>())?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}
