//! The other half of `guard`: keeps the probes of its parent until the parent's end.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuprobe_capture::{Ended, Kept, TargetList, give_up_privileges, refuse_system_calls};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::GuardArgs;
use crate::launch::is_stopped;
use crate::signals::Signals;

/// How long stopped processes are looked for once the probes are out: a signal takes a moment to arrive.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &GuardArgs) -> Result<u8> {
    // who ends a whole service or container sends this to us too; the parent still needs us then
    let _held_back = Signals::hold_back()?;
    let mut kept = Kept::receive(&args.files, args.holds).context("cannot take over the probes")?;
    if !args.holds {
        // of a daemon: it lets nobody go, and may run for months
        give_up_privileges(args.perf).context("cannot give up privileges")?;
        // where there are no filters the daemon says so
        refuse_system_calls().context("cannot set a filter on our own system calls")?;
    }
    let ended = kept.serve(io::stdin().lock(), io::stdout().lock());
    // the parent was killed or failed, and may have left processes waiting or stopped
    let free = args.holds && ended == Ended::Gone;
    while {
        if free {
            let_go(kept.targets());
        }
        kept.take_some_out()
    } {}
    for _ in 0..if free { LOOKS } else { 0 } {
        let_go(kept.targets());
        sleep(BETWEEN_LOOKS);
    }
    Ok(0)
}

fn let_go(targets: &TargetList) {
    for tgid in targets.tgids() {
        targets.let_go(tgid);
        if is_stopped(tgid) {
            kill(Pid::from_raw(tgid.cast_signed()), Signal::SIGCONT).ok();
        }
    }
}
