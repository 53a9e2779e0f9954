//! The process that looks at files in our domain, and those before it that still wait for an answer.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::reader_process::{Failure, ReaderProcess};
use super::stall_domain::StallDomain;
use super::wire::{Request, parse_answer};

/// How long an answer is waited for. Whoever asks is kept from everything else meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a while after one did not come, so that many file systems that stall one after the other, or one that
/// takes its time again and again, do not keep us.
const LITTLE_PATIENCE: Duration = Duration::from_millis(200);
const IMPATIENT_FOR: Duration = Duration::from_secs(10);
/// How long a reader may wait for a CPU. Where there is none for longer, we do not get to run either.
const BEGIN_WITHIN: Duration = Duration::from_secs(20);
/// What answers at last, or has kept us for too long, is left alone for this long.
const COOLING: Duration = Duration::from_secs(30);
/// What one place may keep us altogether, in so much time. Answers that take less than the last are not counted.
const MOST_KEEPING: Duration = Duration::from_secs(10);
const KEEPING_WITHIN: Duration = Duration::from_secs(60);
const NO_TIME: Duration = Duration::from_millis(5);
/// Readers that wait for an answer. When there are so many, only what lies on a disk or is part of /proc is asked about.
const MOST_WAITING: usize = 8;
/// And then only so many more.
const MOST_WAITING_AT_ALL: usize = 12;
/// Places remembered as slow or as answering again, and messages kept for people.
const MOST_KEPT: usize = 64;

/// How a file system comes to be left alone, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallKind {
    /// It does not answer.
    Silent,
    /// It answers, and takes too long for it again and again.
    Slow,
    /// It answers again.
    Over,
}

/// A file system that does not answer, or that answers again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// What was asked about.
    pub path: PathBuf,
    pub kind: StallKind,
}

/// Starts a process that reads: the socket that it is asked, and answers, through.
type Start = Box<dyn FnMut() -> io::Result<UnixStream> + Send>;

pub(super) struct Reader {
    start: Start,
    current: Option<ReaderProcess>,
    started: u64,
    begin_within: Duration,
    waiting: Vec<Waiting>,
    slow: Vec<Slow>,
    cooling: Vec<(StallDomain, Instant)>,
    last_stall: Option<Instant>,
    stalls: Vec<Stall>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// A process that was left behind.
struct Waiting {
    process: ReaderProcess,
    domain: StallDomain,
    path: PathBuf,
}

/// How long a place has kept us.
struct Slow {
    domain: StallDomain,
    since: Instant,
    kept_us: Duration,
}

impl Reader {
    pub(super) fn new(start: Start) -> Self {
        Self {
            start,
            current: None,
            started: 0,
            begin_within: BEGIN_WITHIN,
            waiting: Vec::new(),
            slow: Vec::new(),
            cooling: Vec::new(),
            last_stall: None,
            stalls: Vec::new(),
        }
    }

    /// Whether the process that reads now is this one.
    pub(super) fn is(&self, number: u64) -> bool {
        self.current.as_ref().is_some_and(|process| process.number == number)
    }

    pub(super) fn take_stalls(&mut self) -> Vec<Stall> {
        self.look_at_waiting();
        std::mem::take(&mut self.stalls)
    }

    /// Closes a file, if the process that has it open still reads for us.
    pub(super) fn close(&mut self, process: u64, file: u64, named: (StallDomain, PathBuf)) {
        let Some(mut current) = self.current.take_if(|current| current.number == process) else { return };
        match current.close(file, named, PATIENCE) {
            Ok(()) => self.current = Some(current),
            Err(Failure::Stalled(Some(named))) => self.leave(current, named),
            // one that has ended has no files open
            Err(_) => {}
        }
    }

    /// The answer, and the number of the process that gave it. What is known not to answer is not asked.
    pub(super) fn ask(
        &mut self,
        domain: StallDomain,
        path: &Path,
        request: &Request<'_>,
    ) -> io::Result<(Vec<u8>, u64)> {
        self.look_at_waiting();
        loop {
            if self.is_left_alone(&domain, path) {
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
                // a new one has nothing to close
                Err(Failure::Stalled(Some(closed))) => self.leave(process, closed),
                Err(Failure::Stalled(None)) => {
                    self.leave(process, (domain, path.to_owned()));
                    return Err(stalled());
                }
                Err(Failure::Lost(error)) => return Err(unread(&error)),
            }
        }
    }

    fn is_left_alone(&self, domain: &StallDomain, path: &Path) -> bool {
        let covers = |stalled: &StallDomain| stalled.covers(domain, path);
        let may_wait = if domain.is_local() || matches!(domain, StallDomain::Process(_)) {
            MOST_WAITING_AT_ALL
        } else {
            MOST_WAITING
        };
        self.waiting.len() >= may_wait
            || self.waiting.iter().any(|w| covers(&w.domain))
            || self.cooling.iter().any(|(p, _)| covers(p))
    }

