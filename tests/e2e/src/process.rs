//! Runs programs, each with a time limit. Only processes that were started here are killed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::iter;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::fixtures;
use crate::recording::Recording;

/// Longer than anything here takes, even while another build keeps the machine busy. Only a failure takes this long.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// How long a daemon may take to end. It takes less than a second unless the machine is busy.
pub const TIME_TO_END: Duration = Duration::from_secs(3);

/// An exited program.
#[derive(Debug)]
pub struct Finished {
    /// As in a shell: the exit status, or 128 plus the signal.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Finished {
    /// The JSON objects among the lines printed.
    pub fn json(&self) -> Vec<Value> {
        let parse = |l: &str| serde_json::from_str(l).unwrap_or_else(|e| panic!("{l}: {e}"));
        self.stdout.lines().filter(|l| l.starts_with('{')).map(parse).collect()
    }
}

#[derive(Debug)]
pub struct Outcome {
    /// Status and output of gpuprobe, with the output of the command.
    pub finished: Finished,
    pub trace: Recording,
}

impl Outcome {
    /// The only JSON object that the command printed.
    pub fn printed(&self) -> Value {
        let mut all = self.finished.json();
        assert_eq!(all.len(), 1, "{}\n{}", self.finished.stdout, self.finished.stderr);
        all.remove(0)
    }
}

/// `gpuprobe run` of one program.
#[derive(Debug)]
pub struct Run {
    options: Vec<OsString>,
    command: Vec<OsString>,
    environment: Vec<(String, OsString)>,
}

impl Run {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { options: Vec::new(), command: vec![program.as_ref().to_owned()], environment: Vec::new() }
    }

    /// Options of gpuprobe.
    #[must_use]
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(OsString::from));
        self
    }

    /// Arguments of the program.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.command.extend(args.iter().map(OsString::from));
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// The command line, with the trace going to this file.
    pub fn command(&self, trace: &Path) -> Command {
        let mut command = gpuprobe(&["run"]);
        command.args(&self.options).arg("-o").arg(trace).arg("--").args(&self.command);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn outcome(&self) -> Outcome {
        let folder = fixtures::folder();
        self.outcome_in(&folder.path().join("trace.jsonl"))
    }

    /// The same, with a trace file that stays.
    pub fn outcome_in(&self, trace: &Path) -> Outcome {
        let finished = finish(&mut self.command(trace));
        assert!(trace.exists(), "no trace; status {}\n{}", finished.status, finished.stderr);
        Outcome { trace: Recording::read(trace), finished }
    }
}

/// The binary under test with these arguments, in a clean environment.
pub fn gpuprobe(args: &[&str]) -> Command {
    let mut command = Command::new(fixtures::gpuprobe());
    command.args(args);
    clean(&mut command);
    command
}

/// Removes the variables that change stand-ins, where libraries are found, or the user of commands, unless the command
/// sets them itself.
fn clean(command: &mut Command) {
    const STANDIN: [&str; 9] = [
        "STANDIN_FAIL",
        "STANDIN_DELAY",
        "STANDIN_DELAY_AFTER",
        "STANDIN_SPIN",
        "STANDIN_WAIT",
        "STANDIN_POLL",
        "STANDIN_IOCTL",
        "STANDIN_CUPTI",
        "STANDIN_CUPTI_LEDGER",
    ];
    const OTHERS: [&str; 4] = ["LD_LIBRARY_PATH", "SUDO_UID", "SUDO_GID", "SUDO_USER"];
    for name in STANDIN.into_iter().chain(OTHERS) {
        let is_set = command.get_envs().any(|(set, value)| set == name && value.is_some());
        if !is_set {
            command.env_remove(name);
        }
    }
}

pub fn finish(command: &mut Command) -> Finished {
    finish_within(PATIENCE, command)
}

/// Runs a command to its end, with this time limit.
pub fn finish_within(limit: Duration, command: &mut Command) -> Finished {
    let folder = fixtures::folder();
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    command.stdin(Stdio::null()).stdout(create(&out)).stderr(create(&err));
    let start = Instant::now();
    let mut started = Started::new(command);
    let status = started.wait(limit);
    let took = start.elapsed();
    Finished { status: shell_status(status), stdout: text(&out), stderr: text(&err), took }
}

fn create(path: &Path) -> File {
    File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// A process in its own process group, killed when this is dropped.
#[derive(Debug)]
struct Started {
    child: Child,
    shown: String,
}

impl Started {
    fn new(command: &mut Command) -> Self {
        let shown = format!("{command:?}");
        command.process_group(0);
        Self { child: command.spawn().unwrap_or_else(|e| panic!("{shown}: {e}")), shown }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_else(|e| panic!("{}: {e}", self.shown))
    }

    fn wait(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(start.elapsed() < limit, "after {limit:?} it still runs: {}", self.shown);
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            // its children are in its group
            killpg(self.pid(), Signal::SIGKILL).ok();
            self.child.wait().ok();
        }
    }
}

