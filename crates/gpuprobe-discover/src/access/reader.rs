//! Manages the reader processes: the current one, and the abandoned ones that still wait for a file system.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::reader_process::{Failure, ReaderProcess};
use super::stall_domain::StallDomain;
use super::wire::{Request, parse_answer};

/// How long to wait for an answer. The caller is blocked meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The limit for a while after a stall, so that many file systems that stall one after the other, or one that is slow
/// again and again, do not block the caller for long.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);
const IMPATIENT_FOR: Duration = Duration::from_secs(10);
/// How long a reader may wait for a CPU. If there is none for longer, this process does not run either.
const BEGIN_WITHIN: Duration = Duration::from_secs(20);
/// A stall domain that answers again, or was slow for too long, is not asked for this long.
const COOLING: Duration = Duration::from_secs(30);
/// How long one stall domain may block the caller within `SLOW_WINDOW`. Answers faster than `NEGLIGIBLE` are not
/// counted.
const SLOW_LIMIT: Duration = Duration::from_secs(10);
const SLOW_WINDOW: Duration = Duration::from_secs(60);
const NEGLIGIBLE: Duration = Duration::from_millis(5);
/// Abandoned readers that still wait. At this number only disks and /proc are read.
const ABANDONED_LIMIT: usize = 8;
/// At this number nothing is read.
const ABANDONED_HARD_LIMIT: usize = 12;
/// Stall domains remembered as slow or cooling down, and messages kept.
const REMEMBERED_LIMIT: usize = 64;

/// The state change of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// It does not answer.
    Silent,
    /// It answers, but takes too long again and again.
    Slow,
    /// It answers again.
    Recovered,
}

/// A file system that stopped answering, or answers again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The file that was being read.
    pub path: PathBuf,
    pub kind: StallKind,
}

/// Starts a reader process and returns the socket to it.
type Start = Box<dyn FnMut() -> io::Result<UnixStream> + Send>;

pub(super) struct Reader {
    start: Start,
    current: Option<ReaderProcess>,
    started: u64,
    begin_within: Duration,
    abandoned: Vec<Abandoned>,
    slow: Vec<Slow>,
    cooling: Vec<(StallDomain, Instant)>,
    last_stall: Option<Instant>,
    stalls: Vec<Stall>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("abandoned", &self.abandoned.len()).finish_non_exhaustive()
    }
}

/// A reader process that did not answer in time.
struct Abandoned {
    process: ReaderProcess,
    domain: StallDomain,
    path: PathBuf,
}

/// How long a stall domain has blocked the caller.
struct Slow {
    domain: StallDomain,
    since: Instant,
    blocked: Duration,
}

impl Reader {
    pub(super) fn new(start: Start) -> Self {
        Self {
            start,
            current: None,
            started: 0,
            begin_within: BEGIN_WITHIN,
            abandoned: Vec::new(),
            slow: Vec::new(),
            cooling: Vec::new(),
            last_stall: None,
            stalls: Vec::new(),
        }
    }

    /// Whether the current reader process has this number.
    pub(super) fn is(&self, number: u64) -> bool {
        self.current.as_ref().is_some_and(|process| process.number == number)
    }

    pub(super) fn take_stalls(&mut self) -> Vec<Stall> {
        self.reap_abandoned();
        std::mem::take(&mut self.stalls)
    }

    /// Closes a file, if the process that opened it is still the current one.
    pub(super) fn close(&mut self, process: u64, file: u64, named: (StallDomain, PathBuf)) {
        let Some(mut current) = self.current.take_if(|current| current.number == process) else { return };
        match current.close(file, named, PATIENCE) {
            Ok(()) => self.current = Some(current),
            Err(Failure::Stalled(Some(named))) => self.abandon(current, named),
            // a process that has exited has no open files
            Err(_) => {}
        }
    }

