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

/// How long a new reader is waited for. Starting one touches no file of others.
const START_WITHIN: Duration = Duration::from_secs(5);
/// What asks for a reader, and what comes with its socket.
const NEW: u8 = b'n';

/// Our end of it.
#[derive(Debug)]
pub(super) struct Starter {
    socket: UnixStream,
    // its end comes with that of the socket
    _child: Child,
}

impl Starter {
    /// Starts the process, which must call [`start_readers`].
    pub(super) fn new(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(START_WITHIN))?;
        // a Ctrl-C is not meant for it
        command.process_group(0).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { socket: ours, _child: command.spawn()? })
    }

    /// A new reader: the socket that it answers through.
    pub(super) fn reader(&mut self) -> io::Result<UnixStream> {
        self.socket.write_all(&[NEW])?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut received = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        recvmsg(&self.socket, &mut parts, &mut received, RecvFlags::CMSG_CLOEXEC)?;
        let mut files = received.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = files.next().and_then(|mut files| files.next());
        file.map(UnixStream::from).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

/// Starts a reader by this command, for each request that comes in by standard input, until that ends. Readers end with
/// the sockets that they are asked through; those that hang in a file system then are killed.
pub fn start_readers(command: impl Fn() -> Command) -> io::Result<()> {
    let mut requests = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut readers: Vec<Child> = Vec::new();
    let mut byte = [0];
    while requests.read(&mut byte)? == 1 {
        readers.retain_mut(|reader| !matches!(reader.try_wait(), Ok(Some(_))));
        let (ours, theirs) = UnixStream::pair()?;
        readers.push(spawn(command(), theirs)?);
        send(&requests, &ours)?;
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
