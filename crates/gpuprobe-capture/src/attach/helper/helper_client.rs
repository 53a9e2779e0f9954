//! Talks to the attach helper, the process that attaches and detaches probes.
//!
//! If a process is killed while it detaches probes, the probes stay behind: the Linux kernel cannot change the code
//! of other processes on behalf of a process that is exiting, and gives up. A separate process avoids this, because
//! it exits only after everything is detached.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::Object;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use crate::attach::helper::request::{Probes, Request, Semaphore, parse_answer};
use crate::error::CaptureError;
use crate::host::support::Tier;
use crate::wire::object_handles::{map_of, programs_of};
use crate::wire::{MapName, ProgramName};

/// The number of a link in the helper.
pub(crate) type LinkId = u64;

/// The attach helper, as the capturing process sees it.
#[derive(Debug)]
pub(crate) struct HelperClient {
    child: Child,
    /// Closing it tells the helper that this process has exited.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The programs that the helper has, in the order in which they were handed over.
    programs: Vec<ProgramName>,
    /// Whether the answer to a request did not come in time. No other request is sent before it comes.
    is_stuck: bool,
    /// Links to detach when the helper answers again.
    unwanted: Vec<LinkId>,
}

/// How long attaching to one library may take if its file system may hang.
const ATTACH_PATIENCE: Duration = Duration::from_secs(20);
/// The same with perf events: the Linux kernel attaches none while it removes those of others, which takes a tenth of
/// a second each.
const PERF_PATIENCE: Duration = Duration::from_secs(120);
/// Extra time for each link: if many processes have the library mapped, each takes the Linux kernel some
/// milliseconds.
const EXTRA_PER_LINK: Duration = Duration::from_millis(50);
/// For local disks.
const WITHOUT_LIMIT: Duration = Duration::from_secs(1 << 24);
/// How long to wait for the exit of a helper that may be blocked by a file system.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The time that is left for one library.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Patience {
    /// `may_stall`: the file system of the library may hang.
    pub(crate) fn new(may_stall: bool, tier: Tier) -> Self {
        Self(match (may_stall, tier) {
            (false, _) => WITHOUT_LIMIT,
            (true, Tier::Perf) => PERF_PATIENCE,
            (true, Tier::Session | Tier::Multi) => ATTACH_PATIENCE,
        })
    }
}

