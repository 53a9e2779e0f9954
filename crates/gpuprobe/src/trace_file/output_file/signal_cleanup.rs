//! Removes an incomplete file when a signal ends gpuprobe.
//!
//! The signals are blocked, and a thread waits for them, so that no code runs in a signal handler. Then the thread
//! removes the file and lets the signal end the process, so that its exit status shows the signal.

use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io, thread};

use nix::sys::signal::{SigSet, Signal, raise};

/// A value that is dropped when a signal arrives, unless it was taken before.
#[derive(Debug)]
pub(super) struct DroppedOnSignal<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> DroppedOnSignal<T> {
    /// Makes the value, and what else comes with it, and starts to wait for signals; one that arrives while the value
    /// is being made counts too. No other thread may run yet: it could receive them.
    pub(super) fn make<R>(make: impl FnOnce() -> io::Result<(T, R)>) -> io::Result<(Self, R)> {
        let signals = ending_signals();
        signals.thread_block()?;
        let made = make().and_then(|(value, rest)| Ok((Self::waiting(value, signals)?, rest)));
        if made.is_err() {
            signals.thread_unblock()?;
        }
        made
    }

    fn waiting(value: T, signals: SigSet) -> io::Result<Self> {
        let shared = Arc::new(Mutex::new(Some(value)));
        let dropped = Arc::clone(&shared);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let Ok(signal) = signals.wait() else { return };
            // waits until a file that is being completed has its name
            drop(take(&dropped));
            signals.thread_unblock().and_then(|()| raise(signal)).ok();
        })?;
        Ok(Self(shared))
    }
}

impl<T> DroppedOnSignal<T> {
    /// Does something with the value, during which no signal ends the process. `None` if a signal has arrived.
    pub(super) fn take_with<R>(self, act: impl FnOnce(T) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map(act)
    }
}

impl<T> Drop for DroppedOnSignal<T> {
    fn drop(&mut self) {
        drop(take(&self.0));
    }
}

fn take<T>(shared: &Mutex<Option<T>>) -> Option<T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The signals that users and service managers end a program with, except those that this process was started to
/// ignore, as by `nohup`.
fn ending_signals() -> SigSet {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    let ends = |signal: &Signal| ignored >> (*signal as u32 - 1) & 1 == 0;
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().filter(ends).collect()
}

/// The mask of ignored signals in `/proc/PID/status`; 0 if it is not there.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\tff\n"), 1);
        assert_eq!([ignored(""), ignored("SigIgn:"), ignored("SigIgn:\tx")], [0; 3]);
    }
}
