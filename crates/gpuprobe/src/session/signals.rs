//! Signals through a signalfd that is polled, so that no code runs in signal handlers.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A received signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// Sent by a process, not by the terminal: the terminal also sends its signals to our children.
    pub(crate) from_process: bool,
}

/// The signals that would end gpuprobe, and SIGCHLD.
fn handled_signals() -> SigSet {
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

/// The signals that stop and continue a program on a terminal, and that report a new size of the terminal.
fn terminal_signals() -> SigSet {
    SigSet::from_iter([Signal::SIGTSTP, Signal::SIGCONT, Signal::SIGWINCH])
}

/// Blocks SIGQUIT, which Ctrl-\ sends, before the others: it asks for stacks, and is answered once there is something to
/// show. Other signals still end gpuprobe until then.
pub(crate) fn block_quit() -> Result<()> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGQUIT);
    set.thread_block().context("cannot block SIGQUIT")
}

/// Unblocks the signals in a child process: the mask is inherited, and kept by exec.
pub(crate) fn unblock_signals() -> Result<()> {
    handled_signals().thread_unblock().context("cannot unblock signals")
}

/// The exit status of a process that a signal ended, as shells report it.
pub(crate) fn status_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(1)
}

/// Blocked signals, to be read from a descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks the signals in this thread, and in children until they call [`unblock_signals`].
    pub(crate) fn block() -> Result<Self> {
        Self::of(&handled_signals())
    }

    /// Also receives the signals of a program that covers the terminal.
    pub(crate) fn block_on_terminal() -> Result<Self> {
        Self::of(&handled_signals().iter().chain(terminal_signals().iter()).collect())
    }

    fn of(set: &SigSet) -> Result<Self> {
        set.thread_block().context("cannot block signals")?;
        let fd = SignalFd::with_flags(set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot create a signalfd")?;
        Ok(Self { fd })
    }

    /// Readable when a signal is pending.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The received signals, except SIGCHLD.
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

    /// Whether a signal came that ends gpuprobe, and is not SIGQUIT, which asks for stacks.
    pub(crate) fn must_end(&mut self) -> bool {
        self.take().iter().any(|arrived| ends_session(arrived.signal) && arrived.signal != Signal::SIGQUIT)
    }

    /// The first received signal that ends gpuprobe.
    pub(crate) fn termination_signal(&mut self) -> Option<Signal> {
        self.take().into_iter().map(|arrived| arrived.signal).find(|signal| ends_session(*signal))
    }
}

/// Whether a signal ends gpuprobe. SIGUSR1 and SIGUSR2 are meant for the command that it runs.
pub(crate) fn ends_session(signal: Signal) -> bool {
    let is_of_command = matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2);
    !is_of_command && !terminal_signals().contains(signal)
}

/// Stops this process as Ctrl-Z would, and returns when it is continued. Without a shell that could continue it, Linux
/// ignores the signal, and it returns at once.
pub(crate) fn stop_until_continued() -> Result<()> {
    let stop = SigSet::from_iter([Signal::SIGTSTP]);
    raise(Signal::SIGTSTP).context("cannot stop")?;
    // it was blocked, and is delivered here
    stop.thread_unblock().and_then(|()| stop.thread_block()).context("cannot stop")
}
