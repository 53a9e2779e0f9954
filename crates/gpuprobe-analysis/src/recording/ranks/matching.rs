//! The same collective on all ranks: the one with the same number in the same communicator.

use std::collections::{HashMap, VecDeque};

use gpuprobe_event::{Event, Outcome, Tgid};

use super::completion::{Completions, Progress, Token};
use crate::recording::collectives::{Collective, CollectiveAccount, Collectives};

/// Collectives of ranks that wait for other ranks or for their end.
const MOST_WAITING: usize = 1 << 17;

/// One collective on the ranks that were observed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matched {
    pub communicator: usize,
    /// Its number in the communicator, from 0.
    pub place: u64,
    pub made: Collective,
    /// The ranks made different collectives.
    pub differs: bool,
    pub arrivals: Vec<Arrival>,
}

/// A rank in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    member: usize,
    pub tgid: Tgid,
    pub rank: Option<u32>,
    /// When its call began.
    pub begin_ns: u64,
    /// When its CUDA kernel began.
    pub ran_ns: Option<u64>,
    /// When it had ended at the latest.
    pub end_ns: Option<u64>,
    /// That is about when it ended.
    pub waited: bool,
}

impl Arrival {
    /// The latest time before which it is known not to have begun.
    pub(super) fn latest_begin_ns(&self) -> u64 {
        self.ran_ns.unwrap_or(self.begin_ns)
    }

    fn progress(&mut self, progress: Progress) {
        match progress {
            Progress::Begun { at_ns } => self.begin_ns = self.begin_ns.max(at_ns),
            Progress::Ended { at_ns, waited } => {
                if self.end_ns.is_none_or(|known| at_ns < known) {
                    (self.end_ns, self.waited) = (Some(at_ns), waited);
                }
            }
            Progress::Ran { start_ns, end_ns } => {
                self.ran_ns = Some(start_ns.max(self.begin_ns));
                (self.end_ns, self.waited) = (Some(end_ns), true);
            }
        }
    }
}

/// Matches the collectives of all ranks. Pids must be those of [`Tgid::of_recording`].
#[derive(Debug, Default)]
pub(super) struct Matcher {
    account: CollectiveAccount,
    completions: Completions,
    waiting: HashMap<(usize, u64), Matched>,
    /// The keys of `waiting`, the oldest first, also of some that are gone.
    order: VecDeque<(usize, u64)>,
    /// Ranks in `waiting`.
    kept: usize,
    /// Collectives for which ranks that were observed were not waited for any longer.
    pub(super) given_up: u64,
    /// The number of the last collective that was taken in.
    last: Option<u64>,
    progress: Vec<(Token, Progress)>,
}

impl Matcher {
    /// Takes in an event and appends collectives of which nothing more will become known.
    pub(super) fn feed(&mut self, event: &Event, out: &mut Vec<Matched>) {
        match event {
            // it is counted when it returns
            Event::Call(call) if call.outcome == Outcome::Begun => return,
            Event::Call(call) => {
                if let Some(made) = self.account.feed_call(call) {
                    let token = Token::of(&made);
                    self.arrive(token, made.made, call.tgid, call.start_ns, out);
                    self.completions.made(call, token);
                }
            }
            _ => self.account.feed(event),
        }
        let mut progress = std::mem::take(&mut self.progress);
        self.completions.feed(event, &mut progress);
        for (token, progress) in progress.drain(..) {
            self.progress(token, progress, out);
        }
        self.progress = progress;
    }

    /// Appends the remaining collectives.
    pub(super) fn finish(&mut self, out: &mut Vec<Matched>) {
        while self.give_up(out) {}
    }

    /// The number in its communicator of the collective that the last event made, from 1; 0 if it made none.
    pub(super) fn take_last(&mut self) -> u64 {
        self.last.take().map_or(0, |place| place.saturating_add(1))
    }

    /// All collectives, by communicator.
    pub(super) fn collectives(&self) -> Collectives {
        self.account.report()
    }

    fn arrive(&mut self, token: Token, made: Collective, tgid: Tgid, begin_ns: u64, out: &mut Vec<Matched>) {
        let key = (token.communicator, token.place);
        let rank = self.account.rank_of(token.communicator, token.member);
        let arrival =
            Arrival { member: token.member, tgid, rank, begin_ns, ran_ns: None, end_ns: None, waited: false };
        let order = &mut self.order;
        let matched = self.waiting.entry(key).or_insert_with(|| {
            order.push_back(key);
            Matched { communicator: key.0, place: key.1, made, differs: false, arrivals: Vec::new() }
        });
        matched.differs |= matched.made != made;
        matched.arrivals.push(arrival);
        self.last = Some(token.place);
        self.kept += 1;
        while self.kept > MOST_WAITING && self.give_up(out) {}
    }

    fn progress(&mut self, token: Token, progress: Progress, out: &mut Vec<Matched>) {
        let key = (token.communicator, token.place);
        let Some(matched) = self.waiting.get_mut(&key) else { return };
        let Some(arrival) = matched.arrivals.iter_mut().find(|of| of.member == token.member) else { return };
        arrival.progress(progress);
        if self.is_complete(key) {
            self.remove(key, out);
        }
    }

    /// Whether all ranks that the communicator was made for have arrived, and their ends are known.
    fn is_complete(&self, key: (usize, u64)) -> bool {
        let Some(matched) = self.waiting.get(&key) else { return false };
        let (size, _) = self.account.size_of(key.0);
        let is_known = |arrival: &Arrival| {
            arrival.ran_ns.is_some()
                || (arrival.end_ns.is_some() && !self.completions.has_executions(arrival.tgid))
        };
        size.is_some_and(|size| matched.arrivals.len() >= size as usize)
            && matched.arrivals.iter().all(is_known)
    }

    /// Removes the oldest one; `false` if there is none.
    fn give_up(&mut self, out: &mut Vec<Matched>) -> bool {
        let Some(oldest) = self.order.pop_front() else { return false };
        let (_, observed) = self.account.size_of(oldest.0);
        let is_partial = self.waiting.get(&oldest).is_some_and(|matched| matched.arrivals.len() < observed);
        self.given_up += u64::from(is_partial);
        self.remove(oldest, out);
        true
    }

    fn remove(&mut self, key: (usize, u64), out: &mut Vec<Matched>) {
        if let Some(matched) = self.waiting.remove(&key) {
            self.kept -= matched.arrivals.len();
            out.push(matched);
        }
        // what is gone would otherwise stay here for as long as the oldest one waits
        if self.order.len() > 2 * self.waiting.len() + 1024 {
            let waiting = &self.waiting;
            self.order.retain(|key| waiting.contains_key(key));
        }
    }
}
