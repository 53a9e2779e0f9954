//! Finds the call that submitted each execution.
//!
//! CUPTI gives executions correlation ids, which ascend in the order of the submitting calls, but does not say which
//! call an id belongs to. So the ids of a process and its submissions, both in their order, are matched one to one. An
//! execution must fit its submission: it does not start before it, and has its name, grid or bytes as far as they are
//! known. Where the sequences do not fit, because some submissions execute nothing or because something was lost, the
//! nearest position is searched from which on they fit again. What fits nowhere is unmatched.

mod correlated;
mod walk;

use std::collections::{BTreeMap, VecDeque};

use gpuprobe_event::Tid;

use self::correlated::CLOCK_ERROR_NS;
pub use self::correlated::{Correlated, direction};
use self::walk::{Slot, Walk};
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
    ActivitiesLost,
    SubmissionsLost,
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
            pause: 0,
            next_pause: Self::FIRST_PAUSE,
            most: Self::MOST_BEFORE,
        }
    }
}

impl Matcher {
    /// Submissions that wait for their executions, and those that are kept for late ones.
    const MOST_SUBMISSIONS: usize = 1 << 17;
    /// The same before it is known that executions are collected: the report of it may arrive after some of them.
    const MOST_BEFORE: usize = 1 << 12;
    const MOST_PASSED: usize = 1 << 12;
    const MOST_RECENT: usize = 1 << 14;
    /// So many executions in a row must fit to accept a position.
    const ROW: usize = 16;
    /// Submissions without executions that may be between them.
    const SKIPS: usize = 6;
    /// Submissions and executions that are skipped together at most.
    const NEAR: usize = 48;
    /// Submissions, or executions, that are skipped at most.
    const FAR: usize = 8192;
    /// The same after a loss, where many positions are compared with everything ahead.
    const LOST: usize = 2048;
    /// Executions that are looked at to decide between positions that fit.
    pub(super) const AHEAD: usize = 1024;
    /// After a search in vain, so many executions are unmatched before the next one.
    const FIRST_PAUSE: usize = 64;
    const LONGEST_PAUSE: usize = 4096;

    /// Takes in a submission. They come roughly in the order of their returns.
    pub fn submitted(&mut self, submission: Submission) {
        let (from_ns, to_ns) = self.collecting;
        if submission.start_ns < from_ns || submission.start_ns > to_ns {
            return;
        }
        if self.slots.len() >= self.most {
            self.forget(1);
        }
        let at = self.slots.partition_point(|slot| slot.submission.start_ns <= submission.start_ns);
        if at < self.walk.next {
            self.walk.next += 1;
        }
        self.walk.passed.iter_mut().filter(|index| **index >= at).for_each(|index| *index += 1);
        self.slots.insert(at, Slot { submission, is_taken: false });
    }

    /// Collection began between these times: earlier submissions have no executions.
    pub fn began(&mut self, begin_ns: u64, end_ns: u64) {
        self.collecting = (begin_ns, u64::MAX);
        let before = self.slots.partition_point(|slot| slot.submission.start_ns < begin_ns);
        self.slots.drain(..before);
        self.walk = Walk::at(0);
        self.position = Position::Begun { until_ns: end_ns };
        self.pause = 0;
        self.most = Self::MOST_SUBMISSIONS;
    }

    /// Collection ended: later submissions have no executions.
    pub fn ended(&mut self, end_ns: u64) {
        self.collecting.1 = end_ns;
        let before = self.slots.partition_point(|slot| slot.submission.start_ns <= end_ns);
        self.slots.truncate(before);
    }

    /// Some activities were lost.
    pub fn lost_activities(&mut self) {
        if self.position == Position::Known {
            self.position = Position::ActivitiesLost;
        }
    }

    /// Some submissions were lost.
    pub fn lost_submissions(&mut self) {
        if self.position == Position::Known {
            self.position = Position::SubmissionsLost;
        }
    }

    /// Matches executions, which are sorted by correlation id. The submissions of the first `count` are wanted; the
    /// others show whether a position is right.
    pub fn matched(&mut self, ids: &[u64], executed: &[Correlated], count: usize) -> Vec<Option<Found>> {
        let count = count.min(ids.len()).min(executed.len());
        let mut found = Vec::with_capacity(count);
        while let Some((id, one)) = ids.get(found.len()).zip(executed.get(found.len()))
            && found.len() < count
        {
            if let Some(known) = self.recent.get(id) {
                found.push(*known);
                continue;
            }
            if self.last.is_some_and(|last| *id < last) {
                let late = self.late(*id, one);
                self.remember(*id, late);
                found.push(late);
                continue;
            }
            let rest = executed.get(found.len()..).unwrap_or_default();
            let skipped = self.find_position(rest).min(count - found.len());
            for id in ids.iter().skip(found.len()).take(skipped) {
                self.remember(*id, None);
            }
            found.resize(found.len() + skipped, None);
            if skipped > 0 {
                continue;
            }
            let submission = self.walk.step(&self.slots, one).and_then(|index| self.take(index));
            self.remember(*id, submission);
            found.push(submission);
        }
        self.forget(self.walk.next.saturating_sub(Self::MOST_PASSED));
        found
    }

