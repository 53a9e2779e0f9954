//! The recorder: a process that sleeps until the daemon orders a recording, and makes it in a process of its own.

use std::fmt::Display;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use gpuprobe_capture::Tier;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::directory::RecordDirectory;
use super::messages::{Order, Report, send};
use super::recording_name::RecordingName;
use crate::cli::RecorderArgs;
use crate::session::probes::helper_commands;
use crate::terminal::notes::note;

/// How often the size of the directory is looked at while a recording grows.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// What is being compressed when a recording has reached its limit, and its last lines, with the call sites of live memory,
/// must fit in the directory, too.
const LEAST_REST: u64 = 512 << 10;

#[derive(Debug)]
pub(crate) struct Recorder {
    directory: RecordDirectory,
    tier: Tier,
    verbose: bool,
    daemon: UnixStream,
    orders: Lines<UnixStream>,
    /// The size of all recordings that was reported last.
    reported_bytes: Option<u64>,
}

impl Recorder {
    /// Opens the directory. The daemon is at the other end of the socket.
    pub(crate) fn open(args: &RecorderArgs, daemon: UnixStream) -> Result<Self> {
        let directory = RecordDirectory::open(&args.dir, args.dir_size)?;
        let orders = Lines::new(daemon.try_clone()?);
        Ok(Self { directory, tier: args.attach, verbose: args.verbose, daemon, orders, reported_bytes: None })
    }

    /// Makes recordings until the daemon exits.
    pub(crate) fn serve(mut self) -> Result<()> {
        self.keep_directory(None);
        send(&mut self.daemon, &Report::Ready)?;
        while let Some(line) = self.orders.wait()? {
            let order = serde_json::from_str(&line).context("an order is not readable")?;
            let ended = self.record(&order).unwrap_or_else(|error| failed(format!("{error:#}")));
            self.keep_directory(Some(&order.name));
            // the daemon may have exited
            send(&mut self.daemon, &ended).ok();
        }
        Ok(())
    }

    fn record(&mut self, order: &Order) -> Result<Report> {
        let mut child = self.start(order)?;
        let output = child.stdout.take().context("the recording process has no output")?;
        let ended = self.follow(&mut child, output, &order.name);
        let status = child.wait().context("cannot wait for the recording process")?;
        Ok(ended?.unwrap_or_else(|| failed(how_it_ended(status))))
    }

    fn start(&self, order: &Order) -> Result<Child> {
        let name = RecordingName::parse(&order.name).context("the name of the recording is not valid")?;
        let limit = self.directory.limit();
        let limit = limit.saturating_sub(LEAST_REST.max(limit / 8));
        let mut command = helper_commands::record_one();
        command.arg("--rename").arg(self.directory.path_of(name.as_str()));
        command.arg("--parent").arg(std::process::id().to_string());
        command.args(["--", "--quiet", "--pid", &order.pid.to_string()]);
        command.arg(format!("--duration={}s", order.seconds)).arg(format!("--max-size={limit}B"));
        command.arg(format!("--attach={}", self.tier));
        command.arg("--output").arg(self.directory.path_of(&name.partial()));
        command.args(order.functions.iter().map(|glob| format!("--event={glob}")));
        let stderr = if self.verbose { Stdio::inherit() } else { Stdio::null() };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        command.spawn().context("cannot start the recording process")
    }

    /// Passes on what a recording process reports, until it closes its output. Returns its last report. If the daemon
    /// exits meanwhile, the recording ends.
    fn follow(&mut self, child: &mut Child, output: ChildStdout, name: &str) -> Result<Option<Report>> {
        let (mut reports, mut ended, mut has_daemon) = (Lines::new(output), None, true);
        loop {
            let has_report = {
                let mut files = vec![PollFd::new(reports.source.as_fd(), PollFlags::POLLIN)];
                if has_daemon {
                    files.push(PollFd::new(self.orders.source.as_fd(), PollFlags::POLLIN));
                }
                let timeout = PollTimeout::try_from(CHECK_EVERY).unwrap_or(PollTimeout::NONE);
                match poll(&mut files, timeout) {
                    Err(Errno::EINTR) => continue,
                    polled => polled?,
                };
                let is_ready = |at: usize| files.get(at).and_then(PollFd::any).unwrap_or(false);
                let (has_report, has_order) = (is_ready(0), is_ready(1));
                if has_order && !self.orders.read_more()? {
                    has_daemon = false;
                    let pid = Pid::from_raw(child.id().cast_signed());
                    kill(pid, Signal::SIGINT).context("cannot end the recording")?;
                }
                has_report
            };
            if has_report {
                let is_open = reports.read_more()?;
                while let Some(line) = reports.next() {
                    match serde_json::from_str(&line).context("a report is not readable")? {
                        Report::Begun => {
                            send(&mut self.daemon, &Report::Begun).ok();
                        }
                        report => ended = Some(report),
                    }
                }
                if !is_open {
                    return Ok(ended);
                }
            }
            self.keep_to_size(Some(name));
        }
    }

    /// After a start or a recording: names what is incomplete, and keeps the size limit.
    fn keep_directory(&mut self, kept: Option<&str>) {
        match self.directory.name_incomplete() {
            Ok(renamed) => renamed.iter().for_each(|name| {
                note!("gpuprobe: incomplete recording: {}", self.directory.path_of(name).display());
            }),
            Err(error) => complain("rename an incomplete recording", &error),
        }
        self.keep_to_size(kept);
    }

    fn keep_to_size(&mut self, kept: Option<&str>) {
        match self.directory.keep_to_size(kept) {
            Ok((bytes, deleted)) => {
                if deleted > 0 || self.reported_bytes != Some(bytes) {
                    self.reported_bytes = Some(bytes);
                    // the daemon may have exited
                    send(&mut self.daemon, &Report::Stored { bytes, deleted }).ok();
                }
            }
            Err(error) => complain("delete an old recording", &error),
        }
    }
}

fn complain(what: &str, error: &dyn Display) {
    note!("gpuprobe: cannot {what}: {error}");
}

fn failed(reason: String) -> Report {
    Report::Failed { reason }
}

fn how_it_ended(status: ExitStatus) -> String {
    format!("the recording process ended unexpectedly ({status})")
}

/// Reads lines from a file that is polled.
#[derive(Debug)]
struct Lines<R> {
    source: R,
    read: Vec<u8>,
}

impl<R: Read> Lines<R> {
    fn new(source: R) -> Self {
        Self { source, read: Vec::new() }
    }

    /// Reads what is there, or waits for something. Returns whether the other end is open.
    fn read_more(&mut self) -> io::Result<bool> {
        let mut block = [0; 4096];
        loop {
            match self.source.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                read => {
                    let read = read?;
                    self.read.extend(block.iter().take(read));
                    return Ok(read > 0);
                }
            }
        }
    }

    /// The next complete line that was read.
    fn next(&mut self) -> Option<String> {
        let end = self.read.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.read.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Waits for a line; `None` at the end.
    fn wait(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(line) = self.next() {
                return Ok(Some(line));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_whole_whatever_the_pieces() {
        struct Pieces(Vec<&'static [u8]>);
        impl Read for Pieces {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() {
                    return Ok(0);
                }
                self.0.remove(0).read(into)
            }
        }
        let mut lines = Lines::new(Pieces(vec![b"a", b"b\nc\nd", b"\n", b"cut"]));
        let mut all = Vec::new();
        while let Some(line) = lines.wait().unwrap() {
            all.push(line);
        }
        assert_eq!(all, ["ab", "c", "d"]);
    }
}