/// A running program with its standard input and output. Dropping this kills it.
#[derive(Debug)]
pub struct Talk {
    started: Started,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    folder: tempfile::TempDir,
}

impl Talk {
    pub fn start(command: &mut Command) -> Self {
        let folder = fixtures::folder();
        clean(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(create(&folder.path().join("err")));
        let mut started = Started::new(command);
        let stdin = started.child.stdin.take();
        let stdout = started.child.stdout.take().unwrap_or_else(|| panic!("stdout was asked for"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { started, stdin, lines, folder }
    }

    /// The next line it prints.
    pub fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("no line ({e}): {}", self.stderr()))
    }

    /// The next line, as JSON.
    pub fn json(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    /// The lines printed since the last call of this.
    pub fn printed(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// The lines printed until all processes that share its output have exited.
    pub fn rest(&mut self) -> Vec<String> {
        let begun = Instant::now();
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => return lines,
                Err(RecvTimeoutError::Timeout) => panic!("its output does not end: {}", self.stderr()),
            }
        }
    }

    /// Sends it an empty line, for which paused workloads wait.
    pub fn go_on(&mut self) {
        let stdin = self.stdin.as_mut().unwrap_or_else(|| panic!("stdin was asked for"));
        stdin.write_all(b"\n").unwrap_or_else(|e| panic!("it does not listen: {e}"));
    }

    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// Sends it a signal, unless it has exited.
    pub fn signal(&mut self, signal: Signal) {
        if self.started.ended().is_none() {
            kill(self.started.pid(), signal).unwrap_or_else(|e| panic!("{signal}: {e}"));
        }
    }

    /// Stops it, with all of its threads. A signal alone takes effect later.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGSTOP);
        let tasks = PathBuf::from(format!("/proc/{}/task", self.started.pid()));
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
        until(PATIENCE, "all threads are stopped", || {
            let tasks = fs::read_dir(&tasks).unwrap_or_else(|e| panic!("{}: {e}", tasks.display()));
            let mut states =
                tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
            states.all(is_stopped).then_some(())
        });
    }

    pub fn has_exited(&mut self) -> bool {
        self.started.ended().is_some()
    }

    pub fn stderr(&self) -> String {
        text(&self.folder.path().join("err"))
    }

    /// Waits for its exit. Returns the status as a shell does.
    pub fn end(&mut self) -> i32 {
        shell_status(self.started.wait(PATIENCE))
    }

    /// Sends it an empty line and waits for its exit. Returns the status and the last line it printed.
    pub fn finish(&mut self) -> (i32, Value) {
        self.go_on();
        let last = self.json();
        (self.end(), last)
    }
}

/// Calls this repeatedly until it returns something. Panics if that takes longer than `limit`.
pub fn until<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Calls this with each item, four at once. Most of the time a recording waits for the Linux kernel, so that several take
/// hardly longer than one. Panics if one of them does.
pub fn at_once<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const AT_ONCE: usize = 4;
    let next = AtomicUsize::new(0);
    let take = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        Some((at, each(items.get(at)?)))
    };
    let take_all = || iter::from_fn(take).collect::<Vec<_>>();
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(take_all)).collect();
        let ended = workers.into_iter().map(ScopedJoinHandle::join);
        ended.flat_map(|done| done.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs a program many times, eight at once.
pub fn run_many(program: &Path, times: usize) {
    const AT_ONCE: usize = 8;
    thread::scope(|scope| {
        for worker in 0..AT_ONCE {
            scope.spawn(move || {
                for _ in (worker..times).step_by(AT_ONCE) {
                    let status = Command::new(program).stdout(Stdio::null()).status();
                    let status = status.unwrap_or_else(|e| panic!("{}: {e}", program.display()));
                    assert!(status.success(), "{}: {status}", program.display());
                }
            });
        }
    });
}

/// The resident memory of a process.
pub fn resident_kilobytes(pid: u32) -> u64 {
    let status = text(Path::new(&format!("/proc/{pid}/status")));
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    line.and_then(|kilobytes| kilobytes.parse().ok())
        .unwrap_or_else(|| panic!("no memory of {pid}: {status}"))
}

pub fn shown(path: impl Into<PathBuf>) -> String {
    path.into().into_os_string().into_string().unwrap_or_else(|p| panic!("not text: {}", p.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_what_is_done_at_once_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..50).collect();
        let done = at_once(&items, |item| {
            thread::sleep(Duration::from_micros(50 - item));
            2 * item
        });
        assert_eq!(done, items.iter().map(|item| 2 * item).collect::<Vec<_>>());
        assert_eq!(at_once(&[0_u8; 0], |item| *item), [0_u8; 0]);
    }

    #[test]
    #[should_panic(expected = "the seventh")]
    fn a_panic_of_one_is_a_panic_of_all() {
        at_once(&[1, 7, 3], |item| assert_ne!(*item, 7, "the seventh"));
    }
}
