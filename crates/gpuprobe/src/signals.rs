//! Signals as something to poll, so that nothing is done inside a handler.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// Sent by a process, not by the terminal: the terminal sends to our children itself.
    pub(crate) from_process: bool,
}

/// The signals that would end us, and the news about children.
fn held_back() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGCHLD,
    ] {
        set.add(signal);
    }
    set
}

/// Lets them through again in a process started by one that held them back: the mask is inherited, and kept by exec.
pub(crate) fn let_through() -> Result<()> {
    held_back().thread_unblock().context("cannot let signals through")
}

/// The status of what a signal has ended, as a shell says it.
pub(crate) fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(1)
}

/// The signals that would end us, held back until they are looked at.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Holds them back from now on, here and in children until they call [`let_through`].
    pub(crate) fn hold_back() -> Result<Self> {
        let set = held_back();
        set.thread_block().context("cannot hold signals back")?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot make a signalfd")?;
        Ok(Self { fd })
    }

    /// Readable when a signal has come.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The signals that came, except the news about children.
    pub(crate) fn take(&mut self) -> Vec<Arrived> {
        const SENT_BY_THE_KERNEL: i32 = 0x80;
        let mut arrived = Vec::new();
        while let Ok(Some(info)) = self.fd.read_signal() {
            let number = i32::try_from(info.ssi_signo).unwrap_or(0);
            if let Ok(signal) = Signal::try_from(number)
                && signal != Signal::SIGCHLD
            {
                arrived.push(Arrived { signal, from_process: info.ssi_code != SENT_BY_THE_KERNEL });
            }
        }
        arrived
    }

    /// The first that came to end us. Those that people may define are for commands that we run.
    pub(crate) fn told_to_end(&mut self) -> Option<Signal> {
        let signals = self.take().into_iter().map(|arrived| arrived.signal);
        signals.into_iter().find(|signal| !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2))
    }
}
