//! Starts a command so that nothing of it runs before it is watched.
//!
//! The command is started by a copy of this program that waits for a signal; once it is watched it is let go, and
//! becomes the command by exec.

use std::ffi::{CStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::files_before;
use gpuprobe_event::Tgid;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::signals::status_of;

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Launched {
    child: Child,
    gone_on: bool,
}

/// The word to go on, for the copy that waits to become the command.
pub(crate) const GO: Signal = Signal::SIGUSR2;
/// The name that the copy takes when it waits for it.
pub(crate) const READY: &CStr = c"gpuprobe-waits";

impl Drop for Launched {
    /// One that was never let go would wait for ever.
    fn drop(&mut self) {
        if !self.gone_on {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

impl Launched {
    /// Starts the command up to the point where it would exec. Signals must be held back already: the word to go on
    /// is one of them, and must find it waiting.
    pub(crate) fn waiting(command: &[OsString]) -> Result<Self> {
        let Some(program) = command.first() else { bail!("no command given") };
        let found = find(Path::new(program))?;
        let mut words = vec![found.into_os_string()];
        words.extend_from_slice(command);
        // what we have raised for ourselves is not the command's
        let files = files_before().map(|(soft, hard)| ["--files".into(), soft.to_string(), hard.to_string()]);
        let files = files.into_iter().flatten();
        // the copy gets the path that was found and, as argument 0, the name that was given
        let child = Command::new("/proc/self/exe")
            .arg("__exec")
            .args(files)
            .arg(std::process::id().to_string())
            .arg("--")
            .args(words)
            .spawn()
            .context("cannot start a process")?;
        let launched = Self { child, gone_on: false };
        launched.until_ready();
        Ok(launched)
    }

    /// A process counts as started while it is still in its exec; who is watched from then on would be seen to execute
    /// this copy. One that does not get ready, or ends, is noticed later.
    fn until_ready(&self) {
        const WAIT: Duration = Duration::from_micros(200);
        const LOOKS: u32 = 10_000;
        let comm = format!("/proc/{}/comm", self.child.id());
        let is_ready = || std::fs::read(&comm).is_ok_and(|name| name.trim_ascii_end() == READY.to_bytes());
        (0..LOOKS)
            .take_while(|_| !is_ready() && state(self.child.id()) != Some('Z'))
            .for_each(|_| sleep(WAIT));
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn tgid(&self) -> Tgid {
        Tgid(self.child.id())
    }

    /// Lets it go on, and become the command.
    pub(crate) fn go(&mut self) -> Result<()> {
        self.gone_on = true;
        kill(self.pid(), GO).context("cannot continue the command")
    }

    /// Passes a signal on.
    pub(crate) fn signal(&self, signal: Signal) {
        // it may have ended in this moment; then the signal has nobody left to tell
        kill(self.pid(), signal).ok();
    }

    /// How it ended, as a shell says it: the exit status, or 128 plus the signal; `None` while it runs.
    pub(crate) fn ended(&self) -> Result<Option<u8>> {
        let status =
            waitpid(self.pid(), Some(WaitPidFlag::WNOHANG)).context("cannot wait for the command")?;
        Ok(match status {
            WaitStatus::Exited(_, code) => Some(u8::try_from(code & 0xff).unwrap_or(1)),
            WaitStatus::Signaled(_, signal, _) => Some(status_of(signal)),
            _ => None,
        })
    }
}

/// Continues a process that we have stopped, and with it parents that stopped themselves because of it, as su and
/// sudo do. They do so in the moment in which they see it, so that is waited for a little.
pub(crate) fn continue_stopped(tgid: Tgid) {
    const LOOKS: u32 = 5;
    kill(Pid::from_raw(tgid.0.cast_signed()), Signal::SIGCONT).ok();
    for _ in 0..LOOKS {
        let stopped = parent_of(tgid.0).filter(|parent| is_stopped(*parent));
        if let Some(parent) = stopped {
            kill(Pid::from_raw(parent.cast_signed()), Signal::SIGCONT).ok();
            return;
        }
        sleep(Duration::from_micros(100));
    }
}

/// The fields of `/proc/PID/stat` behind the name, which may have anything in it, brackets too.
fn stat(tgid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{tgid}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

fn state(tgid: u32) -> Option<char> {
    stat(tgid)?.chars().next()
}

/// Whether a process is stopped by a signal.
pub(crate) fn is_stopped(tgid: u32) -> bool {
    state(tgid) == Some('T')
}

fn parent_of(tgid: u32) -> Option<u32> {
    stat(tgid)?.split(' ').nth(1)?.parse().ok()
}

/// The file that a shell would run.
fn find(program: &Path) -> Result<PathBuf> {
    let shown = program.display();
    if program.components().count() > 1 {
        return match executable(program) {
            Some(true) => Ok(program.to_owned()),
            Some(false) => bail!("{shown} cannot be run: it is no executable file (chmod +x?)"),
            None => bail!("no such command: {shown}"),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| executable(file) == Some(true))
        .with_context(|| format!("no such command: {shown} (looked in PATH)"))
}

/// Whether a file is there, and can be run.
fn executable(file: &Path) -> Option<bool> {
    let metadata = std::fs::metadata(file).ok()?;
    Some(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        assert!(find(Path::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(Path::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        let error = |name: &str| find(Path::new(name)).unwrap_err().to_string();
        assert_eq!(error("/no/such/thing"), "no such command: /no/such/thing");
        assert!(error("no-such-thing-at-all").starts_with("no such command"));
        assert!(error("/etc/passwd").contains("no executable file"));
        assert!(error("/tmp/").contains("no executable file"));
    }
}
