//! Finds the call that submitted each execution.
//!
//! CUPTI gives executions correlation ids, which ascend in the order of the submitting calls, but does not say which
//! call an id belongs to. So the ids of a process and its submissions, both in their order, are matched one to one. An
//! execution must fit its submission: it does not start before it, and has its name, grid or bytes as far as they are
//! known. Of calls that overlap, the one on the stream of the execution is taken. Where the sequences do not fit because
//! some submissions execute nothing, the nearest position is searched from which on they fit again.
//!
//! After a loss a wrong position may fit as well as the right one. If the ids of a process count its submissions, they
//! say how many are missing. Otherwise a position must be the only one that fits. What fits nowhere is unmatched.

mod correlated;
mod holes;
mod learned_streams;
mod position_search;
mod walk;

use std::collections::{BTreeMap, VecDeque};

use gpuprobe_event::Tid;

use self::correlated::CLOCK_ERROR_NS;
pub use self::correlated::{Correlated, direction};
use self::holes::Holes;
use self::learned_streams::LearnedStreams;
use self::walk::{Ids, Path, Slot, Walk};
use crate::executions::submission::Submission;

/// The submission of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub call: u64,
    pub tid: Tid,
    pub start_ns: u64,
}

/// How certain the position in the submissions is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Known,
    /// Collection began during the calls up to this time, which may or may not be recorded.
    Begun {
        until_ns: u64,
    },
    /// Executions were lost, or submissions.
    Lost {
        executions: bool,
        submissions: bool,
    },
}

/// Matches the executions of one process. Its memory is bounded.
#[derive(Debug)]
pub struct Matcher {
    /// By their starts.
    slots: VecDeque<Slot>,
    walk: Walk,
    position: Position,
    /// Submissions before this time, or after the second one, have no executions.
    collecting: (u64, u64),
    /// The submissions of recent correlation ids: executions of one id may arrive in several parts, or late.
    recent: BTreeMap<u64, Option<Found>>,
    last: Option<u64>,
    /// What matches have shown about streams.
    streams: LearnedStreams,
    ids: Ids,
    /// So many ids followed each other without a gap.
    in_a_row: u32,
    /// Where submissions were lost.
    holes: Holes,
    /// Executions before this time were lost.
    incomplete_ns: u64,
    /// Executions until the next search for a position, after one that failed.
    pause: usize,
    /// How long the next pause is.
    next_pause: usize,
    most: usize,
}

impl Default for Matcher {
    fn default() -> Self {
        Self {
            slots: VecDeque::new(),
            walk: Walk::at(0),
            position: Position::Known,
            collecting: (0, u64::MAX),
            recent: BTreeMap::new(),
            last: None,
            streams: LearnedStreams::default(),
            ids: Ids::default(),
            in_a_row: 0,
            holes: Holes::default(),
            incomplete_ns: 0,
            pause: 0,
            next_pause: Self::FIRST_PAUSE,
            most: Self::MOST_BEFORE,
        }
    }
}

impl Matcher {
    /// Submissions that wait for their executions, and those that are kept for late ones.
    const MOST_SUBMISSIONS: usize = 1 << 19;
    /// The same before it is known that executions are collected: the report of it may arrive after some of them.
    const MOST_BEFORE: usize = 1 << 12;
    const MOST_PASSED: usize = 1 << 12;
    const MOST_RECENT: usize = 1 << 14;
    /// Submissions, or executions, that are skipped at most.
    const FAR: usize = 8192;
    /// Executions that are looked at to decide between positions that fit.
    pub(super) const AHEAD: usize = 1024;
    /// So many ids without a gap show that ids count submissions.
    const COUNTING: u32 = 64;
    /// After a search in vain, so many executions are unmatched before the next one.
    const FIRST_PAUSE: usize = 64;
    const LONGEST_PAUSE: usize = 4096;

