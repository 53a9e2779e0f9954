//! The other half of `guard`: waits for its parent's end.

use std::io::{self, Read};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use gpuprobe_capture::{TargetIds, TargetList};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cli::GuardArgs;
use crate::launch::is_stopped;

/// How long stopped processes are looked for: probes of a killed process are taken out within this time.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &GuardArgs) -> Result<u8> {
    let targets = TargetList::open(TargetIds { targets: args.targets, held: args.held })?;
    let mut said = Vec::new();
    io::stdin().read_to_end(&mut said)?;
    if !said.is_empty() {
        return Ok(0);
    }
    // the end without a word: the parent was killed, and may have left processes waiting or stopped
    for _ in 0..LOOKS {
        for tgid in targets.tgids() {
            targets.let_go(tgid);
            if is_stopped(tgid) {
                kill(Pid::from_raw(tgid.cast_signed()), Signal::SIGCONT).ok();
            }
        }
        sleep(BETWEEN_LOOKS);
    }
    Ok(0)
}
