//! Walks along submissions and correlated activities at the same time.

use std::collections::VecDeque;

use super::correlated::{CLOCK_ERROR_NS, Correlated};
use super::learned_streams::{Agreement, LearnedStreams};
use crate::executions::submission::Submission;

/// A submission, and whether an execution of it was found.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) submission: Submission,
    pub(super) is_taken: bool,
}

/// A position in the submissions. Correlation ids are assigned during a call. So they have the order of the starts of
/// calls, unless calls of different threads overlap: a submission that was passed by an overlapping one may still
/// follow.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub(super) next: usize,
    /// How much earlier than its submission an execution may seem to start.
    pub(super) clock_error_ns: u64,
    /// Whether an execution on another stream than that of the submission is a misfit. Otherwise it is what fits least:
    /// the handle may belong to another stream now.
    pub(super) is_strict: bool,
    /// Indexes of submissions that were passed, oldest first.
    pub(super) passed: Vec<usize>,
    /// The id of the last execution.
    pub(super) last: Option<u64>,
}

/// What is known about correlation ids.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    /// They count submissions, so that a gap says how many executions are missing.
    pub(super) are_counting: bool,
    /// Executions were lost shortly before.
    pub(super) are_incomplete: bool,
}

/// What walks go along.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'p> {
    pub(super) slots: &'p VecDeque<Slot>,
    pub(super) streams: &'p LearnedStreams,
    pub(super) ids: Ids,
    /// From this time on, some submissions are not known. Walks end there.
    pub(super) hole_ns: u64,
}

impl<'p> Path<'p> {
    /// `None` at the end, or behind a hole.
    fn slot(&self, index: usize) -> Option<&'p Slot> {
        self.slots.get(index).filter(|slot| slot.submission.start_ns < self.hole_ns)
    }
}

/// Why it cannot be said which submissions have the ids of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// There are fewer submissions.
    TooLong,
    /// Some of them may not have executed anything.
    Uncertain,
}

/// How far executions and submissions fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// Executions that fitted.
    pub(super) length: usize,
    /// Whether it was not a misfit that ended it.
    pub(super) is_whole: bool,
    /// Submissions without executions between them.
    pub(super) skipped: usize,
    /// The index of the submission that would be next.
    pub(super) end: usize,
}

impl Walk {
    /// Calls that overlap one call and are tried in its place.
    const MOST_OVERLAPPING: usize = 16;

    pub(super) fn at(next: usize) -> Self {
        Self { next, clock_error_ns: CLOCK_ERROR_NS, is_strict: false, passed: Vec::new(), last: None }
    }

    /// The walk after the executions of so many submissions were lost.
    fn after_lost(&self, path: Path<'_>, count: u64) -> Result<Self, Gap> {
        let slots = path.slots;
        let ahead = slots.range(self.next.min(slots.len())..).enumerate().filter(|(_, slot)| !slot.is_taken);
        let untaken = self.passed.iter().copied().chain(ahead.map(|(at, _)| self.next + at));
        let skipped: Vec<usize> = untaken.take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
        if (skipped.len() as u64) < count || skipped.last().is_some_and(|last| path.slot(*last).is_none()) {
            return Err(Gap::TooLong);
        }
        let surely_executes =
            |index: &usize| slots.get(*index).is_some_and(|slot| slot.submission.surely_executes());
        if !skipped.iter().all(surely_executes) {
            return Err(Gap::Uncertain);
        }
        let next = skipped.last().map_or(self.next, |last| self.next.max(last + 1));
        let passed = self.passed.iter().copied().filter(|index| !skipped.contains(index)).collect();
        Ok(Self { next, passed, ..*self })
    }

    /// The walk at this execution, behind the submissions of those that are missing before it.
    pub(super) fn before(&self, path: Path<'_>, executed: &Correlated) -> Result<Self, Gap> {
        let missing = self.last.and_then(|last| executed.id.checked_sub(last.saturating_add(1)));
        match missing.filter(|missing| path.ids.are_counting && *missing > 0) {
            None => Ok(self.clone()),
            Some(missing) => self.after_lost(path, missing).or_else(|gap| match gap {
                Gap::Uncertain if !path.ids.are_incomplete => Ok(self.clone()),
                gap => Err(gap),
            }),
        }
    }

    /// The index of the submission that comes next and fits. Of calls that overlap, the first one on the stream of
    /// the execution is preferred, then one that is known to launch this CUDA kernel to an earlier one that may.
    pub(super) fn step(&mut self, path: Path<'_>, executed: &Correlated) -> Option<usize> {
        let slots = path.slots;
        let mut walk = self.before(path, executed).ok()?;
        while slots.get(walk.next).is_some_and(|slot| slot.is_taken) {
            walk.next += 1;
        }
        let mut best: Option<((Agreement, bool), usize)> = None;
        for index in walk.passed.iter().copied().chain(walk.next..walk.next + Self::MOST_OVERLAPPING) {
            let Some(slot) = path.slot(index) else { break };
            if index > walk.next && !walk.may_pass(slots, slot, index) {
                break;
            }
            if slot.is_taken || !executed.fits(&slot.submission, walk.clock_error_ns) {
                continue;
            }
            let agreement = path.streams.agreement(&slot.submission, executed);
            if walk.is_strict && agreement == Agreement::Differs {
                continue;
            }
            let rank = (agreement, slot.submission.is_named());
            if best.is_none_or(|(known, _)| rank > known) {
                best = Some((rank, index));
            }
            // streams keep their order
            if agreement == Agreement::Agrees {
                break;
            }
        }
        let index = best.map(|(_, index)| index);
        index.into_iter().for_each(|index| walk.take(slots, index));
        walk.last = Some(executed.id);
        *self = walk;
        index
    }

    /// Whether all submissions before this one overlap it.
    fn may_pass(&self, slots: &VecDeque<Slot>, taken: &Slot, index: usize) -> bool {
        slots.range(self.next..index).all(|slot| slot.is_taken || overlaps(slot, taken))
    }

    fn take(&mut self, slots: &VecDeque<Slot>, index: usize) {
        if index < self.next {
            self.passed.retain(|passed| *passed != index);
            return;
        }
        self.passed.extend(self.next..index);
        // their correlation ids would be less than that of a call that began after their end
        let taken = slots.get(index);
        let may_follow = |passed: &usize| slots.get(*passed).zip(taken).is_some_and(|(a, b)| overlaps(a, b));
        self.passed.retain(may_follow);
        self.next = index + 1;
    }

    /// How many of these, at most `most`, fit the submissions one after the other, if so many submissions without
    /// executions may be between them.
    pub(super) fn run(mut self, path: Path<'_>, executed: &[Correlated], most: usize, skips: usize) -> Reach {
        let mut skipped = 0;
        for (length, one) in executed.iter().take(most).enumerate() {
            while self.step(path, one).is_none() {
                let is_whole = path.slot(self.next).is_none();
                if is_whole || length == 0 || skipped == skips {
                    return Reach { length, is_whole, skipped, end: self.next };
                }
                skipped += 1;
                self.next += 1;
            }
        }
        Reach { length: executed.len().min(most), is_whole: true, skipped, end: self.next }
    }
}

/// Whether a call of another thread had not returned when this one began.
fn overlaps(passed: &Slot, taken: &Slot) -> bool {
    passed.submission.end_ns > taken.submission.start_ns && passed.submission.tid != taken.submission.tid
}
