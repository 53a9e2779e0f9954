//! The process that looks at files in our place, and those before it that still wait for an answer.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::place::Place;
use super::wire::{Request, length_of, parse_answer};

/// How long an answer is waited for. Whoever asks is kept from everything else meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a while after one did not come, so that many file systems that stall one after the other, or one that
/// takes its time again and again, do not keep us.
const LITTLE_PATIENCE: Duration = Duration::from_millis(200);
const IMPATIENT_FOR: Duration = Duration::from_secs(10);
/// What answers at last is left alone for this long.
const COOLING: Duration = Duration::from_secs(30);
/// Readers that wait for an answer. When there are so many, only what lies on a disk or is part of /proc is asked about.
const MOST_WAITING: usize = 8;
/// And then only so many more.
const MOST_WAITING_AT_ALL: usize = 12;
/// Places remembered as answering again, and messages kept for people.
const MOST_KEPT: usize = 64;

/// A file system that does not answer, or that answers again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// What was asked about.
    pub path: PathBuf,
    /// Whether it answers again.
    pub is_over: bool,
}

/// Starts a process that reads: the socket that it is asked, and answers, through.
type Start = Box<dyn FnMut() -> io::Result<UnixStream> + Send>;

pub(super) struct Reader {
    start: Start,
    current: Option<Process>,
    started: u64,
    waiting: Vec<Waiting>,
    cooling: Vec<(Place, Instant)>,
    last_stall: Option<Instant>,
    stalls: Vec<Stall>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// A process that reads. It ends when its socket does.
struct Process {
    socket: UnixStream,
    number: u64,
}

/// One that was left behind.
struct Waiting {
    process: Process,
    place: Place,
    path: PathBuf,
}

impl Reader {
    pub(super) fn new(start: Start) -> Self {
        Self {
            start,
            current: None,
            started: 0,
            waiting: Vec::new(),
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
    pub(super) fn close(&mut self, process: u64, file: u64) {
        if let Some(process) = self.current.as_mut().filter(|current| current.number == process) {
            // one that has ended has no files open
            process.socket.write_all(&Request::Close { number: file }.message()).ok();
        }
    }

    /// The answer, and the number of the process that gave it. What is known not to answer is not asked.
    pub(super) fn ask(
        &mut self,
        place: Place,
        path: &Path,
        request: &Request<'_>,
    ) -> io::Result<(Vec<u8>, u64)> {
        self.look_at_waiting();
        let covers = |stalled: &Place| stalled.covers(&place, path);
        if self.waiting.iter().any(|w| covers(&w.place)) || self.cooling.iter().any(|(p, _)| covers(p)) {
            return Err(stalled());
        }
        let may_wait = if place.is_local() || matches!(place, Place::Process(_)) {
            MOST_WAITING_AT_ALL
        } else {
            MOST_WAITING
        };
        if self.waiting.len() >= may_wait {
            return Err(stalled());
        }
        let is_impatient = self.last_stall.is_some_and(|last| last.elapsed() < IMPATIENT_FOR);
        // no other program can stall a disk, and a busy one may take its time
        let patience = if is_impatient && !place.is_local() { LITTLE_PATIENCE } else { PATIENCE };
        let mut process = match self.current.take() {
            Some(process) => process,
            None => self.start()?,
        };
        let number = process.number;
        match process.ask(request, patience) {
            Ok(Some(answer)) => {
                self.current = Some(process);
                parse_answer(answer).map(|answer| (answer, number))
            }
            Ok(None) => {
                self.note(path, false);
                self.last_stall = Some(Instant::now());
                let (place, path) = (place.widened(), path.to_owned());
                self.waiting.push(Waiting { process, place, path });
                Err(stalled())
            }
            Err(error) => Err(error),
        }
    }

    fn start(&mut self) -> io::Result<Process> {
        let socket = (self.start)()?;
        self.started += 1;
        Ok(Process { socket, number: self.started })
    }

    /// Ends those that have got their answer after all, or have been ended.
    fn look_at_waiting(&mut self) {
        self.cooling.retain(|(_, since)| since.elapsed() < COOLING);
        for waiting in
            self.waiting.extract_if(.., |w| w.process.has_something(Duration::ZERO)).collect::<Vec<_>>()
        {
            self.note(&waiting.path, true);
            if self.cooling.len() < MOST_KEPT && !waiting.place.is_local() {
                self.cooling.push((waiting.place, Instant::now()));
            }
        }
    }

    fn note(&mut self, path: &Path, is_over: bool) {
        if self.stalls.len() < MOST_KEPT {
            self.stalls.push(Stall { path: path.to_owned(), is_over });
        }
    }
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "its file system does not answer")
}

impl Process {
    /// Asks, and waits for as long as something comes; nothing where nothing did for too long.
    fn ask(&mut self, request: &Request<'_>, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        self.socket.write_all(&request.message())?;
        let mut answer = Vec::new();
        loop {
            let length = length_of(&answer)?;
            let missing = length.map_or(8, |length| length + 8) - answer.len();
            if length.is_some() && missing == 0 {
                return Ok(Some(answer.split_off(8)));
            }
            if !self.has_something(patience) {
                return Ok(None);
            }
            let have = answer.len();
            answer.resize(have + missing, 0);
            let read = self.socket.read(&mut answer[have..])?;
            if read == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            answer.truncate(have + read);
        }
    }