    /// Takes in a submission. They come roughly in the order of their returns.
    pub fn submitted(&mut self, submission: Submission) {
        let (from_ns, to_ns) = self.collecting;
        if submission.start_ns < from_ns || submission.start_ns > to_ns || self.holes.contain(&submission) {
            return;
        }
        if self.slots.len() >= self.most {
            if self.walk.next == 0 && self.slots.front().is_some_and(|slot| !slot.is_taken) {
                self.lose(false, true);
            }
            self.forget(1);
        }
        let at = self.slots.partition_point(|slot| slot.submission.start_ns <= submission.start_ns);
        if at < self.walk.next {
            self.walk.next += 1;
        }
        self.walk.passed.iter_mut().filter(|index| **index >= at).for_each(|index| *index += 1);
        self.slots.insert(at, Slot { submission, is_taken: false });
    }

    /// Executions are collected, although [`Matcher::began`] is called later: submissions wait for them.
    pub fn expect_executions(&mut self) {
        self.most = Self::MOST_SUBMISSIONS;
    }

    /// Collection began between these times: earlier submissions have no executions.
    pub fn began(&mut self, begin_ns: u64, end_ns: u64) {
        self.collecting = (begin_ns, u64::MAX);
        let before = self.slots.partition_point(|slot| slot.submission.start_ns < begin_ns);
        self.slots.drain(..before);
        self.walk = Walk::at(0);
        self.position = Position::Begun { until_ns: end_ns };
        self.holes.forget_before(begin_ns);
        self.pause = 0;
        self.expect_executions();
    }

    /// Collection ended: later submissions have no executions.
    pub fn ended(&mut self, end_ns: u64) {
        self.collecting.1 = end_ns;
        let before = self.slots.partition_point(|slot| slot.submission.start_ns <= end_ns);
        self.slots.truncate(before);
    }

    /// Some executions before this time were lost.
    pub fn lost_executions(&mut self, until_ns: u64) {
        self.ids.are_incomplete = true;
        self.incomplete_ns = until_ns;
    }

    /// Some submissions that were made between these times were lost.
    pub fn lost_submissions(&mut self, from_ns: u64, to_ns: u64) {
        self.holes.add(from_ns, to_ns);
        let rest = self.slots.split_off(self.walk.next.min(self.slots.len()));
        let kept = rest.into_iter().filter(|slot| !self.holes.contain(&slot.submission));
        self.slots.extend(kept);
    }

    /// Goes on behind a hole, if everything before it was passed. The position there is not known.
    fn pass_holes(&mut self) {
        while self
            .slots
            .get(self.walk.next)
            .is_some_and(|slot| slot.submission.start_ns >= self.holes.first_ns())
        {
            self.holes.remove_first();
            self.walk.passed.clear();
            self.lose(false, true);
        }
    }

    fn lose(&mut self, executions: bool, submissions: bool) {
        let (known_executions, known_submissions) = match self.position {
            Position::Lost { executions, submissions } => (executions, submissions),
            _ => (false, false),
        };
        self.position = Position::Lost {
            executions: executions || known_executions,
            submissions: submissions || known_submissions,
        };
        self.pause = 0;
    }

    /// Matches executions, which are sorted by correlation id. The submissions of the first `count` are wanted; the
    /// others show whether a position is right.
    pub fn matched(&mut self, executed: &[Correlated], count: usize) -> Vec<Option<Found>> {
        let count = count.min(executed.len());
        let mut found = Vec::with_capacity(count);
        while let Some(one) = executed.get(found.len()).filter(|_| found.len() < count) {
            if let Some(known) = self.recent.get(&one.id) {
                found.push(*known);
                continue;
            }
            if self.last.is_some_and(|last| one.id < last) {
                let late = self.late(one);
                self.remember(one.id, late);
                found.push(late);
                continue;
            }
            let rest = executed.get(found.len()..).unwrap_or_default();
            self.count(one);
            self.pass_holes();
            let skipped = self.find_position(rest).min(count - found.len());
            for one in rest.iter().take(skipped) {
                self.remember(one.id, None);
            }
            found.resize(found.len() + skipped, None);
            if skipped > 0 {
                continue;
            }
            let path = path(&self.slots, &self.streams, self.ids, &self.holes);
            let submission = self.walk.step(path, one).and_then(|index| self.take(index, one));
            self.remember(one.id, submission);
            found.push(submission);
        }
        self.forget(self.walk.next.saturating_sub(Self::MOST_PASSED));
        found
    }

