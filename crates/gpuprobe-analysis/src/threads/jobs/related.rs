//! Sets of processes that have something in common.

use std::collections::HashMap;

use super::Candidate;

/// Sets of at least two processes, each of which has a value in common with another one of its set. Each list has one
/// value for each process, or none.
pub(super) fn sets<'p>(
    candidates: Vec<Candidate<'p>>,
    values: &[Vec<Option<String>>],
) -> Vec<Vec<Candidate<'p>>> {
    let mut set_of: Vec<usize> = (0..candidates.len()).collect();
    values.iter().for_each(|values| join(&mut set_of, values));
    let mut sets: Vec<Vec<Candidate<'p>>> = candidates.iter().map(|_| Vec::new()).collect();
    for (index, candidate) in candidates.into_iter().enumerate() {
        sets[first_of(&set_of, index)].push(candidate);
    }
    sets.retain(|set| set.len() > 1);
    sets
}

/// Joins the sets of elements that have the same value. An element points to an earlier one of its set, or to itself.
fn join(set_of: &mut [usize], values: &[Option<String>]) {
    let mut with_value: HashMap<&str, usize> = HashMap::new();
    for (index, value) in values.iter().enumerate().take(set_of.len()) {
        let Some(value) = value else { continue };
        let other = *with_value.entry(value).or_insert(index);
        let (a, b) = (first_of(set_of, index), first_of(set_of, other));
        set_of[a.max(b)] = a.min(b);
        // short ways
        set_of[index] = a.min(b);
    }
}

fn first_of(set_of: &[usize], mut index: usize) -> usize {
    while set_of[index] != index {
        index = set_of[index];
    }
    index
}
