//! Reads pending calls for snapshots. This visits every thread of the host, so its share of the time is bounded.

use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_capture::{Capture, thread_cpu_ns};
use gpuprobe_event::counters::PendingCall;

/// Reading may take this share of one CPU: one part of so many.
const ONE_OF: u32 = 100;

/// The pending calls as they were last read.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    calls: Vec<PendingCall>,
    /// `None` before they were first read.
    due: Option<Instant>,
}

impl PendingCalls {
    /// The pending calls of all threads. On a host with so many threads that a visit takes long, they are not read again
    /// at each snapshot: a call may have returned since, but the age of one that has not is right.
    pub(crate) fn read(&mut self, capture: &Capture) -> Result<&[PendingCall]> {
        let now = Instant::now();
        if self.is_due(now) {
            let before_ns = thread_cpu_ns();
            self.calls = capture.pending_calls()?;
            self.postpone(now, Duration::from_nanos(thread_cpu_ns().saturating_sub(before_ns)));
        }
        Ok(&self.calls)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// The last visit began at `now` and took this CPU time.
    fn postpone(&mut self, now: Instant, taken: Duration) {
        self.due = Some(now + taken.saturating_mul(ONE_OF));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_at_most_a_hundredth_of_the_time() {
        let (mut pending, start) = (PendingCalls::default(), Instant::now());
        assert!(pending.is_due(start), "at the first snapshot");
        for (visit, next) in [(0, 0), (1, 100), (30, 3000)] {
            pending.postpone(start, Duration::from_millis(visit));
            let after = |ms| start + Duration::from_millis(ms);
            assert!(pending.is_due(after(next)), "{visit} ms");
            assert!(next == 0 || !pending.is_due(after(next - 1)), "{visit} ms");
        }
    }
}
