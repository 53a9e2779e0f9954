//! Waiting for a change of a number, which needs no lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What the agent's thread waits for. Its number changes with each wake-up.
pub(crate) static AGENT: Wakeup = Wakeup::new();

/// A number that one thread changes and another one waits for.
#[derive(Debug)]
pub(crate) struct Wakeup(AtomicU32);

impl Wakeup {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, number: u32) {
        self.0.store(number, Ordering::Release);
        self.wake();
    }

    /// Changes the number and wakes the thread that waits.
    pub(crate) fn next(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    fn wake(&self) {
        // SAFETY: the pointer is valid during the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            );
        }
    }

    /// Waits until the number is not the one that was seen, or the time is over.
    pub(crate) fn wait(&self, seen: u32, longest: Duration) {
        let start = Instant::now();
        while self.number() == seen {
            let Some(left) = longest.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                return;
            };
            self.wait_once(seen, left);
        }
    }

    fn wait_once(&self, seen: u32, longest: Duration) {
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // SAFETY: both pointers are valid during the call. Every result means: look again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                seen,
                &raw const time,
            );
        }
    }
}
