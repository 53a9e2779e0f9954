//! Starts a command so that none of its code runs before it is observed.
//!
//! gpuprobe starts a copy of itself (`__exec`) that waits for a signal. Once the copy is observed it gets the signal
//! and executes the command.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::original_file_limit;
use gpuprobe_event::Tgid;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::command_user::CommandUser;
use crate::session::signals::status_of;

/// A started command.
#[derive(Debug)]
pub(crate) struct LaunchedCommand {
    child: Child,
    resumed: bool,
}

/// Tells the paused copy to execute the command.
pub(crate) const RESUME_SIGNAL: Signal = Signal::SIGUSR2;
/// The process name of the copy while it waits for the signal.
pub(crate) const PAUSED_NAME: &CStr = c"gpuprobe-waits";

impl Drop for LaunchedCommand {
    /// A copy that was never resumed would wait forever.
    fn drop(&mut self) {
        if !self.resumed {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

impl LaunchedCommand {
    /// Starts the command up to its exec. Signals must be blocked already: the copy inherits the mask, and the signal
    /// to continue must not arrive before it waits. On a terminal, the command can be made to ignore SIGQUIT.
    pub(crate) fn start_paused(
        command: &[OsString],
        user: Option<&CommandUser>,
        ignores_quit: bool,
        variables: &[(&'static str, OsString)],
    ) -> Result<Self> {
        let Some(program) = command.first() else { bail!("no command given") };
        let found = find(Path::new(program))?;
        let mut words = vec![found.into_os_string()];
        words.extend_from_slice(command);
        // gpuprobe has raised its own limit; the command gets the original one
        let files =
            original_file_limit().map(|(soft, hard)| ["--files".into(), soft.to_string(), hard.to_string()]);
        let files = files.into_iter().flatten();
        // the copy gets the resolved path and, as argument 0, the given name
        let child = Command::new("/proc/self/exe")
            .arg("__exec")
            .args(files)
            .args(user.into_iter().flat_map(id_options))
            // the terminal sends it to the command as well
            .args((ignores_quit && File::open("/dev/tty").is_ok()).then_some("--ignore-quit"))
            .envs(user.into_iter().flat_map(CommandUser::environment))
            .envs(variables.iter().cloned())
            .arg(std::process::id().to_string())
            .arg("--")
            .args(words)
            .spawn()
            .context("cannot start a process")?;
        let launched = Self { child, resumed: false };
        launched.wait_until_ready();
        Ok(launched)
    }

    /// Waits until the copy is ready: observed earlier, its exec of `__exec` would be recorded too. A copy that fails
    /// to start is noticed later.
    fn wait_until_ready(&self) {
        const WAIT: Duration = Duration::from_micros(200);
        const LOOKS: u32 = 10_000;
        let comm = format!("/proc/{}/comm", self.child.id());
        let is_ready =
            || std::fs::read(&comm).is_ok_and(|name| name.trim_ascii_end() == PAUSED_NAME.to_bytes());
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

    /// Lets the copy execute the command.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.resumed = true;
        kill(self.pid(), RESUME_SIGNAL).context("cannot continue the command")
    }

    /// Forwards a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        // the command may have exited meanwhile
        kill(self.pid(), signal).ok();
    }

    /// The exit status as shells report it, 128 plus the signal if one ended it; `None` while it runs.
    pub(crate) fn exit_status(&self) -> Result<Option<u8>> {
        let status =
            waitpid(self.pid(), Some(WaitPidFlag::WNOHANG)).context("cannot wait for the command")?;
        Ok(match status {
            WaitStatus::Exited(_, code) => Some(u8::try_from(code & 0xff).unwrap_or(1)),
            WaitStatus::Signaled(_, signal, _) => Some(status_of(signal)),
            _ => None,
        })
    }
}

/// The options of the copy for the ids of a user.
fn id_options(user: &CommandUser) -> [String; 4] {
    let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
    let groups = format!("--groups={}", groups.join(","));
    ["--ids".to_owned(), user.uid.to_string(), user.gid.to_string(), groups]
}

/// Continues a process that gpuprobe has stopped, and its parent if that stopped too: su and sudo stop themselves when
/// their child stops. They react with a delay, so check several times.
pub(crate) fn resume_stopped(tgid: Tgid) {
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

/// The fields of `/proc/PID/stat` after the name, which may contain brackets.
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

/// Finds the file that a shell would run.
fn find(program: &Path) -> Result<PathBuf> {
    let shown = program.display();
    if program.components().count() > 1 {
        return match executable(program) {
            Some(true) => Ok(program.to_owned()),
            Some(false) => bail!("{shown} cannot be run: it is not an executable file (chmod +x?)"),
            None => bail!("no such command: {shown}"),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| executable(file) == Some(true))
        .with_context(|| format!("no such command: {shown} (looked in PATH)"))
}

/// Whether a file can be run; `None` if it does not exist.
fn executable(file: &Path) -> Option<bool> {
    let metadata = std::fs::metadata(file).ok()?;
    Some(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_like_in_a_shell() {
        assert!(find(Path::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(find(Path::new("/bin/sh")).unwrap(), Path::new("/bin/sh"));
        let error = |name: &str| find(Path::new(name)).unwrap_err().to_string();
        assert_eq!(error("/no/such/thing"), "no such command: /no/such/thing");
        assert!(error("no-such-thing-at-all").starts_with("no such command"));
        assert!(error("/etc/passwd").contains("not an executable file"));
        assert!(error("/tmp/").contains("not an executable file"));
    }
}
