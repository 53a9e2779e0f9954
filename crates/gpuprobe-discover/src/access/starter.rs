//! A process that starts readers for a daemon that may not execute programs any more. It is started before the daemon
//! gives up that right, and does nothing but start readers and hand over the sockets that they are asked through.

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

/// How long a new reader is waited for. Starting one touches no file of others, but needs a CPU.
const START_WITHIN: Duration = Duration::from_secs(20);
/// What asks for a reader, and what comes with its socket, or alone where there can be none now.
const NEW: u8 = b'n';

/// Our end of it.
#[derive(Debug)]
pub(super) struct Starter {
    socket: UnixStream,
    // its end comes with that of the socket
    _child: Option<Child>,
}

impl Starter {
    /// Starts the process, which must call [`start_readers`].
    pub(super) fn new(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        // a Ctrl-C is not meant for it
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Self::at(ours, Some(command.spawn()?))
    }

    fn at(socket: UnixStream, child: Option<Child>) -> io::Result<Self> {
        socket.set_read_timeout(Some(START_WITHIN))?;
        Ok(Self { socket, _child: child })
    }

    /// A new reader: the socket that it answers through.
    pub(super) fn reader(&mut self) -> io::Result<UnixStream> {
        self.socket.write_all(&[NEW])?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut received = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let message = recvmsg(&self.socket, &mut parts, &mut received, RecvFlags::CMSG_CLOEXEC)?;
        let has_ended = message.bytes == 0;
        let mut files = received.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = files.next().and_then(|mut files| files.next());
        let why =
            if has_ended { "the process that starts readers has ended" } else { "no reader can be started" };
        file.map(UnixStream::from).ok_or_else(|| io::Error::other(why))
    }
}

/// Starts a reader by this command, for each request that comes in by standard input, until that ends. Readers end with
/// the sockets that they are asked through; those that hang in a file system then are killed.
pub fn start_readers(command: impl Fn() -> Command) -> io::Result<()> {
    start_for(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?), command)
}

fn start_for(mut requests: UnixStream, command: impl Fn() -> Command) -> io::Result<()> {
    let mut readers: Vec<Child> = Vec::new();
    let mut byte = [0];
    while requests.read(&mut byte)? == 1 {
        readers.retain_mut(|reader| !matches!(reader.try_wait(), Ok(Some(_))));
        let started = UnixStream::pair().and_then(|(ours, theirs)| Ok((ours, spawn(command(), theirs)?)));
        // where there is no room for a process now, there may be some later
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

/// Starts a reader that is asked, and answers, through this socket.
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
    fn a_reader_that_cannot_be_started_is_an_error_for_one_question() {
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
    fn the_end_of_the_process_is_said() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut starter = Starter::at(ours, None).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(starter.reader().unwrap_err().to_string(), "the process that starts readers has ended");
    }
}
