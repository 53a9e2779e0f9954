//! The process beside us that puts probes in and takes them out.
//!
//! A process that is killed while it does so leaves probes behind: the kernel cannot change the code of others for a
//! process that has to end, and gives up. So another one does it, which ends only after its work.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::Object;

use crate::attach::helper::request::{Probes, Request, parse_answer};
use crate::error::CaptureError;
use crate::host::support::Tier;
use crate::wire::object_handles::{map_of, programs_of};
use crate::wire::{MapName, ProgramName};

/// A link by its number.
pub(crate) type LinkId = u64;

/// Our end.
#[derive(Debug)]
pub(crate) struct HelperClient {
    child: Child,
    /// Its end tells the other that ours has come.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The programs it has, in the order in which they were handed over.
    programs: Vec<ProgramName>,
    /// Whether the answer to a request has not come in time. Nothing else is asked before that.
    is_stuck: bool,
    /// Links that are to be taken away when it answers again.
    unwanted: Vec<LinkId>,
}

/// How long putting probes into one library may take where the kernel reads the file from a file system that may not answer.
const ATTACH_PATIENCE: Duration = Duration::from_secs(20);
/// The same with perf events: the kernel puts none in while it removes those of others, which takes it a tenth of a second
/// for each.
const PERF_PATIENCE: Duration = Duration::from_secs(120);
/// What each link may take besides: where many processes have the library mapped, each takes the kernel some milliseconds.
const OF_EACH_LINK: Duration = Duration::from_millis(50);
/// Where nothing but a disk is waited for.
const WITHOUT_LIMIT: Duration = Duration::from_secs(1 << 24);
/// How long the end of a process is waited for that may wait for such a file system.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What is left of the time that one library may take.
#[derive(Debug)]
pub(crate) struct Patience(Duration);

impl Patience {
    /// For a library on a file system that may not answer, or that has nothing but a disk.
    pub(crate) fn new(may_stall: bool, tier: Tier) -> Self {
        Self(match (may_stall, tier) {
            (false, _) => WITHOUT_LIMIT,
            (true, Tier::Perf) => PERF_PATIENCE,
            (true, Tier::Session | Tier::Multi) => ATTACH_PATIENCE,
        })
    }
}

