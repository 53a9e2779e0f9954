//! The connection to one reader process.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::stall_domain::StallDomain;
use super::wire::{BEGUN, Request, length_of};

/// Close requests that may be outstanding. Their answers must not fill the socket: then both processes would wait for
/// each other.
const CLOSING_LIMIT: usize = 16;

/// The process exits when its socket closes.
#[derive(Debug)]
pub(super) struct ReaderProcess {
    socket: UnixStream,
    pub(super) number: u64,
    /// How long it may take to begin a request. It touches no file before that, so only a busy CPU can delay it.
    begin_within: Duration,
    /// Files whose close request is not yet answered, oldest first.
    closing: VecDeque<(StallDomain, PathBuf)>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// It has begun and does not finish: the request, or closing an earlier file.
    Stalled(Option<(StallDomain, PathBuf)>),
    /// It has exited, sent nonsense or has not even begun. No file system is to blame.
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

    /// Sends a request and waits for the answer. Also returns how long it took once it had begun.
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

    /// Requests that a file be closed, without waiting: closing may also have to wait for the file system.
    pub(super) fn close(
        &mut self,
        number: u64,
        file: (StallDomain, PathBuf),
        patience: Duration,
    ) -> Result<(), Failure> {
        if self.closing.len() >= CLOSING_LIMIT {
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
                Err(Failure::Lost(io::Error::new(io::ErrorKind::TimedOut, "it was not scheduled in time")))
            }
        }
    }

    /// The next answer; `None` on a timeout.
    fn answer(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let Some(length) = self.receive(8, patience)? else { return Ok(None) };
        self.receive(length_of(&length)?.unwrap_or(0), patience)
    }

    /// Exactly `size` bytes; `None` on a timeout.
    fn receive(&mut self, size: usize, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let (mut bytes, mut have) = (vec![0; size], 0);
        while have < size {
            if !self.is_readable(patience) {
                return Ok(None);
            }
            match self.socket.read(&mut bytes[have..])? {
                0 => return Err(io::ErrorKind::BrokenPipe.into()),
                read => have += read,
            }
        }
        Ok(Some(bytes))
    }

    /// Whether there is something to read, or the other end is closed.
    pub(super) fn is_readable(&self, patience: Duration) -> bool {
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
    fn closing_many_files_does_not_deadlock() {
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
    fn a_stall_is_blamed_on_the_file_that_cannot_be_closed() {
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
