//! Times in which submissions were lost.

use std::collections::VecDeque;

use crate::executions::submission::Submission;

/// Intervals, earliest first. A submission of such a time is not used: a lost one may be between any two of them.
#[derive(Debug, Default)]
pub(super) struct Holes {
    intervals: VecDeque<(u64, u64)>,
}

impl Holes {
    /// With more, the last one is extended.
    const MOST: usize = 64;

    pub(super) fn add(&mut self, from_ns: u64, to_ns: u64) {
        let is_full = self.intervals.len() >= Self::MOST;
        match self.intervals.back_mut() {
            Some(last) if is_full || last.1 >= from_ns => last.1 = to_ns,
            _ => self.intervals.push_back((from_ns, to_ns)),
        }
    }

    pub(super) fn contain(&self, submission: &Submission) -> bool {
        let times = [submission.start_ns, submission.end_ns];
        self.intervals.iter().any(|(from_ns, to_ns)| times.iter().any(|at| (from_ns..=to_ns).contains(&at)))
    }

    /// Where the first one begins.
    pub(super) fn first_ns(&self) -> u64 {
        self.intervals.front().map_or(u64::MAX, |(from_ns, _)| *from_ns)
    }

    pub(super) fn remove_first(&mut self) {
        self.intervals.pop_front();
    }

    pub(super) fn forget_before(&mut self, at_ns: u64) {
        self.intervals.retain(|(_, to_ns)| *to_ns > at_ns);
    }
}
