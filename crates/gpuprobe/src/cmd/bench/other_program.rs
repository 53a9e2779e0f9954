//! Another program that probes its own copy of the library, to be compared with gpuprobe (`--beside`).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::session::signals::unblock_signals;

/// The environment variable with the path of the library.
const VARIABLE: &str = "GPUPROBE_LIBRARY";
/// How long it may take to print its counts and to detach its probes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running program. Dropping it ends the program.
#[derive(Debug)]
pub(super) struct OtherProgram(Child);

impl OtherProgram {
    /// Starts a shell command.
    pub(super) fn start(command: &str, library: &Path) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env(VARIABLE, library).stdin(Stdio::null());
        // its output is not part of our table
        shell.stdout(io::stderr());
        // signals must reach the shell and what it started
        shell.process_group(0);
        // it needs the signals that gpuprobe blocks; a child inherits the mask of the thread that starts it
        let started = thread::spawn(move || {
            unblock_signals()?;
            shell.spawn().context("cannot start the command of --beside")
        });
        Ok(Self(started.join().ok().context("cannot start the command of --beside")??))
    }

    /// Fails if it has exited.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("the command of --beside has exited ({status})"),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // it may have exited already
            killpg(Pid::from_raw(pid), signal).ok();
        }
    }
}

impl Drop for OtherProgram {
    /// Sends SIGINT, as a terminal does, so that it can print its counts, and SIGKILL if it does not exit.
    fn drop(&mut self) {
        self.signal(Signal::SIGINT);
        let signalled = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if signalled.elapsed() > PATIENCE {
                self.signal(Signal::SIGKILL);
                self.0.wait().ok();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
