//! The attach helper process (`__guard`): owns the BPF links of its parent until the parent exits.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuprobe_capture::{HelperEnd, HelperServer, TargetList, drop_privileges, install_seccomp_filter};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::AttachHelperArgs;
use crate::session::command::launch::is_stopped;
use crate::session::signals::Signals;

/// How often stopped processes are checked for after the probes are detached: a stop signal may still be on its way.
const CHECKS: u32 = 10;
const BETWEEN_CHECKS: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &AttachHelperArgs) -> Result<u8> {
    // when a whole service or container is ended, the helper gets the signal too, but the parent still needs it
    let _blocked = Signals::block()?;
    let mut links = HelperServer::receive(&args.files, args.pauses).context("cannot take over the probes")?;
    if !args.pauses {
        // the helper of a daemon: it resumes no processes, and may run for months
        drop_privileges(args.perf).context("cannot give up privileges")?;
        // if seccomp filters are not supported, the daemon reports it
        install_seccomp_filter().context("cannot install the seccomp filter")?;
    }
    let ended = links.serve(io::stdin().lock(), io::stdout().lock());
    // the parent was killed or failed, and may have left processes paused
    let must_resume = args.pauses && ended == HelperEnd::ClientExited;
    while {
        if must_resume {
            resume_all(links.targets());
        }
        links.detach_some()
    } {}
    for _ in 0..if must_resume { CHECKS } else { 0 } {
        resume_all(links.targets());
        sleep(BETWEEN_CHECKS);
    }
    Ok(0)
}

fn resume_all(targets: &TargetList) {
    for tgid in targets.tgids() {
        targets.release(tgid);
        if is_stopped(tgid) {
            kill(Pid::from_raw(tgid.cast_signed()), Signal::SIGCONT).ok();
        }
    }
}