    /// The answer, and the number of the process that gave it. Stall domains that are known not to answer are not
    /// asked.
    pub(super) fn ask(
        &mut self,
        domain: StallDomain,
        path: &Path,
        request: &Request<'_>,
    ) -> io::Result<(Vec<u8>, u64)> {
        self.reap_abandoned();
        loop {
            if self.is_blocked(&domain, path) {
                return Err(stalled());
            }
            let patience = self.patience(&domain);
            let mut process = match self.current.take() {
                Some(process) => process,
                None => self.start().map_err(|error| unread(&error))?,
            };
            let number = process.number;
            match process.ask(request, patience) {
                Ok((answer, took)) => {
                    self.current = Some(process);
                    self.account(&domain, path, took);
                    return parse_answer(answer).map(|answer| (answer, number));
                }
                // a new process has no files to close
                Err(Failure::Stalled(Some(closed))) => self.abandon(process, closed),
                Err(Failure::Stalled(None)) => {
                    self.abandon(process, (domain, path.to_owned()));
                    return Err(stalled());
                }
                Err(Failure::Lost(error)) => return Err(unread(&error)),
            }
        }
    }

    fn is_blocked(&self, domain: &StallDomain, path: &Path) -> bool {
        let covers = |stalled: &StallDomain| stalled.covers(domain, path);
        let limit = if domain.is_local() || matches!(domain, StallDomain::Process(_)) {
            ABANDONED_HARD_LIMIT
        } else {
            ABANDONED_LIMIT
        };
        self.abandoned.len() >= limit
            || self.abandoned.iter().any(|w| covers(&w.domain))
            || self.cooling.iter().any(|(p, _)| covers(p))
    }

    fn patience(&self, domain: &StallDomain) -> Duration {
        let is_impatient = self.last_stall.is_some_and(|last| last.elapsed() < IMPATIENT_FOR);
        // no other program can stall a disk, but a busy disk may be slow
        if is_impatient && !domain.is_local() { SHORT_PATIENCE } else { PATIENCE }
    }

    /// Abandons a process that waits for this file.
    fn abandon(&mut self, process: ReaderProcess, (domain, path): (StallDomain, PathBuf)) {
        self.note(&path, StallKind::Silent);
        self.last_stall = Some(Instant::now());
        self.abandoned.push(Abandoned { process, domain: domain.widened(), path });
    }

    /// Adds to the time that a stall domain has blocked the caller. Without this, one that always answers just in
    /// time could block it for ever.
    fn account(&mut self, domain: &StallDomain, path: &Path, took: Duration) {
        if took < NEGLIGIBLE || domain.is_local() {
            return;
        }
        self.slow.retain(|slow| slow.since.elapsed() < SLOW_WINDOW);
        let known = self.slow.iter().position(|slow| slow.domain.covers(domain, path));
        let mut slow = match known {
            Some(known) => self.slow.remove(known),
            None => Slow { domain: domain.clone().widened(), since: Instant::now(), blocked: Duration::ZERO },
        };
        slow.blocked += took;
        if slow.blocked >= SLOW_LIMIT && self.cooling.len() < REMEMBERED_LIMIT {
            self.note(path, StallKind::Slow);
            self.last_stall = Some(Instant::now());
            self.cooling.push((slow.domain, Instant::now()));
            return;
        }
        if self.slow.len() >= REMEMBERED_LIMIT {
            self.slow.remove(0);
        }
        self.slow.push(slow);
    }

    fn start(&mut self) -> io::Result<ReaderProcess> {
        let socket = (self.start)()?;
        self.started += 1;
        Ok(ReaderProcess::new(socket, self.started, self.begin_within))
    }

    /// Drops abandoned processes that got their answer after all or have exited.
    fn reap_abandoned(&mut self) {
        self.cooling.retain(|(_, since)| since.elapsed() < COOLING);
        for abandoned in
            self.abandoned.extract_if(.., |w| w.process.is_readable(Duration::ZERO)).collect::<Vec<_>>()
        {
            self.note(&abandoned.path, StallKind::Recovered);
            if self.cooling.len() < REMEMBERED_LIMIT && !abandoned.domain.is_local() {
                self.cooling.push((abandoned.domain, Instant::now()));
            }
        }
    }

