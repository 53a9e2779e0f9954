//! Counts of requests, and of data points and log records that were delivered or lost.

use std::sync::atomic::{AtomicU64, Ordering};

use gpuprobe_analysis::{Pushed, PushedItems, PushedRequests};

use super::payload::Signal;

/// The result of a request. The values of a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The receiver took it, or most of it.
    Accepted,
    /// The receiver asked to send it again later.
    Busy,
    /// The receiver refused it, so it is not sent again.
    Refused,
    /// There was no answer: no connection, no trust in its certificate, or no answer in time.
    Unreachable,
}

impl Attempt {
    const ALL: [Self; 4] = [Self::Accepted, Self::Busy, Self::Refused, Self::Unreachable];

    fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Busy => "busy",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Why data points or log records were not delivered. The values of a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// They were the oldest in the queue, which was full.
    Queue,
    /// The receiver refused the request.
    Refused,
    /// The receiver took the request without them.
    Rejected,
    /// There were more events than are sent at once.
    Burst,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Queue, Self::Refused, Self::Rejected, Self::Burst];

    fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Burst => "burst",
        }
    }
}

#[derive(Debug, Default)]
struct OfSignal {
    requests: [AtomicU64; Attempt::ALL.len()],
    dropped: [AtomicU64; Cause::ALL.len()],
    delivered: AtomicU64,
    waiting: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Counts([OfSignal; Signal::ALL.len()]);

impl Counts {
    fn of(&self, signal: Signal) -> &OfSignal {
        let [metrics, logs] = &self.0;
        match signal {
            Signal::Metrics => metrics,
            Signal::Logs => logs,
        }
    }

    pub(super) fn attempted(&self, signal: Signal, attempt: Attempt) {
        self.of(signal).requests[attempt as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, signal: Signal, cause: Cause, items: u64) {
        self.of(signal).dropped[cause as usize].fetch_add(items, Ordering::Relaxed);
    }

    pub(super) fn delivered(&self, signal: Signal, items: u64) {
        self.of(signal).delivered.fetch_add(items, Ordering::Relaxed);
    }

    pub(super) fn set_waiting(&self, signal: Signal, items: u64) {
        self.of(signal).waiting.store(items, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Pushed {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let (mut requests, mut dropped, mut delivered, mut waiting) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for signal in Signal::ALL {
            let (of, signal) = (self.of(signal), signal.as_str());
            for attempt in Attempt::ALL {
                let n = get(&of.requests[attempt as usize]);
                requests.push(PushedRequests { signal, result: attempt.as_str(), requests: n });
            }
            for cause in Cause::ALL {
                let items = get(&of.dropped[cause as usize]);
                dropped.push(PushedItems { signal, cause: cause.as_str(), items });
            }
            delivered.push(PushedItems { signal, cause: "", items: get(&of.delivered) });
            waiting.push(PushedItems { signal, cause: "", items: get(&of.waiting) });
        }
        Pushed { requests, dropped, delivered, waiting }
    }
}
