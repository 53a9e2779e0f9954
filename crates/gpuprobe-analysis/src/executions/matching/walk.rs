//! Walks along submissions and correlated activities at the same time.

use std::collections::VecDeque;

use super::correlated::{CLOCK_ERROR_NS, Correlated};
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
    /// Indexes of submissions that were passed, oldest first.
    pub(super) passed: Vec<usize>,
}

impl Walk {
    /// Calls that overlap one call and are tried in its place.
    const MOST_OVERLAPPING: usize = 4;

    pub(super) fn at(next: usize) -> Self {
        Self { next, clock_error_ns: CLOCK_ERROR_NS, passed: Vec::new() }
    }

    /// The index of the submission that comes next and fits. Of calls that overlap, one that is known to launch this CUDA
    /// kernel is preferred to an earlier one that may.
    pub(super) fn step(&mut self, slots: &VecDeque<Slot>, executed: &Correlated) -> Option<usize> {
        while slots.get(self.next).is_some_and(|slot| slot.is_taken) {
            self.next += 1;
        }
        let mut unsure = None;
        for index in self.passed.iter().copied().chain(self.next..self.next + Self::MOST_OVERLAPPING) {
            let Some(slot) = slots.get(index) else { break };
            if slot.is_taken || !executed.fits(&slot.submission, self.clock_error_ns) {
                continue;
            }
            if index > self.next && !self.may_pass(slots, slot, index) {
                break;
            }
            if slot.submission.is_named() {
                return Some(self.take(slots, index));
            }
            unsure = unsure.or(Some(index));
        }
        unsure.map(|index| self.take(slots, index))
    }

    /// Whether all submissions before this one overlap it.
    fn may_pass(&self, slots: &VecDeque<Slot>, taken: &Slot, index: usize) -> bool {
        slots.range(self.next..index).all(|slot| slot.is_taken || overlaps(slot, taken))
    }

    fn take(&mut self, slots: &VecDeque<Slot>, index: usize) -> usize {
        if index < self.next {
            self.passed.retain(|passed| *passed != index);
            return index;
        }
        self.passed.extend(self.next..index);
        // their correlation ids would be less than that of a call that began after their end
        let taken = slots.get(index);
        let may_follow = |passed: &usize| slots.get(*passed).zip(taken).is_some_and(|(a, b)| overlaps(a, b));
        self.passed.retain(may_follow);
        self.next = index + 1;
        index
    }

    /// How many of these, at most `most`, fit the submissions one after the other, if so many submissions without
    /// executions may be between them. `true` if it was not a misfit that ended it.
    pub(super) fn run(
        mut self,
        slots: &VecDeque<Slot>,
        executed: &[Correlated],
        most: usize,
        mut skips: usize,
    ) -> (usize, bool) {
        for (count, one) in executed.iter().take(most).enumerate() {
            while self.step(slots, one).is_none() {
                if self.next >= slots.len() {
                    return (count, true);
                }
                if count == 0 || skips == 0 {
                    return (count, false);
                }
                skips -= 1;
                self.next += 1;
            }
        }
        (executed.len().min(most), true)
    }
}

/// Whether a call of another thread had not returned when this one began.
fn overlaps(passed: &Slot, taken: &Slot) -> bool {
    passed.submission.end_ns > taken.submission.start_ns && passed.submission.tid != taken.submission.tid
}