    /// Follows the ids. Between two that follow each other nothing is missing. A gap may be a loss, and if ids do not
    /// count submissions, it is not known of how many.
    fn count(&mut self, one: &Correlated) {
        let missing = self.last.and_then(|last| one.id.checked_sub(last.saturating_add(1)));
        self.in_a_row = if missing == Some(0) { (self.in_a_row + 1).min(Self::COUNTING) } else { 0 };
        self.ids.are_counting |= self.in_a_row >= Self::COUNTING;
        let is_uncertain = match self.position {
            Position::Known => !self.ids.are_counting,
            Position::Begun { .. } => true,
            Position::Lost { .. } => false,
        };
        if self.ids.are_incomplete && self.in_a_row == 0 && is_uncertain {
            self.lose(true, false);
        }
        let is_behind = one.start_ns().is_some_and(|start_ns| start_ns > self.incomplete_ns);
        self.ids.are_incomplete &= !is_behind || self.in_a_row < Self::COUNTING;
    }

    fn take(&mut self, index: usize, executed: &Correlated) -> Option<Found> {
        let slot = self.slots.get_mut(index)?;
        self.streams.learn(&slot.submission, executed);
        slot.is_taken = true;
        let Submission { call, tid, start_ns, .. } = slot.submission;
        Some(Found { call, tid, start_ns })
    }

    /// An execution that arrived after others with higher ids: its submission is between those of its neighbours.
    fn late(&mut self, one: &Correlated) -> Option<Found> {
        let after = |found: Option<&Found>| found.map_or(0, |found| found.start_ns);
        let from_ns = after(self.recent.range(..one.id).rev().find_map(|(_, found)| found.as_ref()));
        let next = self.recent.range(one.id..).find_map(|(_, found)| found.as_ref());
        let to_ns = next.map_or(u64::MAX, |found| found.start_ns);
        let from = self.slots.partition_point(|slot| slot.submission.start_ns < from_ns);
        let to = self.slots.partition_point(|slot| slot.submission.start_ns <= to_ns);
        let mut between = (from..to.max(from)).take(Self::FAR);
        let fits = |index: &usize| {
            self.slots
                .get(*index)
                .is_some_and(|slot| !slot.is_taken && one.fits(&slot.submission, CLOCK_ERROR_NS))
        };
        let index = between.find(fits)?;
        self.take(index, one)
    }

    fn remember(&mut self, id: u64, found: Option<Found>) {
        self.last = Some(self.last.map_or(id, |last| last.max(id)));
        self.recent.insert(id, found);
        while self.recent.len() > Self::MOST_RECENT {
            self.recent.pop_first();
        }
    }

    /// Forgets the oldest submissions.
    fn forget(&mut self, count: usize) {
        for _ in 0..count.min(self.slots.len()) {
            self.slots.pop_front();
            self.walk.next = self.walk.next.saturating_sub(1);
            self.walk.passed.retain(|index| *index > 0);
            self.walk.passed.iter_mut().for_each(|index| *index -= 1);
        }
    }
}

fn path<'p>(slots: &'p VecDeque<Slot>, streams: &'p LearnedStreams, ids: Ids, holes: &Holes) -> Path<'p> {
    Path { slots, streams, ids, hole_ns: holes.first_ns() }
}

#[cfg(test)]
mod tests;
