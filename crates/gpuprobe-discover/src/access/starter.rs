//! The starter: a process that starts readers for a daemon that may no longer execute programs. It is started before
//! the daemon gives up that right. It only starts readers and passes on the sockets to them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// How long to wait for a new reader. Starting one touches no file of other processes, but needs a CPU.
const START_WITHIN: Duration = Duration::from_secs(20);
/// Requests a reader. The answer is the same byte, with the socket attached if a reader was started.
const NEW: u8 = b'n';

/// Our end of the connection to the starter.
#[derive(Debug)]
pub(super) struct Starter {
    socket: UnixStream,
    // it exits when the socket closes
    _child: Option<Child>,
}

impl Starter {
    /// Starts the process, which must call [`start_readers`].
    pub(super) fn new(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // so that Ctrl-C does not reach it
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Self::at(ours, Some(command.spawn()?))
    }

    fn at(socket: UnixStream, child: Option<Child>) -> io::Result<Self> {
        socket.set_read_timeout(Some(START_WITHIN))?;
        Ok(Self { socket, _child: child })
    }

    /// Starts a new reader and returns the socket to it.
    pub(super) fn reader(&mut self) -> io::Result<UnixStream> {
        self.socket.write_all(&[NEW])?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut received = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let message = recvmsg(&self.socket, &mut parts, &mut received, RecvFlags::CMSG_CLOEXEC)?;
        let has_exited = message.bytes == 0;
        let mut files = received.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = files.next().and_then(|mut files| files.next());
        let why = if has_exited {
            "the process that starts readers has exited"
        } else {
            "no reader can be started"
        };
        file.map(UnixStream::from).ok_or_else(|| io::Error::other(why))
    }
}

/// Starts a reader with this command for each request on standard input, until the input ends. Readers exit when
/// their sockets close; those that hang in a file system then are killed.
pub fn start_readers(command: impl Fn() -> Command) -> io::Result<()> {
    start_for(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?), command)
}

fn start_for(mut requests: UnixStream, command: impl Fn() -> Command) -> io::Result<()> {
    let mut readers: Vec<Child> = Vec::new();
    let mut byte = [0];
    while requests.read(&mut byte)? == 1 {
        readers.retain_mut(|reader| !matches!(reader.try_wait(), Ok(Some(_))));
        let started = UnixStream::pair().and_then(|(ours, theirs)| Ok((ours, spawn(command(), theirs)?)));
        // there may be room for another process later
        match started {
            Ok((socket, reader)) => {
                readers.push(reader);
                send(&requests, &socket)?;
            }
            Err(_) => requests.write_all(&[NEW])?,
        }
    }
    for mut reader in readers {
        reader.kill().ok();
    }
    Ok(())
}

/// Starts a reader that uses this socket for requests and answers.
pub(super) fn spawn(mut command: Command, socket: UnixStream) -> io::Result<Child> {
    command.process_group(0).stdin(OwnedFd::from(socket.try_clone()?));
    command.stdout(OwnedFd::from(socket)).stderr(Stdio::null()).spawn()
}

fn send(to: &UnixStream, socket: &UnixStream) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = [socket.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    sendmsg(to, &[IoSlice::new(&[NEW])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_reader_that_cannot_be_started_fails_one_request() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let tries = AtomicUsize::new(0);
        let started = thread::spawn(move || {
            start_for(theirs, || {
                let is_first = tries.fetch_add(1, Ordering::Relaxed) == 0;
                Command::new(if is_first { "/nowhere/reader" } else { "cat" })
            })
        });
        let mut starter = Starter::at(ours, None).unwrap();
        assert_eq!(starter.reader().unwrap_err().to_string(), "no reader can be started");
        let mut reader = starter.reader().unwrap();
        reader.write_all(b"x").unwrap();
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        drop(starter);
        started.join().unwrap().unwrap();
    }

    #[test]
    fn the_exit_of_the_starter_is_reported() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut starter = Starter::at(ours, None).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(starter.reader().unwrap_err().to_string(), "the process that starts readers has exited");
    }
}