impl HelperClient {
    /// Starts the helper by a command that calls [`crate::HelperServer::receive`] with the descriptor numbers that are
    /// added to its arguments. `--perf` is added before them if it has to make perf events, which needs more privileges.
    pub(crate) fn start(mut command: Command, object: &Object, perf: bool) -> Result<Self, CaptureError> {
        if perf {
            command.arg("--perf");
        }
        let mut files = vec![
            inheritable(map_of(object, MapName::Targets)?.as_fd())?,
            inheritable(map_of(object, MapName::Paused)?.as_fd())?,
        ];
        let mut programs = Vec::new();
        for (name, program) in programs_of(object).filter(|(_, program)| program.autoload()) {
            files.push(inheritable(program.as_fd())?);
            programs.push(name);
        }
        let mut child = command
            .args(files.iter().map(|file| file.as_raw_fd().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(CaptureError::HelperStart)?;
        let requests = child.stdin.take();
        let answers =
            child.stdout.take().ok_or(CaptureError::HelperStart(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self {
            child,
            requests,
            answers: BufReader::new(answers),
            programs,
            is_stuck: false,
            unwanted: Vec::new(),
        })
    }

    /// The number of a program in the helper.
    pub(crate) fn program(&self, name: ProgramName) -> Result<usize, CaptureError> {
        self.programs.iter().position(|p| *p == name).ok_or(CaptureError::NotLoaded(name.as_str()))
    }

    /// Attaches probes. Gives up if the Linux kernel waits too long for the file system.
    pub(crate) fn attach(&mut self, probes: Probes, patience: &mut Patience) -> io::Result<LinkId> {
        self.request(&Request::Attach(probes))?;
        let begun = Instant::now();
        let has_answered = has_something(self.fd(), patience.0 + EXTRA_PER_LINK);
        patience.0 = patience.0.saturating_sub(begun.elapsed().saturating_sub(EXTRA_PER_LINK));
        if !has_answered {
            self.is_stuck = true;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer"));
        }
        self.answer()
    }

    /// Raises a semaphore until its link is detached.
    pub(crate) fn raise(&mut self, semaphore: Semaphore) -> io::Result<LinkId> {
        self.ask(&Request::Raise(semaphore))
    }

    /// Detaches links and waits for it. If the helper has exited, they are detached already.
    pub(crate) fn detach(&mut self, links: Vec<LinkId>) {
        self.take_out(links, Request::Detach);
    }

    /// Detaches links without waiting: the Linux kernel may take a tenth of a second for each function, and longer if
    /// others detach at the same time.
    pub(crate) fn detach_later(&mut self, links: Vec<LinkId>) {
        self.take_out(links, Request::DetachLater);
    }

    fn take_out(&mut self, links: Vec<LinkId>, request: fn(Vec<LinkId>) -> Request) {
        if links.is_empty() {
            return;
        }
        match self.catch_up() {
            Ok(()) => drop(self.ask(&request(links))),
            Err(_) => self.unwanted.extend(links),
        }
    }

    fn ask(&mut self, request: &Request) -> io::Result<u64> {
        self.request(request)?;
        self.answer()
    }

    fn request(&mut self, request: &Request) -> io::Result<()> {
        self.catch_up()?;
        self.requests.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(request.line().as_bytes())
    }

    fn answer(&mut self) -> io::Result<u64> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        parse_answer(&answer)
    }

    /// Takes the late answer, if it has come by now; until then nothing can be requested. Probes that were attached
    /// after all are detached.
    pub(crate) fn catch_up(&mut self) -> io::Result<()> {
        if !self.is_stuck {
            return Ok(());
        }
        if !has_something(self.fd(), Duration::ZERO) {
            let why = "probes are being attached to another library, whose file system does not answer";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
        }
        self.is_stuck = false;
        let mut links = std::mem::take(&mut self.unwanted);
        links.extend(self.answer());
        self.detach_later(links);
        Ok(())
    }

    /// Waits for the helper's exit. One that is blocked by a file system is not waited for; it exits when the file
    /// system answers.
    fn wait_for_end(&mut self) {
        let begun = Instant::now();
        while self.is_stuck && begun.elapsed() < END_PATIENCE {
            match self.child.try_wait() {
                Ok(None) => sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        if !self.is_stuck {
            self.child.wait().ok();
        }
    }

    /// Readable when the helper has exited.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.answers.get_ref().as_fd()
    }

    /// Fails if the helper has exited. If a late answer has come, detaches the links that are not wanted any more.
    pub(crate) fn check(&mut self) -> Result<(), CaptureError> {
        self.catch_up().ok();
        match self.child.try_wait() {
            Ok(Some(_)) if self.requests.is_some() => Err(CaptureError::HelperExited),
            _ => Ok(()),
        }
    }

    /// Ends the helper after success: it does not have to release paused processes. Returns when every probe is
    /// detached.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut requests) = self.requests.take() {
            requests.write_all(Request::Done.line().as_bytes()).ok();
        }
        self.wait_for_end();
    }
}

impl Drop for HelperClient {
    /// Without [`HelperClient::dismiss`], as on an error, the helper also releases paused processes, as if we had
    /// been killed.
    fn drop(&mut self) {
        drop(self.requests.take());
        self.wait_for_end();
    }
}

/// Whether something can be read within this time, or the other side has closed.
fn has_something(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let timeout = Timespec::try_from(rest).ok();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(_) if rest.is_zero() => return false,
            // a signal interrupts the wait, but is no answer
            Err(_) => {}
        }
    }
}