    fn patience(&self, domain: &StallDomain) -> Duration {
        let is_impatient = self.last_stall.is_some_and(|last| last.elapsed() < IMPATIENT_FOR);
        // no other program can stall a disk, and a busy one may take its time
        if is_impatient && !domain.is_local() { LITTLE_PATIENCE } else { PATIENCE }
    }

    /// Leaves a process behind that this file keeps.
    fn leave(&mut self, process: ReaderProcess, (domain, path): (StallDomain, PathBuf)) {
        self.note(&path, StallKind::Silent);
        self.last_stall = Some(Instant::now());
        self.waiting.push(Waiting { process, domain: domain.widened(), path });
    }

    /// Counts how long a place has kept us. One that always answers just in time would keep us from everything else.
    fn account(&mut self, domain: &StallDomain, path: &Path, took: Duration) {
        if took < NO_TIME || domain.is_local() {
            return;
        }
        self.slow.retain(|slow| slow.since.elapsed() < KEEPING_WITHIN);
        let known = self.slow.iter().position(|slow| slow.domain.covers(domain, path));
        let mut slow = match known {
            Some(known) => self.slow.remove(known),
            None => Slow { domain: domain.clone().widened(), since: Instant::now(), kept_us: Duration::ZERO },
        };
        slow.kept_us += took;
        if slow.kept_us >= MOST_KEEPING && self.cooling.len() < MOST_KEPT {
            self.note(path, StallKind::Slow);
            self.last_stall = Some(Instant::now());
            self.cooling.push((slow.domain, Instant::now()));
            return;
        }
        if self.slow.len() >= MOST_KEPT {
            self.slow.remove(0);
        }
        self.slow.push(slow);
    }

    fn start(&mut self) -> io::Result<ReaderProcess> {
        let socket = (self.start)()?;
        self.started += 1;
        Ok(ReaderProcess::new(socket, self.started, self.begin_within))
    }

    /// Ends those that have got their answer after all, or have been ended.
    fn look_at_waiting(&mut self) {
        self.cooling.retain(|(_, since)| since.elapsed() < COOLING);
        for waiting in
            self.waiting.extract_if(.., |w| w.process.has_something(Duration::ZERO)).collect::<Vec<_>>()
        {
            self.note(&waiting.path, StallKind::Over);
            if self.cooling.len() < MOST_KEPT && !waiting.domain.is_local() {
                self.cooling.push((waiting.domain, Instant::now()));
            }
        }
    }

