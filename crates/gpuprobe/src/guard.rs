//! A small process beside us that lets go what we have stopped, should we be killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use gpuprobe_capture::TargetIds;

/// The guard. Dropped without being dismissed, as on an error, it lets everybody go as if we had been killed.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts it for the processes of a capture.
    pub(crate) fn start(ids: TargetIds) -> Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args(["__guard", &ids.targets.to_string(), &ids.held.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // out of reach of a Ctrl-C meant for the command
            .process_group(0)
            .spawn()
            .context("cannot start the process that guards stopped ones")?;
        Ok(Self { child })
    }
}

impl Guard {
    /// All went well: nobody waits for us any more.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            stdin.write_all(b"done").ok();
        }
        self.child.wait().ok();
    }
}
