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
mod streams;
mod walk;

use std::collections::{BTreeMap, VecDeque};

use gpuprobe_event::Tid;

use self::correlated::CLOCK_ERROR_NS;
pub use self::correlated::{Correlated, direction};
use self::streams::Streams;
use self::walk::{Ids, Path, Reach, Slot, Walk};
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
    streams: Streams,
    ids: Ids,
    /// So many ids followed each other without a gap.
    in_a_row: u32,
    /// Executions with ids behind this one were lost.
    lost_after: Option<u64>,
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
            streams: Streams::default(),
            ids: Ids::default(),
            in_a_row: 0,
            lost_after: None,
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
    /// The same for as many executions as are looked at to decide between positions.
    const SKIPS_AHEAD: usize = 64;
    /// Submissions and executions that are skipped together at most.
    const NEAR: usize = 48;
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
        self.lost_after = None;
        self.pause = 0;
        self.most = Self::MOST_SUBMISSIONS;
    }

    /// Collection ended: later submissions have no executions.
    pub fn ended(&mut self, end_ns: u64) {
        self.collecting.1 = end_ns;
        let before = self.slots.partition_point(|slot| slot.submission.start_ns <= end_ns);
        self.slots.truncate(before);
    }

    /// Some executions with ids behind this one were lost, or of any ids.
    pub fn lost_executions(&mut self, after: Option<u64>) {
        self.lost_after = self.lost_after.or(after.or(Some(0)));
    }

    /// Some submissions were lost.
    pub fn lost_submissions(&mut self) {
        self.lose(false, true);
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
            self.count(one.id);
            let skipped = self.find_position(rest).min(count - found.len());
            for one in rest.iter().take(skipped) {
                self.remember(one.id, None);
            }
            found.resize(found.len() + skipped, None);
            if skipped > 0 {
                continue;
            }
            let path = path(&self.slots, &self.streams, self.ids);
            let submission = self.walk.step(path, one).and_then(|index| self.take(index, one));
            self.remember(one.id, submission);
            found.push(submission);
        }
        self.forget(self.walk.next.saturating_sub(Self::MOST_PASSED));
        found
    }

    /// Follows the ids, and notices where something was lost.
    fn count(&mut self, id: u64) {
        let missing = self.last.and_then(|last| id.checked_sub(last.saturating_add(1)));
        self.in_a_row = if missing == Some(0) { self.in_a_row + 1 } else { 0 };
        if self.in_a_row >= Self::COUNTING {
            self.in_a_row = Self::COUNTING;
            self.ids = Ids { are_counting: true, are_incomplete: false };
        }
        if self.lost_after.take_if(|after| id > *after).is_some() {
            self.ids.are_incomplete = true;
            // ids that count submissions say what was lost
            if !self.ids.are_counting || self.position != Position::Known {
                self.lose(true, false);
            }
        }
    }

    /// Brings the walk to a position from which on the executions fit. Returns how many have to be skipped for it.
    fn find_position(&mut self, executed: &[Correlated]) -> usize {
        let Some(first) = executed.first() else { return 0 };
        match self.position {
            Position::Begun { until_ns } => {
                let unsure = self.slots.partition_point(|slot| slot.submission.start_ns <= until_ns);
                let most = unsure.saturating_sub(self.walk.next).min(Self::FAR);
                if let Some(skipped) = self.latest_fit(executed, most) {
                    self.walk = Walk::at(self.walk.next + skipped);
                }
                self.position = Position::Known;
                self.learn_ahead(executed);
            }
            Position::Lost { .. } if self.pause > 0 => {
                self.pause -= 1;
                return 1;
            }
            Position::Lost { executions, submissions } => {
                return match self.only_fit(executed, executions, submissions) {
                    Some((skipped_executions, skipped_submissions)) => {
                        self.walk = Walk::at(self.walk.next + skipped_submissions);
                        self.found_position();
                        skipped_executions
                    }
                    None => {
                        self.pause_searching();
                        1
                    }
                };
            }
            Position::Known => {}
        }
        if self.walk.clone().step(self.path(), first).is_some() {
            self.found_position();
            return 0;
        }
        let is_gap = self.walk.last.is_some_and(|last| first.id > last.saturating_add(1));
        if is_gap && self.ids.are_incomplete {
            self.lose(true, false);
            return self.find_position(executed);
        }
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        let found = [true, false].into_iter().find_map(|is_strict| {
            let nearest = self.nearest_fit(executed, is_strict);
            nearest.or_else(|| self.far_fit(executed, is_strict))
        });
        match found {
            Some((skipped_executions, skipped_submissions)) => {
                let next = self.walk.next + skipped_submissions;
                let mut skipped =
                    self.slots.range(self.walk.next.min(self.slots.len())..next.min(self.slots.len()));
                if skipped.any(|slot| !slot.is_taken && slot.submission.surely_executes()) {
                    (self.ids.are_counting, self.in_a_row) = (false, 0);
                }
                (self.walk.next, self.walk.last) = (next, None);
                skipped_executions
            }
            None => {
                self.pause_searching();
                0
            }
        }
    }

    fn path(&self) -> Path<'_> {
        path(&self.slots, &self.streams, self.ids)
    }

    fn found_position(&mut self) {
        self.position = Position::Known;
        self.pause = 0;
        self.next_pause = Self::FIRST_PAUSE;
    }

    fn pause_searching(&mut self) {
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).min(Self::LONGEST_PAUSE);
    }

    /// Learns the streams of what comes first, so that it can already be matched by them.
    fn learn_ahead(&mut self, executed: &[Correlated]) {
        let (mut walk, mut streams) = (self.walk.clone(), self.streams.clone());
        for one in executed.iter().take(Self::AHEAD) {
            let path = path(&self.slots, &streams, self.ids);
            let index = walk.step(path, one).or_else(|| {
                // a submission that executed nothing
                walk.next += 1;
                walk.step(path, one)
            });
            if let Some(slot) = index.and_then(|index| self.slots.get(index)) {
                streams.learn(&slot.submission, one);
            }
        }
        self.streams = streams;
    }

    /// The executions or submissions to skip after a loss, if executions fit in one way only.
    fn only_fit(
        &self,
        executed: &[Correlated],
        executions: bool,
        submissions: bool,
    ) -> Option<(usize, usize)> {
        let ahead = self.slots.len().saturating_sub(self.walk.next);
        let lost_executions = (0..ahead).map(|skipped| (0, skipped)).filter(|_| executions);
        let lost_submissions = (0..Self::AHEAD).map(|skipped| (skipped, 0)).filter(|_| submissions);
        let mut best: Option<(Reach, (usize, usize))> = None;
        for pair in lost_executions.chain(lost_submissions) {
            let rest = executed.get(pair.0..).unwrap_or_default();
            if rest.len() < Self::ROW {
                continue;
            }
            let walk = Walk { is_strict: true, ..Walk::at(self.walk.next + pair.1) };
            let reach = walk.run(self.path(), rest, Self::AHEAD, Self::SKIPS_AHEAD);
            if !reach.is_whole || reach.length < Self::ROW {
                continue;
            }
            match best {
                // they differ in the first few, where submissions without executions can be
                Some((known, _)) if is_same_way(known, reach) => {
                    best = best.filter(|_| known.skipped <= reach.skipped).or(Some((reach, pair)));
                }
                Some(_) => return None,
                None => best = Some((reach, pair)),
            }
        }
        best.map(|(_, pair)| pair)
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
                (walk.run(self.path(), executed, Self::AHEAD, 0), skipped)
            });
            runs.max_by_key(|(reach, skipped)| (reach.is_whole, reach.length, *skipped))
        };
        // the clocks hardly differ by the time that a launch takes
        let exact = best(0).filter(|(reach, _)| reach.is_whole);
        let found = exact.or_else(|| best(CLOCK_ERROR_NS));
        found.filter(|(reach, _)| reach.length > 0).map(|(_, skipped)| skipped)
    }

    /// The fewest executions and submissions to skip such that a row of executions fits. Submissions without
    /// executions are more frequent than lost submissions.
    fn nearest_fit(&self, executed: &[Correlated], is_strict: bool) -> Option<(usize, usize)> {
        let pairs =
            (1..=Self::NEAR).flat_map(|sum| (0..=sum).map(move |executions| (executions, sum - executions)));
        pairs
            .into_iter()
            .find(|(executions, submissions)| self.is_row(executed, *executions, *submissions, is_strict))
    }

    /// The fewest submissions to skip such that a row of executions fits, if there are very many.
    fn far_fit(&self, executed: &[Correlated], is_strict: bool) -> Option<(usize, usize)> {
        (Self::NEAR..Self::FAR).map(|submissions| (0, submissions)).find(|(executions, submissions)| {
            self.slots.len() > self.walk.next + submissions
                && self.is_row(executed, *executions, *submissions, is_strict)
        })
    }

    fn is_row(
        &self,
        executed: &[Correlated],
        executions: usize,
        submissions: usize,
        is_strict: bool,
    ) -> bool {
        let rest = executed.get(executions..).unwrap_or_default();
        let next = self.walk.next + submissions;
        let walk = Walk { next, is_strict, last: None, ..self.walk.clone() };
        let reach = walk.run(self.path(), rest, Self::ROW, Self::SKIPS);
        reach.is_whole && reach.length > 0
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

/// Whether both have found the same submissions for the last executions.
fn is_same_way(a: Reach, b: Reach) -> bool {
    a.end == b.end && a.length == b.length
}

fn path<'p>(slots: &'p VecDeque<Slot>, streams: &'p Streams, ids: Ids) -> Path<'p> {
    Path { slots, streams, ids }
}

#[cfg(test)]
mod tests;