    /// Whether there is something to be read, or there never will be.
    fn has_something(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Err(nix::errno::Errno::EINTR) if !rest.is_zero() => {}
                Ok(0) | Err(_) => return false,
                Ok(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
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

    fn ask(reader: &mut Reader, place: Place, path: &str) -> io::ErrorKind {
        let path = Path::new(path);
        reader.ask(place, path, &Request::Open { path }).unwrap_err().kind()
    }

    #[test]
    fn what_does_not_answer_is_asked_once_and_named_and_others_are_asked_all_the_same() {
        let mut reader = reader("exec sleep 20");
        let begun = Instant::now();
        assert_eq!(ask(&mut reader, Place::Device(0, 39), "/a/libcuda.so"), io::ErrorKind::TimedOut);
        // a poll waits for whole milliseconds
        assert!(begun.elapsed() + Duration::from_millis(5) >= PATIENCE);
        let again = Instant::now();
        for _ in 0..100 {
            assert_eq!(ask(&mut reader, Place::Device(0, 39), "/a/other"), io::ErrorKind::TimedOut);
        }
        assert!(again.elapsed() < LITTLE_PATIENCE, "{:?}", again.elapsed());
        assert_eq!(reader.waiting.len(), 1);
        assert_eq!(reader.take_stalls(), [Stall { path: "/a/libcuda.so".into(), is_over: false }]);

        let (soon, mut many) = (Instant::now(), 0);
        for minor in 40..80 {
            assert_eq!(ask(&mut reader, Place::Device(0, minor), "/b"), io::ErrorKind::TimedOut);
            many += 1;
        }
        assert_eq!((reader.waiting.len(), many), (MOST_WAITING, 40));
        assert!(soon.elapsed() < 10 * LITTLE_PATIENCE, "{:?}", soon.elapsed());
        // processes are still asked about, but not for ever
        for pid in 0..20 {
            ask(&mut reader, Place::Process(pid), "/c");
        }
        assert_eq!(reader.waiting.len(), MOST_WAITING_AT_ALL);
    }

    #[test]
    fn what_answers_at_last_is_said_and_left_alone_for_a_while() {
        let mut reader = reader("read x; echo no message at all; exec sleep 20");
        // what it says is the end of the waiting, whatever it is
        let path = Path::new("/a");
        let process = reader.start().unwrap();
        reader.waiting.push(Waiting { process, place: Place::Process(7), path: path.to_owned() });
        assert_eq!(reader.take_stalls(), []);
        reader.waiting[0].process.socket.write_all(b"\n").unwrap();
        let begun = Instant::now();
        let stalls = loop {
            let stalls = reader.take_stalls();
            if !stalls.is_empty() {
                break stalls;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
        };
        assert_eq!(stalls, [Stall { path: path.to_owned(), is_over: true }]);
        assert_eq!((reader.waiting.len(), reader.cooling.len()), (0, 1));
        assert_eq!(ask(&mut reader, Place::Process(7), "/proc/7/maps"), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_reader_that_ends_is_replaced() {
        let mut reader = reader("exit 0");
        for _ in 0..3 {
            // it may go before the request is sent, or before it is read
            let error = ask(&mut reader, Place::Process(7), "/x");
            assert!(matches!(error, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset), "{error}");
        }
        assert_eq!((reader.started, reader.waiting.len()), (3, 0));
    }
}
