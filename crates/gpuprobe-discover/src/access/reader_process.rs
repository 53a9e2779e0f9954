//! A process that looks at files in our place, as it is asked.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::stall_domain::StallDomain;
use super::wire::{BEGUN, Request, length_of};

/// Files that it closes meanwhile. Its answers must not fill the socket: it would wait for us then, and we for it.
const MOST_CLOSING: usize = 16;

/// It ends when its socket does.
#[derive(Debug)]
pub(super) struct ReaderProcess {
    socket: UnixStream,
    pub(super) number: u64,
    /// How long it may take to begin with something. It touches no file before that, so only other processes that have
    /// the CPU can keep it.
    begin_within: Duration,
    /// Files that it was told to close and has not said that it did, the first one first.
    closing: VecDeque<(StallDomain, PathBuf)>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// It has begun and does not come to an end: with the question, or with closing another file before that.
    Stalled(Option<(StallDomain, PathBuf)>),
    /// It has ended, makes no sense or has not even begun. No file is to blame.
    Lost(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

impl ReaderProcess {
    pub(super) fn new(socket: UnixStream, number: u64, begin_within: Duration) -> Self {
        Self { socket, number, begin_within, closing: VecDeque::new() }
    }

    /// Asks, and waits for as long as something comes; also tells how long it took once it had begun.
    pub(super) fn ask(
        &mut self,
        request: &Request<'_>,
        patience: Duration,
    ) -> Result<(Vec<u8>, Duration), Failure> {
        self.wait_closed(patience)?;
        self.socket.write_all(&request.message())?;
        self.wait_begun()?;
        let begun = Instant::now();
        let answer = self.answer(patience)?.ok_or(Failure::Stalled(None))?;
        Ok((answer, begun.elapsed()))
    }

    /// Has a file closed some time later: this, too, may have to wait for its file system.
    pub(super) fn close(
        &mut self,
        number: u64,
        file: (StallDomain, PathBuf),
        patience: Duration,
    ) -> Result<(), Failure> {
        if self.closing.len() >= MOST_CLOSING {
            self.wait_closed(patience)?;
        }
        self.socket.write_all(&Request::Close { number }.message())?;
        self.closing.push_back(file);
        Ok(())
    }

    fn wait_closed(&mut self, patience: Duration) -> Result<(), Failure> {
        while let Some(file) = self.closing.pop_front() {
            self.wait_begun()?;
            if self.answer(patience)?.is_none() {
                return Err(Failure::Stalled(Some(file)));
            }
        }
        Ok(())
    }

    fn wait_begun(&mut self) -> Result<(), Failure> {
        match self.receive(1, self.begin_within)?.as_deref() {
            Some([BEGUN]) => Ok(()),
            Some(_) => Err(Failure::Lost(io::ErrorKind::InvalidData.into())),
            None => {
                Err(Failure::Lost(io::Error::new(io::ErrorKind::TimedOut, "it does not get to run in time")))
            }
        }
    }

    /// The next answer; nothing where nothing came for too long.
    fn answer(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let Some(length) = self.receive(8, patience)? else { return Ok(None) };
        self.receive(length_of(&length)?.unwrap_or(0), patience)
    }

    /// Exactly so many bytes; nothing where none came for too long.
    fn receive(&mut self, size: usize, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let (mut bytes, mut have) = (vec![0; size], 0);
        while have < size {
            if !self.has_something(patience) {
                return Ok(None);
            }
            match self.socket.read(&mut bytes[have..])? {
                0 => return Err(io::ErrorKind::BrokenPipe.into()),
                read => have += read,
            }
        }
        Ok(Some(bytes))
    }

    /// Whether there is something to be read, or there never will be.
    pub(super) fn has_something(&self, patience: Duration) -> bool {
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
    use std::path::Path;
    use std::thread;

    use super::*;
    use crate::access::direct::serve_files;

    const SOON: Duration = Duration::from_secs(20);

    fn pair() -> (ReaderProcess, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ReaderProcess::new(ours, 1, SOON), theirs)
    }

    fn named(name: &str) -> (StallDomain, PathBuf) {
        (StallDomain::Device(0, 39), PathBuf::from(name))
    }

    #[test]
    fn many_files_are_closed_without_anybody_waiting_for_the_other() {
        let (mut process, theirs) = pair();
        let answers = theirs.try_clone().unwrap();
        let served = thread::spawn(move || serve_files(theirs, answers));
        for number in 0..2000 {
            process.close(number, named("/a"), SOON).unwrap();
        }
        let path = Path::new("/proc/self/comm");
        let (answer, _) = process.ask(&Request::Contents { path, limit: 64 }, SOON).unwrap();
        assert!(!answer.is_empty() && process.closing.is_empty());
        drop(process);
        served.join().unwrap().unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_closed_is_to_blame_and_not_the_one_that_is_asked_about() {
        let (mut process, mut theirs) = pair();
        for name in ["/first", "/second"] {
            process.close(1, named(name), SOON).unwrap();
        }
        theirs.write_all(&[BEGUN, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, BEGUN]).unwrap();
        let path = Path::new("/third");
        let failure = process.ask(&Request::Open { path }, Duration::from_millis(10)).unwrap_err();
        assert!(
            matches!(&failure, Failure::Stalled(Some((_, path))) if path == Path::new("/second")),
            "{failure:?}"
        );
    }
}
