//! Whether a call returns while its thread is sampled: a hardware breakpoint on the return address, for this thread only.
//! Nothing is written into the process and no signal is sent; the Linux kernel counts the first time that the thread comes
//! there, and then switches the breakpoint off.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

use gpuprobe_event::Tid;

const TYPE_BREAKPOINT: u32 = 5;
const AT_EXECUTION: u32 = 4;
/// What the Linux kernel requires for breakpoints at execution: the size of a `long`.
const LENGTH: u64 = 8;
/// Begins disabled, and counts only in user mode.
const FLAGS: u64 = 1 | 1 << 5 | 1 << 6;
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// The attributes of a perf event, in the form that has breakpoints (`PERF_ATTR_SIZE_VER1`).
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    address: u64,
    length: u64,
}

/// A breakpoint of one thread. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct ReturnWatch(File);

impl ReturnWatch {
    /// Sets it. Fails where the machine has no breakpoints, or all are in use.
    pub(crate) fn set(tid: Tid, address: u64) -> io::Result<Self> {
        let attributes = Attributes {
            kind: TYPE_BREAKPOINT,
            size: size_of::<Attributes>() as u32,
            config: 0,
            period: 1,
            sample_type: 0,
            read_format: 0,
            flags: FLAGS,
            wakeup: 0,
            breakpoint_type: AT_EXECUTION,
            address,
            length: LENGTH,
        };
        // SAFETY: the attributes are valid for the call and their size is in them; the other arguments are numbers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(&attributes),
                tid.0.cast_signed(),
                -1,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the Linux kernel has just returned this descriptor, and nothing else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        // SAFETY: an ioctl on this descriptor whose argument is a number: it enables the event for one overflow.
        if unsafe { libc::ioctl(file.as_raw_fd(), REFRESH, 1) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(file))
    }

    /// Whether the thread has come to the return address since; `None` if that cannot be read.
    pub(crate) fn has_returned(&self) -> Option<bool> {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count).ok()?;
        Some(u64::from_ne_bytes(count) > 0)
    }
}

/// `PERF_EVENT_IOC_REFRESH`: `_IO('$', 2)`.
const REFRESH: libc::c_ulong = 0x2402;

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_thread_that_comes_to_the_address_is_seen() {
        let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        // machines without breakpoints, and those that do not permit them, have none
        let Ok(watch) = ReturnWatch::set(tid, here as fn() -> u64 as usize as u64) else { return };
        assert_eq!(watch.has_returned(), Some(false));
        for _ in 0..3 {
            here();
        }
        assert_eq!(watch.has_returned(), Some(true));
    }
}
