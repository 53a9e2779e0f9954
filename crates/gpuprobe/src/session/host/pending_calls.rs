//! Reads pending calls for snapshots. This visits every thread of the host, so its share of the time is bounded.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_capture::{Capture, ThreadIterator, ThreadSampler, thread_cpu_ns};
use gpuprobe_event::Tid;
use gpuprobe_event::counters::{PendingCall, UnprobedReturn};

/// Reading may take this share of one CPU: one part of so many.
const ONE_OF: u32 = 100;
/// A call of this age is not expected to return before calls are read again.
const LONG_NS: u64 = 1_000_000_000;

/// The pending calls as they were last read.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    calls: Vec<PendingCall>,
    /// When that was, since the start of the observation.
    read_ns: u64,
    /// `None` before they were first read.
    due: Option<Instant>,
    /// Looks at the stacks of threads that may be in a launch whose return is not probed.
    sampler: Option<ThreadSampler>,
    /// Launches that have returned according to the stack, and when they began.
    returned: HashSet<(UnprobedReturn, u64)>,
}

impl PendingCalls {
    /// Without an iterator, launches whose return is not probed are not shown.
    pub(crate) fn new(iterator: Option<ThreadIterator>) -> Self {
        Self { sampler: iterator.map(ThreadSampler::of), ..Self::default() }
    }

    /// The pending calls of all threads. On a host with so many threads that a visit takes long, they are not read again
    /// at each snapshot: only long calls are reported then. One of them may have returned since, but the age of one that
    /// has not is right.
    pub(crate) fn read(&mut self, capture: &Capture) -> Result<&[PendingCall]> {
        let now = Instant::now();
        if self.is_due(now) {
            let before_ns = thread_cpu_ns();
            self.read_ns = capture.clock().elapsed_ns();
            self.calls = capture.pending_calls()?;
            self.remove_returned()?;
            self.postpone(now, Duration::from_nanos(thread_cpu_ns().saturating_sub(before_ns)));
        } else {
            self.calls.retain(|call| call.start_ns.saturating_add(LONG_NS) <= self.read_ns);
        }
        Ok(&self.calls)
    }

    /// Keeps launches whose return is not probed only if they are on the stack of their thread.
    fn remove_returned(&mut self) -> Result<()> {
        let mut unclear: HashMap<Tid, (UnprobedReturn, u64)> = HashMap::new();
        let mut processes = Vec::new();
        for call in &self.calls {
            let key = call.unprobed.map(|unprobed| (unprobed, call.start_ns));
            if let Some(key) = key.filter(|key| !self.returned.contains(key)) {
                unclear.insert(key.0.tid, key);
                processes.push(call.process.tgid);
            }
        }
        let known: HashSet<_> =
            self.calls.iter().filter_map(|call| Some((call.unprobed?, call.start_ns))).collect();
        self.returned.retain(|key| known.contains(key));
        let mut open = HashSet::new();
        if let Some(sampler) = self.sampler.as_mut().filter(|_| !unclear.is_empty()) {
            processes.dedup();
            sampler.sample(&processes)?;
            for thread in sampler.finish().into_iter().flat_map(|process| process.threads) {
                let (Some(key), Some(sample)) = (unclear.get(&thread.tid), thread.samples.last()) else {
                    continue;
                };
                // a launch of the CUDA driver may be inside one of the CUDA runtime
                if thread.return_slots.contains(&key.0.slot) {
                    open.insert(*key);
                } else if !sample.stack.is_torn {
                    self.returned.insert(*key);
                }
            }
        }
        self.calls
            .retain(|call| call.unprobed.is_none_or(|unprobed| open.contains(&(unprobed, call.start_ns))));
        Ok(())
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
