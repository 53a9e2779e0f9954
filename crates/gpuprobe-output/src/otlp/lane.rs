//! The queue of one signal, and the loop that sends it. Metrics and logs have one each: a receiver may take only one of
//! them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::payload::{Payload, Signal};
use super::post::{Outcome, Receiver};
use super::push_counts::{Attempt, Cause, Counts};
use crate::units::printable;

/// The bounds of a queue: an hour of requests every 15 seconds, compressed.
pub(super) const MOST_REQUESTS: usize = 240;
const MOST_BYTES: usize = 16 << 20;
/// The wait after the first failure, which doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What the receiver does with requests, as far as notes on stderr distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Accepting,
    Rejecting,
    Failing,
    Refusing,
}

#[derive(Debug)]
struct Queue {
    /// Oldest first.
    waiting: VecDeque<Payload>,
    bytes: usize,
    /// The oldest is being sent, so it is not dropped: it may arrive.
    is_sending: bool,
    /// Nothing follows, and what cannot be sent now is not sent again.
    is_closed: bool,
    state: State,
}

/// The queue of one signal.
#[derive(Debug)]
pub(super) struct Lane {
    signal: Signal,
    receiver: Arc<Receiver>,
    counts: Arc<Counts>,
    report: fn(&str),
    queue: RefCell<Queue>,
    changed: Notify,
    jitter: RandomState,
}

impl Lane {
    pub(super) fn new(
        signal: Signal,
        receiver: Arc<Receiver>,
        counts: Arc<Counts>,
        report: fn(&str),
    ) -> Self {
        let queue = Queue {
            waiting: VecDeque::new(),
            bytes: 0,
            is_sending: false,
            is_closed: false,
            state: State::Accepting,
        };
        let (queue, changed, jitter) = (RefCell::new(queue), Notify::new(), RandomState::new());
        Self { signal, receiver, counts, report, queue, changed, jitter }
    }

    /// Adds a request. Drops the oldest ones if there are too many.
    pub(super) fn push(&self, payload: Payload) {
        let mut queue = self.queue.borrow_mut();
        queue.bytes += payload.body.len();
        queue.waiting.push_back(payload);
        self.trim(&mut queue);
        self.changed.notify_one();
    }

    /// Ends [`Lane::run`] as soon as everything was tried once more.
    pub(super) fn close(&self) {
        self.queue.borrow_mut().is_closed = true;
        self.changed.notify_one();
    }

    /// Data points or log records that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.queue.borrow().waiting.iter().map(|payload| payload.items).sum()
    }

    fn trim(&self, queue: &mut Queue) {
        let oldest = usize::from(queue.is_sending);
        while queue.waiting.len() > oldest + 1
            && (queue.waiting.len() > MOST_REQUESTS || queue.bytes > MOST_BYTES)
        {
            let Some(dropped) = queue.waiting.remove(oldest) else { break };
            queue.bytes -= dropped.body.len();
            self.counts.dropped(self.signal, Cause::Queue, dropped.items);
        }
        self.counts.set_waiting(self.signal, queue.waiting.iter().map(|payload| payload.items).sum());
    }

    /// Sends what arrives, oldest first, until the lane is closed.
    pub(super) async fn run(&self) {
        let mut failures = 0_u32;
        loop {
            let Some(payload) = self.oldest() else {
                if self.queue.borrow().is_closed {
                    return;
                }
                self.changed.notified().await;
                continue;
            };
            let outcome = self.receiver.post(&payload).await;
            match self.settle(&payload, outcome) {
                None => failures = 0,
                Some(_) if self.queue.borrow().is_closed => return,
                Some(after) => {
                    let wait = after.unwrap_or_else(|| self.backoff(failures));
                    failures = failures.saturating_add(1);
                    self.pause(wait).await;
                }
            }
        }
    }

    /// Waits, unless the lane is closed meanwhile.
    async fn pause(&self, wait: Duration) {
        let closed = async {
            while !self.queue.borrow().is_closed {
                self.changed.notified().await;
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = closed => {}
        }
    }

    /// Half of the time that doubles with each failure, and a random part of the other half, so that many hosts do not
    /// send at the same time.
    fn backoff(&self, failures: u32) -> Duration {
        let most = FIRST_WAIT.saturating_mul(1 << failures.min(6)).min(LONGEST_WAIT);
        // the numbers of a hasher with a random key are random enough
        let part = self.jitter.hash_one(failures) % 1000;
        most / 2 + (most / 2) * u32::try_from(part).unwrap_or(0) / 1000
    }

    fn oldest(&self) -> Option<Payload> {
        let mut queue = self.queue.borrow_mut();
        let oldest = queue.waiting.front().cloned();
        queue.is_sending = oldest.is_some();
        oldest
    }

    /// Counts the result of an attempt. `Some` if the request stays in the queue: the wait that the receiver asked for.
    fn settle(&self, payload: &Payload, outcome: Outcome) -> Option<Option<Duration>> {
        let Payload { signal, items, .. } = *payload;
        let mut queue = self.queue.borrow_mut();
        queue.is_sending = false;
        let (attempt, state, why, again) = match outcome {
            Outcome::Accepted(partial) => {
                let rejected = partial.rejected.min(items);
                self.counts.dropped(signal, Cause::Rejected, rejected);
                self.counts.delivered(signal, items - rejected);
                let state = if rejected > 0 { State::Rejecting } else { State::Accepting };
                (Attempt::Accepted, state, partial.message, None)
            }
            Outcome::Refused(why) => {
                self.counts.dropped(signal, Cause::Refused, items);
                (Attempt::Refused, State::Refusing, why, None)
            }
            Outcome::Later { attempt, after, why } => (attempt, State::Failing, why, Some(after)),
        };
        self.counts.attempted(signal, attempt);
        if again.is_none()
            && let Some(done) = queue.waiting.pop_front()
        {
            queue.bytes -= done.body.len();
        }
        self.trim(&mut queue);
        let before = std::mem::replace(&mut queue.state, state);
        drop(queue);
        if before != state {
            self.note(state, &why);
        }
        again
    }

    fn note(&self, state: State, why: &str) {
        let (signal, name) = (self.signal.as_str(), self.receiver.name());
        let (what, after) = match state {
            State::Accepting => ("takes", ""),
            State::Rejecting => ("rejects a part of", ": they are counted as dropped"),
            State::Failing => ("does not take", ": they are sent again"),
            State::Refusing => ("refuses", ": they are dropped"),
        };
        let why = if why.is_empty() { String::new() } else { format!(": {}", printable(why)) };
        (self.report)(&format!("the OTLP receiver {name} {what} {signal}{why}{after}"));
    }
}
