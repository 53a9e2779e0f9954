//! Another program that puts probes into a library of its own, to be measured beside ours.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::signals::let_through;

/// Where the command finds the name of the library.
const VARIABLE: &str = "GPUPROBE_LIBRARY";
/// To print what it has counted, and to take its probes out.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running program, told to end when this goes.
#[derive(Debug)]
pub(super) struct Rival(Child);

impl Rival {
    /// Starts a command of the shell.
    pub(super) fn start(command: &str, library: &Path) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env(VARIABLE, library).stdin(Stdio::null());
        // what it says is no part of our table
        shell.stdout(io::stderr());
        // a shell and what it started are told together
        shell.process_group(0);
        // it must hear of signals that we hold back, and children have the mask of the thread that starts them
        let started = thread::spawn(move || {
            let_through()?;
            shell.spawn().context("cannot start the command of --beside")
        });
        Ok(Self(started.join().ok().context("cannot start the command of --beside")??))
    }

    /// That it still runs.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the command of --beside has ended ({status})"),
        }
    }

    fn tell(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // one that has ended needs no telling
            killpg(Pid::from_raw(pid), signal).ok();
        }
    }
}

impl Drop for Rival {
    /// As at a terminal: it may print what it counted. One that does not end is ended.
    fn drop(&mut self) {
        self.tell(Signal::SIGINT);
        let told = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if told.elapsed() > PATIENCE {
                self.tell(Signal::SIGKILL);
                self.0.wait().ok();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
