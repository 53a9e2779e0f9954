//! The clock of BPF programs, and how it relates to the wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// When a recording began, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch_ns: u64,
    unix: Duration,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        /// One reading of the wall clock may be delayed by another thread or an interrupt.
        const READINGS: usize = 5;
        let read = || {
            let before_ns = monotonic_ns();
            let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let apart_ns = monotonic_ns().saturating_sub(before_ns);
            (apart_ns, Self { epoch_ns: before_ns + apart_ns / 2, unix })
        };
        let quickest = (1..READINGS).map(|_| read()).fold(read(), |a, b| if b.0 < a.0 { b } else { a });
        quickest.1
    }

    /// Unix time of the start, in seconds.
    pub fn start_unix(&self) -> f64 {
        self.unix.as_secs_f64()
    }

    /// The start, on the clock of `bpf_ktime_get_ns`.
    pub fn epoch_ns(&self) -> u64 {
        self.epoch_ns
    }

    /// Nanoseconds since the start.
    pub fn elapsed_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.epoch_ns)
    }

    /// Nanoseconds from the start to a time of `bpf_ktime_get_ns`.
    pub fn since_start(&self, kernel_ns: u64) -> u64 {
        kernel_ns.saturating_sub(self.epoch_ns)
    }
}

/// How far local time is ahead of UTC at this time, in seconds. This asks the C library, which knows the
/// time zone already; a crate such as jiff would add a parser of time zone files for this one number.
pub fn utc_offset_seconds(unix_seconds: f64) -> i32 {
    let time = unix_seconds as libc::time_t;
    // SAFETY: a tm of zeros is a valid one: integers and a pointer that may be null.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid during the call.
    let converted = unsafe { libc::localtime_r(&raw const time, &raw mut local) };
    if converted.is_null() { 0 } else { i32::try_from(local.tm_gmtoff).unwrap_or(0) }
}

/// `CLOCK_MONOTONIC`, which `bpf_ktime_get_ns` returns.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// `CLOCK_BOOTTIME`, on which the Linux kernel keeps the start times of processes.
pub(crate) fn boottime_ns() -> u64 {
    clock_ns(ClockId::Boottime)
}

/// CPU time of this thread.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
