//! Searches where in the submissions executions fit.

use super::correlated::{CLOCK_ERROR_NS, Correlated};
use super::walk::{Path, Reach, Walk};
use super::{Matcher, Position, path};

impl Matcher {
    /// So many executions in a row must fit to accept a position.
    const ROW: usize = 16;
    /// The same after a loss, where there is nothing else to go by.
    const CERTAIN_ROW: usize = 256;
    /// Submissions without executions that may be between them.
    const SKIPS: usize = 6;
    /// The same for as many executions as are looked at to decide between positions.
    const SKIPS_AHEAD: usize = 64;
    /// Submissions and executions that are skipped together at most.
    const NEAR: usize = 48;

    /// Brings the walk to a position from which on the executions fit. Returns how many have to be skipped for it.
    pub(super) fn find_position(&mut self, executed: &[Correlated]) -> usize {
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
            Position::Lost { executions, submissions } => {
                return self.find_after_loss(executed, executions, submissions);
            }
            Position::Known => {}
        }
        if self.walk.clone().step(self.path(), first).is_some() {
            self.found_position();
            return 0;
        }
        if self.walk.before(self.path(), first).is_err() {
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

    /// The same after a loss.
    fn find_after_loss(&mut self, executed: &[Correlated], executions: bool, submissions: bool) -> usize {
        let start_ns = executed.first().and_then(Correlated::start_ns);
        // some before this one may be missing, wherever it fits
        if start_ns.is_none_or(|start_ns| start_ns <= self.incomplete_ns) {
            return 1;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return 1;
        }
        match self.only_fit(executed, executions, submissions) {
            Some((skipped_executions, skipped_submissions)) => {
                self.walk = Walk::at(self.walk.next + skipped_submissions);
                self.found_position();
                self.ids.are_incomplete = false;
                skipped_executions
            }
            None => {
                self.pause_searching();
                1
            }
        }
    }

    fn path(&self) -> Path<'_> {
        path(&self.slots, &self.streams, self.ids, &self.holes)
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
            let path = path(&self.slots, &streams, self.ids, &self.holes);
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
            if rest.len() < Self::CERTAIN_ROW {
                continue;
            }
            let walk = Walk { is_strict: true, ..Walk::at(self.walk.next + pair.1) };
            let reach = walk.run(self.path(), rest, Self::AHEAD, Self::SKIPS_AHEAD);
            if !reach.is_whole || reach.length < Self::CERTAIN_ROW {
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
}

/// Whether both have found the same submissions for the last executions.
fn is_same_way(a: Reach, b: Reach) -> bool {
    a.end == b.end && a.length == b.length
}