/// A copy of a descriptor that child processes inherit. To be closed once the command has been started.
fn inheritable(fd: BorrowedFd<'_>) -> Result<OwnedFd, CaptureError> {
    const NOT_STANDARD: RawFd = 3;
    let failed = |error: Errno| CaptureError::HelperStart(error.into());
    let copy = fcntl_dupfd_cloexec(fd, NOT_STANDARD).map_err(failed)?;
    fcntl_setfd(&copy, FdFlags::empty()).map_err(failed)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::attach::helper::request::ProbedFile;
    use crate::load::probe_programs::UprobeKind;

    /// Answers the third attach request once there is a file `go`, and lists all other requests in a file.
    const SCRIPT: &str = r#"
        while read -r word rest; do
            case $word in
            attach)
                n=$((n + 1))
                while [ $n = 3 ] && [ ! -e "$0/go" ]; do sleep 0.02; done
                echo "ok $n" ;;
            *)
                echo "$word $rest" >> "$0/others"
                echo "ok 0" ;;
            esac
        done"#;

    impl Patience {
        pub(crate) fn of(time: Duration) -> Self {
            Self(time)
        }
    }

    impl HelperClient {
        /// A helper with this program that hangs at the third link until there is a file `go`.
        pub(crate) fn stuck_at_third(folder: &Path, program: ProgramName) -> Self {
            Self::by_script(SCRIPT, folder, program)
        }

        /// A helper that does not find the file any more when the third link is made.
        pub(crate) fn without_file_at_third(folder: &Path, program: ProgramName) -> Self {
            let script = SCRIPT.replace(
                r#"while [ $n = 3 ] && [ ! -e "$0/go" ]; do sleep 0.02; done"#,
                "[ $n = 3 ] && { echo error 2; continue; }",
            );
            Self::by_script(&script, folder, program)
        }

        fn by_script(script: &str, folder: &Path, program: ProgramName) -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let (requests, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
            let programs = vec![program];
            Self { child, requests, answers, programs, is_stuck: false, unwanted: Vec::new() }
        }

        /// Lets the helper go on, and returns what it was asked until it had caught up.
        pub(crate) fn let_go(&mut self, folder: &Path) -> String {
            fs::write(folder.join("go"), "").unwrap();
            let begun = Instant::now();
            while self.is_stuck {
                assert!(begun.elapsed() < Duration::from_secs(60));
                self.check().unwrap();
            }
            fs::read_to_string(folder.join("others")).unwrap_or_default()
        }
    }

    fn probes() -> Probes {
        let file = ProbedFile { path: "/x".into(), expected: None };
        Probes { program: 0, kind: UprobeKind::Multi, file, points: vec![(1, 2)] }
    }

    #[test]
    fn unwanted_links_of_a_stuck_helper_are_detached_when_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let mut helper = HelperClient::stuck_at_third(folder.path(), ProgramName::CallPerfEntry);
        let mut patience = Patience::new(true, Tier::Session);
        assert_eq!(helper.attach(probes(), &mut patience).unwrap(), 1);
        assert_eq!(helper.attach(probes(), &mut patience).unwrap(), 2);
        let error = helper.attach(probes(), &mut Patience(Duration::from_millis(100))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = helper.attach(probes(), &mut patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "another library's file system is the cause");
        helper.detach(vec![1]);
        helper.detach_later(vec![2]);
        assert_eq!(helper.let_go(folder.path()), "detach-later 1 2 3\n");
        assert_eq!(helper.attach(probes(), &mut patience).unwrap(), 4);
    }

    #[test]
    fn all_links_of_a_library_share_one_time_limit() {
        // each answer alone is in time for the limit of a library
        let script = "while read -r x; do sleep 0.3; echo ok 1; done";
        let mut helper = HelperClient::by_script(script, Path::new("/"), ProgramName::CallPerfEntry);
        let mut patience = Patience(Duration::from_secs(1));
        let made = (0..10).take_while(|_| helper.attach(probes(), &mut patience).is_ok()).count();
        assert!((1..=4).contains(&made), "{made}");
    }
}
