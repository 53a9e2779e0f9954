//! The sequences of collectives that the ranks of a communicator make. Ranks that agree share one branch, and a rank
//! that makes another collective than the others begins a new one. Only collectives that some rank has still to make
//! are kept, and no more than a bound.

use std::collections::VecDeque;

use super::collective::Collective;

/// Sequences that are distinguished within one communicator.
const MOST_BRANCHES: usize = 8;
/// Collectives that are kept of a branch: a rank that is further behind is not compared.
const MOST_KEPT: usize = 4096;
/// Collectives that are kept although every known rank has made them: a rank may become known later.
const SLACK: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Branch {
    /// The branch that it left.
    pub parent: Option<usize>,
    /// The number of collectives before it.
    pub start: u64,
    /// Its first collective, and the one of its parent in that place.
    pub first: Option<(Collective, Collective)>,
    /// The place of the first collective that is kept.
    base: u64,
    kept: VecDeque<Collective>,
}

impl Branch {
    fn at(&self, place: u64) -> Option<Collective> {
        let index = usize::try_from(place.checked_sub(self.base)?).ok()?;
        self.kept.get(index).copied()
    }

    fn end(&self) -> u64 {
        self.base + self.kept.len() as u64
    }
}

/// What became of a collective that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The rank is on this branch.
    On(usize),
    /// It could not be compared: the collective of the others is not kept any more, or there are too many branches.
    Unchecked,
}

#[derive(Clone, Debug)]
pub(super) struct Sequences {
    pub branches: Vec<Branch>,
}

impl Default for Sequences {
    fn default() -> Self {
        let root = Branch { parent: None, start: 0, first: None, base: 0, kept: VecDeque::new() };
        Self { branches: vec![root] }
    }
}

impl Sequences {
    /// Compares the collective that a rank of a branch makes in a place. `kept` is the number of collectives that all
    /// communicators keep, of which there may be `most`.
    pub(super) fn step(
        &mut self,
        on: usize,
        place: u64,
        made: Collective,
        kept: &mut usize,
        most: usize,
    ) -> Step {
        let Some(branch) = self.branches.get_mut(on) else { return Step::Unchecked };
        if place == branch.end() {
            if branch.kept.len() >= MOST_KEPT || *kept >= most {
                *kept -= usize::from(branch.kept.pop_front().is_some());
                branch.base += 1;
            }
            // a branch may have nothing to give up
            if branch.end() == place {
                branch.kept.push_back(made);
                *kept += 1;
            }
            return Step::On(on);
        }
        match branch.at(place) {
            None => Step::Unchecked,
            Some(other) if other == made => Step::On(on),
            Some(other) => self.leave(on, place, [made, other], kept),
        }
    }

    /// The branch of a rank that makes another collective than its branch.
    fn leave(&mut self, on: usize, place: u64, [made, other]: [Collective; 2], kept: &mut usize) -> Step {
        let is_it = |branch: &Branch| {
            let same_first = branch.first.is_some_and(|(first, _)| first == made);
            branch.parent == Some(on) && branch.start == place && same_first
        };
        if let Some(known) = self.branches.iter().position(is_it) {
            return Step::On(known);
        }
        if self.branches.len() >= MOST_BRANCHES {
            return Step::Unchecked;
        }
        self.branches.push(Branch {
            parent: Some(on),
            start: place,
            first: Some((made, other)),
            base: place,
            kept: VecDeque::from([made]),
        });
        *kept += 1;
        Step::On(self.branches.len() - 1)
    }

    /// Whether a branch keeps so much that [`Self::forget_before`] is worth its time.
    pub(super) fn is_long(&self, branch: usize) -> bool {
        let kept = self.branches.get(branch).map_or(0, |branch| branch.kept.len());
        kept > SLACK && kept.is_multiple_of(SLACK / 4)
    }

    /// Drops what every known rank has made. Returns how many collectives were dropped.
    pub(super) fn forget_before(&mut self, place: u64) -> usize {
        let place = place.saturating_sub(SLACK as u64);
        let mut dropped = 0;
        for branch in &mut self.branches {
            while branch.base < place && branch.kept.pop_front().is_some() {
                branch.base += 1;
                dropped += 1;
            }
        }
        dropped
    }

    /// The branches from the first one to this one.
    pub(super) fn path(&self, branch: usize) -> Vec<usize> {
        let mut path = vec![branch];
        let parent = |of: usize| self.branches.get(of).and_then(|branch| branch.parent);
        // a parent was always there before its children
        while let Some(parent) = path.last().and_then(|last| parent(*last)) {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// The branch of a path that a place is on.
    pub(super) fn branch_at(&self, path: &[usize], place: u64) -> Option<usize> {
        let has_begun = |branch: &&usize| self.branches.get(**branch).is_some_and(|b| b.start <= place);
        path.iter().rfind(has_begun).copied()
    }

    /// The collective in a place of a path, if it is kept.
    pub(super) fn at(&self, path: &[usize], place: u64) -> Option<Collective> {
        self.branches.get(self.branch_at(path, place)?)?.at(place)
    }
}