    fn note(&mut self, path: &Path, kind: StallKind) {
        if self.stalls.len() < REMEMBERED_LIMIT {
            self.stalls.push(Stall { path: path.to_owned(), kind });
        }
    }
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")
}

/// There is no reader process. Reported as a stall, because nothing is known about the file and the next attempt may
/// succeed.
fn unread(error: &io::Error) -> io::Error {
    let text = format!("the process that reads files cannot be used:  {error}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;
    use crate::access::starter::spawn;

    /// A reader whose processes run this shell script.
    fn reader(script: &'static str) -> Reader {
        Reader::new(Box::new(move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let (ours, theirs) = UnixStream::pair()?;
            spawn(command, theirs).map(|_| ours)
        }))
    }

    /// A reader whose processes send these bytes and nothing else.
    fn sends(bytes: &'static [u8]) -> Reader {
        Reader::new(Box::new(move || {
            let (ours, mut theirs) = UnixStream::pair()?;
            theirs.write_all(bytes)?;
            std::mem::forget(theirs);
            Ok(ours)
        }))
    }

    fn ask(reader: &mut Reader, domain: StallDomain, path: &str) -> io::ErrorKind {
        let path = Path::new(path);
        reader.ask(domain, path, &Request::Open { path }).unwrap_err().kind()
    }

    #[test]
    fn a_stalled_file_system_is_asked_once_and_others_are_still_asked() {
        let mut reader = sends(b"b");
        let begun = Instant::now();
        assert_eq!(ask(&mut reader, StallDomain::Device(0, 39), "/a/libcuda.so"), io::ErrorKind::TimedOut);
        // a poll waits for whole milliseconds
        assert!(begun.elapsed() + Duration::from_millis(5) >= PATIENCE);
        let again = Instant::now();
        for _ in 0..100 {
            assert_eq!(ask(&mut reader, StallDomain::Device(0, 39), "/a/other"), io::ErrorKind::TimedOut);
        }
        assert!(again.elapsed() < PATIENCE, "{:?}", again.elapsed());
        assert_eq!(reader.abandoned.len(), 1);
        assert_eq!(reader.take_stalls(), [Stall { path: "/a/libcuda.so".into(), kind: StallKind::Silent }]);

        let (soon, mut many) = (Instant::now(), 0);
        for minor in 40..80 {
            assert_eq!(ask(&mut reader, StallDomain::Device(0, minor), "/b"), io::ErrorKind::TimedOut);
            many += 1;
        }
        assert_eq!((reader.abandoned.len(), many), (ABANDONED_LIMIT, 40));
        // each of them would take that long otherwise
        assert!(soon.elapsed() < 5 * PATIENCE, "{:?}", soon.elapsed());
        // processes are still read, up to the hard limit
        for pid in 0..20 {
            ask(&mut reader, StallDomain::Process(pid), "/c");
        }
        assert_eq!(reader.abandoned.len(), ABANDONED_HARD_LIMIT);
    }

    #[test]
    fn a_file_system_that_answers_again_is_reported_and_cools_down() {
        // any bytes end the waiting
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, path) = (reader("exit 0"), Path::new("/a"));
        let process = ReaderProcess::new(ours, 1, BEGIN_WITHIN);
        reader.abandoned.push(Abandoned { process, domain: StallDomain::Process(7), path: path.to_owned() });
        assert_eq!(reader.take_stalls(), []);
        theirs.write_all(b"no message at all").unwrap();
        let begun = Instant::now();
        let stalls = loop {
            let stalls = reader.take_stalls();
            if !stalls.is_empty() {
                break stalls;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
        };
        assert_eq!(stalls, [Stall { path: path.to_owned(), kind: StallKind::Recovered }]);
        assert_eq!((reader.abandoned.len(), reader.cooling.len()), (0, 1));
        assert_eq!(ask(&mut reader, StallDomain::Process(7), "/proc/7/maps"), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_reader_that_exits_is_replaced() {
        let mut reader = reader("exit 0");
        for _ in 0..3 {
            // nothing is known about the file
            assert_eq!(ask(&mut reader, StallDomain::Process(7), "/x"), io::ErrorKind::TimedOut);
        }
        assert_eq!((reader.started, reader.abandoned.len()), (3, 0));
        assert_eq!(reader.take_stalls(), []);
    }

    #[test]
    fn a_reader_that_waits_for_a_cpu_is_not_a_stalled_file_system() {
        // longer than the patience with a file system, then an empty answer
        let script = r"sleep 2.2; printf 'b\010\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'; exec sleep 20";
        let mut late = reader(script);
        let path = Path::new("/a");
        assert_eq!(
            late.ask(StallDomain::Process(7), path, &Request::Open { path }).unwrap(),
            (Vec::new(), 1)
        );
        assert_eq!((late.take_stalls(), late.slow.len()), (vec![], 0));

        let mut never = sends(b"");
        never.begin_within = Duration::from_millis(50);
        for _ in 0..2 {
            assert_eq!(ask(&mut never, StallDomain::Process(7), "/a"), io::ErrorKind::TimedOut);
        }
        assert_eq!((never.started, never.abandoned.len()), (2, 0), "asked again, through another process");
        assert_eq!(never.take_stalls(), []);
    }

    #[test]
    fn a_reader_that_could_not_be_started_is_started_for_the_next_request() {
        let mut tries = 0;
        let mut good = sends(b"b\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").start;
        let mut reader = Reader::new(Box::new(move || {
            tries += 1;
            if tries == 1 { Err(io::ErrorKind::OutOfMemory.into()) } else { good() }
        }));
        assert_eq!(ask(&mut reader, StallDomain::Process(7), "/a"), io::ErrorKind::TimedOut);
        let path = Path::new("/a");
        reader.ask(StallDomain::Process(7), path, &Request::Open { path }).unwrap();
    }

    #[test]
    fn a_file_system_that_always_answers_just_in_time_cools_down() {
        let mut reader = reader("exit 0");
        let (slow, disk, path) = (StallDomain::Device(0, 39), StallDomain::Device(254, 0), Path::new("/a"));
        for _ in 0..9 {
            reader.account(&slow, path, Duration::from_millis(1100));
            reader.account(&disk, path, Duration::from_millis(1100));
            reader.account(&StallDomain::Process(7), path, NEGLIGIBLE / 2);
        }
        assert!(!reader.is_blocked(&slow, path));
        reader.account(&slow, path, Duration::from_millis(1100));
        assert_eq!(reader.take_stalls(), [Stall { path: path.to_owned(), kind: StallKind::Slow }]);
        assert_eq!(ask(&mut reader, slow.clone(), "/a/other"), io::ErrorKind::TimedOut);
        assert_eq!(reader.started, 0, "no process was asked");
        for domain in [disk, StallDomain::Process(7), StallDomain::Device(0, 40)] {
            assert!(!reader.is_blocked(&domain, path), "{domain:?}");
        }
        for minor in 100..500 {
            reader.account(&StallDomain::Device(0, minor), path, PATIENCE);
        }
        assert!(reader.slow.len() <= REMEMBERED_LIMIT);
    }

    #[test]
    fn all_processes_can_be_listed_while_many_file_systems_stall() {
        let mut reader = reader("exit 0");
        for minor in 0..ABANDONED_LIMIT as u32 {
            let (socket, theirs) = UnixStream::pair().unwrap();
            std::mem::forget(theirs);
            reader.abandon(
                ReaderProcess::new(socket, 0, BEGIN_WITHIN),
                (StallDomain::Device(0, minor), "/a".into()),
            );
        }
        let is_blocked = |path: &str| reader.is_blocked(&StallDomain::of(Path::new(path)), Path::new(path));
        assert!(is_blocked("/usr/lib"));
        assert!(!is_blocked("/proc") && !is_blocked("/proc/7/maps"));
        assert_eq!(reader.patience(&StallDomain::of(Path::new("/proc"))), PATIENCE);
    }
}
