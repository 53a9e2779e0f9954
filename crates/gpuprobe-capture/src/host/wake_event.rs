//! Wakes threads that poll a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Readable from when it is set until it is reset.
#[derive(Debug)]
pub(crate) struct WakeEvent(OwnedFd);

impl WakeEvent {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn set(&self) {
        // it is set already if there is no room for another one
        let _written = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        // it is not set if there is nothing to read
        let _read = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for WakeEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(event: &WakeEvent) -> bool {
        poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn it_is_readable_until_it_is_reset_however_often_it_was_set() {
        let event = WakeEvent::new().unwrap();
        event.reset();
        assert!(!is_readable(&event));
        event.set();
        event.set();
        assert!(is_readable(&event) && is_readable(&event));
        event.reset();
        assert!(!is_readable(&event));
    }
}