    fn note(&mut self, path: &Path, kind: StallKind) {
        if self.stalls.len() < MOST_KEPT {
            self.stalls.push(Stall { path: path.to_owned(), kind });
        }
    }
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")
}

/// Nobody can be asked. As with a file system that does not answer, nothing is known of the file, and the next time it may be.
fn unread(error: &io::Error) -> io::Error {
    let text = format!("the process that reads files cannot be asked: {error}");
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

    /// One whose processes have said this, and say nothing else.
    fn says(said: &'static [u8]) -> Reader {
        Reader::new(Box::new(move || {
            let (ours, mut theirs) = UnixStream::pair()?;
            theirs.write_all(said)?;
            std::mem::forget(theirs);
            Ok(ours)
        }))
    }

    fn ask(reader: &mut Reader, domain: StallDomain, path: &str) -> io::ErrorKind {
        let path = Path::new(path);
        reader.ask(domain, path, &Request::Open { path }).unwrap_err().kind()
    }

    #[test]
    fn what_does_not_answer_is_asked_once_and_named_and_others_are_asked_all_the_same() {
        let mut reader = says(b"b");
        let begun = Instant::now();
        assert_eq!(ask(&mut reader, StallDomain::Device(0, 39), "/a/libcuda.so"), io::ErrorKind::TimedOut);
        // a poll waits for whole milliseconds
        assert!(begun.elapsed() + Duration::from_millis(5) >= PATIENCE);
        let again = Instant::now();
        for _ in 0..100 {
            assert_eq!(ask(&mut reader, StallDomain::Device(0, 39), "/a/other"), io::ErrorKind::TimedOut);
        }
        assert!(again.elapsed() < PATIENCE, "{:?}", again.elapsed());
        assert_eq!(reader.waiting.len(), 1);
        assert_eq!(reader.take_stalls(), [Stall { path: "/a/libcuda.so".into(), kind: StallKind::Silent }]);

        let (soon, mut many) = (Instant::now(), 0);
        for minor in 40..80 {
            assert_eq!(ask(&mut reader, StallDomain::Device(0, minor), "/b"), io::ErrorKind::TimedOut);
            many += 1;
        }
        assert_eq!((reader.waiting.len(), many), (MOST_WAITING, 40));
        // each of them alone would take that long otherwise
        assert!(soon.elapsed() < 5 * PATIENCE, "{:?}", soon.elapsed());
        // processes are still asked about, but not for ever
        for pid in 0..20 {
            ask(&mut reader, StallDomain::Process(pid), "/c");
        }
        assert_eq!(reader.waiting.len(), MOST_WAITING_AT_ALL);
    }

    #[test]
    fn what_answers_at_last_is_said_and_left_alone_for_a_while() {
        // what it says is the end of the waiting, whatever it is
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, path) = (reader("exit 0"), Path::new("/a"));
        let process = ReaderProcess::new(ours, 1, BEGIN_WITHIN);
        reader.waiting.push(Waiting { process, domain: StallDomain::Process(7), path: path.to_owned() });
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
        assert_eq!(stalls, [Stall { path: path.to_owned(), kind: StallKind::Over }]);
        assert_eq!((reader.waiting.len(), reader.cooling.len()), (0, 1));
        assert_eq!(ask(&mut reader, StallDomain::Process(7), "/proc/7/maps"), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_reader_that_ends_is_replaced() {
        let mut reader = reader("exit 0");
        for _ in 0..3 {
            // nothing is known of the file
            assert_eq!(ask(&mut reader, StallDomain::Process(7), "/x"), io::ErrorKind::TimedOut);
        }
        assert_eq!((reader.started, reader.waiting.len()), (3, 0));
        assert_eq!(reader.take_stalls(), []);
    }

    #[test]
    fn a_reader_that_waits_for_a_cpu_is_no_stalled_file_system() {
        // longer than a file system may take, and then an answer without anything in it
        let script = r"sleep 2.2; printf 'b\010\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'; exec sleep 20";
        let mut late = reader(script);
        let path = Path::new("/a");
        assert_eq!(
            late.ask(StallDomain::Process(7), path, &Request::Open { path }).unwrap(),
            (Vec::new(), 1)
        );
        assert_eq!((late.take_stalls(), late.slow.len()), (vec![], 0));

        let mut never = says(b"");
        never.begin_within = Duration::from_millis(50);
        for _ in 0..2 {
            assert_eq!(ask(&mut never, StallDomain::Process(7), "/a"), io::ErrorKind::TimedOut);
        }
        assert_eq!((never.started, never.waiting.len()), (2, 0), "asked again, and by another one");
        assert_eq!(never.take_stalls(), []);
    }

    #[test]
    fn one_that_could_not_be_started_is_started_for_the_next_question() {
        let mut tries = 0;
        let mut good = says(b"b\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").start;
        let mut reader = Reader::new(Box::new(move || {
            tries += 1;
            if tries == 1 { Err(io::ErrorKind::OutOfMemory.into()) } else { good() }
        }));
        assert_eq!(ask(&mut reader, StallDomain::Process(7), "/a"), io::ErrorKind::TimedOut);
        let path = Path::new("/a");
        reader.ask(StallDomain::Process(7), path, &Request::Open { path }).unwrap();
    }

    #[test]
    fn a_place_that_always_answers_just_in_time_is_left_alone_for_a_while() {
        let mut reader = reader("exit 0");
        let (slow, disk, path) = (StallDomain::Device(0, 39), StallDomain::Device(254, 0), Path::new("/a"));
        for _ in 0..9 {
            reader.account(&slow, path, Duration::from_millis(1100));
            reader.account(&disk, path, Duration::from_millis(1100));
            reader.account(&StallDomain::Process(7), path, NO_TIME / 2);
        }
        assert!(!reader.is_left_alone(&slow, path));
        reader.account(&slow, path, Duration::from_millis(1100));
        assert_eq!(reader.take_stalls(), [Stall { path: path.to_owned(), kind: StallKind::Slow }]);
        assert_eq!(ask(&mut reader, slow.clone(), "/a/other"), io::ErrorKind::TimedOut);
        assert_eq!(reader.started, 0, "nobody was asked");
        for domain in [disk, StallDomain::Process(7), StallDomain::Device(0, 40)] {
            assert!(!reader.is_left_alone(&domain, path), "{domain:?}");
        }
        for minor in 100..500 {
            reader.account(&StallDomain::Device(0, minor), path, PATIENCE);
        }
        assert!(reader.slow.len() <= MOST_KEPT);
    }

    #[test]
    fn all_processes_can_be_listed_while_many_file_systems_stall() {
        let mut reader = reader("exit 0");
        for minor in 0..MOST_WAITING as u32 {
            let (socket, theirs) = UnixStream::pair().unwrap();
            std::mem::forget(theirs);
            reader.leave(
                ReaderProcess::new(socket, 0, BEGIN_WITHIN),
                (StallDomain::Device(0, minor), "/a".into()),
            );
        }
        let is_left_alone =
            |path: &str| reader.is_left_alone(&StallDomain::of(Path::new(path)), Path::new(path));
        assert!(is_left_alone("/usr/lib"));
        assert!(!is_left_alone("/proc") && !is_left_alone("/proc/7/maps"));
        assert_eq!(reader.patience(&StallDomain::of(Path::new("/proc"))), PATIENCE);
    }
}