impl HelperClient {
    /// Starts it by a command that calls [`Kept::receive`] with the numbers that are added to its arguments. Before these
    /// stands `--perf` where probes will be put in by perf events.
    pub(crate) fn start(mut command: Command, object: &Object, tier: Tier) -> Result<Self, CaptureError> {
        if tier == Tier::Perf {
            command.arg("--perf");
        }
        let mut files = vec![
            inheritable(map_of(object, MapName::Targets)?.as_fd())?,
            inheritable(map_of(object, MapName::Held)?.as_fd())?,
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
            .map_err(CaptureError::Keeper)?;
        let requests = child.stdin.take();
        let answers = child.stdout.take().ok_or(CaptureError::Keeper(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self {
            child,
            requests,
            answers: BufReader::new(answers),
            programs,
            is_stuck: false,
            unwanted: Vec::new(),
        })
    }

    /// The number of a program.
    pub(crate) fn program(&self, name: ProgramName) -> Result<usize, CaptureError> {
        self.programs.iter().position(|p| *p == name).ok_or(CaptureError::NotLoaded(name.as_str()))
    }

    /// Puts probes in. Where the kernel has to wait for the file system for too long, we do not.
    pub(crate) fn attach(&mut self, probes: Probes, patience: &mut Patience) -> io::Result<LinkId> {
        self.request(&Request::Attach(probes))?;
        let begun = Instant::now();
        let has_answered = has_something(self.fd(), patience.0 + OF_EACH_LINK);
        patience.0 = patience.0.saturating_sub(begun.elapsed().saturating_sub(OF_EACH_LINK));
        if !has_answered {
            self.is_stuck = true;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer"));
        }
        self.answer()
    }

    /// Takes probes out; those that are out are forgotten. When it has ended, so have they.
    pub(crate) fn detach(&mut self, links: Vec<LinkId>) {
        self.take_out(links, Request::Detach);
    }

    /// Has probes taken out some time later: the kernel may take a tenth of a second for each function, and longer where
    /// others do the same.
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

    /// Takes the answer that did not come in time, if it is there now; as long as it is not, nothing can be asked. Probes
    /// that were put in after all are not wanted any more.
    pub(crate) fn catch_up(&mut self) -> io::Result<()> {
        if !self.is_stuck {
            return Ok(());
        }
        if !has_something(self.fd(), Duration::ZERO) {
            let why = "probes are being put into another library, whose file system does not answer";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
        }
        self.is_stuck = false;
        let mut links = std::mem::take(&mut self.unwanted);
        links.extend(self.answer());
        self.detach_later(links);
        Ok(())
    }

    /// Waits for its end. One that is kept by a file system ends when that answers, and not with us.
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

    /// Readable when it has ended.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.answers.get_ref().as_fd()
    }

    /// That it still runs. Where it answers at last, what is not wanted any more is taken out.
    pub(crate) fn check(&mut self) -> Result<(), CaptureError> {
        self.catch_up().ok();
        match self.child.try_wait() {
            Ok(Some(_)) if self.requests.is_some() => Err(CaptureError::KeeperEnded),
            _ => Ok(()),
        }
    }

    /// All went well: nobody waits for us any more. Returns when every probe is out.
    pub(crate) fn dismiss(&mut self) {
        if let Some(mut requests) = self.requests.take() {
            requests.write_all(Request::Done.line().as_bytes()).ok();
        }
        self.wait_for_end();
    }
}

impl Drop for HelperClient {
    /// Not dismissed, as on an error: it also lets everybody go, as if we had been killed.
    fn drop(&mut self) {
        drop(self.requests.take());
        self.wait_for_end();
    }
}

/// Whether something can be read within a time, or never will be.
fn has_something(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = i32::try_from(rest.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one entry, valid during the call.
        let ready = unsafe { libc::poll(&raw mut polled, 1, milliseconds) };
        // a signal is no answer
        if ready >= 0 || rest.is_zero() {
            return ready > 0;
        }
    }
}

/// A copy of a descriptor that a command inherits. To be closed once it has been started.
fn inheritable(fd: BorrowedFd<'_>) -> Result<OwnedFd, CaptureError> {
    const NOT_STANDARD: libc::c_int = 3;
    // SAFETY: the descriptor is open; the call makes another one or fails.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, NOT_STANDARD) };
    if copy < 0 {
        return Err(CaptureError::Keeper(io::Error::last_os_error()));
    }
    // SAFETY: just made by the kernel, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::attach::helper::request::ProbedFile;
    use crate::load::probe_programs::UprobeKind;

    /// Answers the third attach once there is a file `go`, and lists all other requests in a file.
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
        /// One with this program that is stuck at the third link until it is let go.
        pub(crate) fn stuck_at_third(folder: &Path, program: ProgramName) -> Self {
            Self::by_script(SCRIPT, folder, program)
        }

        /// One that does not find the file any more when the third link is made.
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

        /// Lets it go on; what it is asked then, before it is in order.
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
    fn links_that_are_not_wanted_while_it_is_stuck_are_taken_away_when_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let mut helper = HelperClient::stuck_at_third(folder.path(), ProgramName::CallPerfEntry);
        let mut patience = Patience::new(true, Tier::Session);
        assert_eq!(helper.attach(probes(), &mut patience).unwrap(), 1);
        assert_eq!(helper.attach(probes(), &mut patience).unwrap(), 2);
        let error = helper.attach(probes(), &mut Patience(Duration::from_millis(100))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = helper.attach(probes(), &mut patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "another library is not to blame");
        helper.detach(vec![1]);
        helper.detach_later(vec![2]);
        assert_eq!(helper.let_go(folder.path()), "detach-later 1 2 3\n");
        assert_eq!(helper.attach(probes(), &mut patience).unwrap(), 4);
    }

    #[test]
    fn the_links_of_a_library_have_one_time_together() {
        // each answer in time for the limit of a library
        let script = "while read -r x; do sleep 0.3; echo ok 1; done";
        let mut helper = HelperClient::by_script(script, Path::new("/"), ProgramName::CallPerfEntry);
        let mut patience = Patience(Duration::from_secs(1));
        let made = (0..10).take_while(|_| helper.attach(probes(), &mut patience).is_ok()).count();
        assert!((1..=4).contains(&made), "{made}");
    }
}