    /// Brings the walk to a position from which on the executions fit. Returns how many have to be skipped for it.
    fn find_position(&mut self, executed: &[Correlated]) -> usize {
        let Some(first) = executed.first() else { return 0 };
        let position = std::mem::replace(&mut self.position, Position::Known);
        match position {
            Position::Begun { until_ns } => {
                let unsure = self.slots.partition_point(|slot| slot.submission.start_ns <= until_ns);
                let most = unsure.saturating_sub(self.walk.next).min(Self::FAR);
                if let Some(skipped) = self.latest_fit(executed, most) {
                    self.walk = Walk::at(self.walk.next + skipped);
                }
            }
            Position::ActivitiesLost => {
                // if any number of submissions could be skipped, nothing is known
                if let Some(skipped) = self.latest_fit(executed, Self::LOST).filter(|it| *it < Self::LOST) {
                    self.walk = Walk::at(self.walk.next + skipped);
                }
            }
            Position::SubmissionsLost => {
                if let Some(skipped) = self.earliest_fit(executed).filter(|it| *it > 0) {
                    return skipped;
                }
            }
            Position::Known => {}
        }
        if self.walk.clone().step(&self.slots, first).is_some() {
            self.pause = 0;
            self.next_pause = Self::FIRST_PAUSE;
            return 0;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        match self.nearest_fit(executed).or_else(|| self.far_fit(executed)) {
            Some((skipped_executions, skipped_submissions)) => {
                self.walk = Walk::at(self.walk.next + skipped_submissions);
                skipped_executions
            }
            None => {
                self.pause = self.next_pause;
                self.next_pause = (2 * self.next_pause).min(Self::LONGEST_PAUSE);
                0
            }
        }
    }

    /// The fewest executions to skip such that all executions ahead fit. Too early an execution does not fit by time, as
    /// soon as the GPU has caught up with the host once.
    fn earliest_fit(&self, executed: &[Correlated]) -> Option<usize> {
        // the clocks hardly differ by the time that a launch takes
        [0, CLOCK_ERROR_NS].into_iter().find_map(|clock_error_ns| {
            let fits = |skipped: &usize| {
                let walk = Walk { clock_error_ns, ..Walk::at(self.walk.next) };
                walk.run(&self.slots, executed.get(*skipped..).unwrap_or_default(), Self::AHEAD, 0).1
            };
            (0..executed.len().min(Self::LOST)).find(fits)
        })
    }

    /// The most submissions, up to `most`, that can be skipped such that all executions ahead fit. If none fit
    /// all, those with most in a row.
    ///
    /// In a loop of the same CUDA kernel every position fits by name and grid. Too early a submission also fits by
    /// time. Too late a one does not, as soon as the GPU has caught up with the host once.
    fn latest_fit(&self, executed: &[Correlated], most: usize) -> Option<usize> {
        let most = most.min(self.slots.len().saturating_sub(self.walk.next + 1));
        let best = |clock_error_ns| {
            let runs = (0..=most).map(|skipped| {
                let walk = Walk { clock_error_ns, ..Walk::at(self.walk.next + skipped) };
                (walk.run(&self.slots, executed, Self::AHEAD, 0), skipped)
            });
            runs.max_by_key(|((length, is_whole), skipped)| (*is_whole, *length, *skipped))
        };
        // see above
        let exact = best(0).filter(|((_, is_whole), _)| *is_whole);
        let found = exact.or_else(|| best(CLOCK_ERROR_NS));
        found.filter(|((length, _), _)| *length > 0).map(|(_, skipped)| skipped)
    }

    /// The fewest executions and submissions to skip such that a row of executions fits. Submissions without
    /// executions are more frequent than lost submissions.
    fn nearest_fit(&self, executed: &[Correlated]) -> Option<(usize, usize)> {
        let pairs =
            (1..=Self::NEAR).flat_map(|sum| (0..=sum).map(move |executions| (executions, sum - executions)));
        pairs.into_iter().find(|(executions, submissions)| self.is_row(executed, *executions, *submissions))
    }

    /// The fewest submissions to skip such that a row of executions fits, if there are very many.
    fn far_fit(&self, executed: &[Correlated]) -> Option<(usize, usize)> {
        (Self::NEAR..Self::FAR).map(|submissions| (0, submissions)).find(|(executions, submissions)| {
            self.slots.len() > self.walk.next + submissions
                && self.is_row(executed, *executions, *submissions)
        })
    }

    fn is_row(&self, executed: &[Correlated], executions: usize, submissions: usize) -> bool {
        let rest = executed.get(executions..).unwrap_or_default();
        let walk = Walk::at(self.walk.next + submissions);
        let (length, is_whole) = walk.run(&self.slots, rest, Self::ROW, Self::SKIPS);
        is_whole && length > 0
    }

    fn take(&mut self, index: usize) -> Option<Found> {
        let slot = self.slots.get_mut(index)?;
        slot.is_taken = true;
        let Submission { call, tid, start_ns, .. } = slot.submission;
        Some(Found { call, tid, start_ns })
    }

    /// An execution that arrived after others with higher ids: its submission is between those of its neighbours.
    fn late(&mut self, id: u64, one: &Correlated) -> Option<Found> {
        let after = |found: Option<&Found>| found.map_or(0, |found| found.start_ns);
        let from_ns = after(self.recent.range(..id).rev().find_map(|(_, found)| found.as_ref()));
        let next = self.recent.range(id..).find_map(|(_, found)| found.as_ref());
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
        self.take(index)
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

#[cfg(test)]
mod tests;
