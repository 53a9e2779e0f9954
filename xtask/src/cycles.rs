//! Strongly connected components: the sets of nodes of which each leads to every other.

use std::collections::{BTreeMap, BTreeSet};

/// The components of more than one node, each in order. Simple and quadratic: a crate has at most some hundred files.
pub(crate) fn find<N: Ord + Clone>(edges: &BTreeMap<N, BTreeSet<N>>) -> Vec<Vec<N>> {
    let reach: BTreeMap<&N, BTreeSet<&N>> = edges.keys().map(|node| (node, reachable(node, edges))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (&node, there) in &reach {
        if seen.contains(node) {
            continue;
        }
        let both = |other: &&N| reach.get(*other).is_some_and(|back| back.contains(node));
        let members: Vec<N> = there.iter().copied().filter(both).cloned().collect();
        seen.extend(members.iter().cloned());
        if members.len() > 1 {
            found.push(members);
        }
    }
    found
}

fn reachable<'a, N: Ord>(from: &'a N, edges: &'a BTreeMap<N, BTreeSet<N>>) -> BTreeSet<&'a N> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        for next in edges.get(node).into_iter().flatten() {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_of_several_nodes_are_found() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "f"), ("f", "e")];
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry(from).or_default().insert(to);
            graph.entry(to).or_default();
        }
        assert_eq!(find(&graph), [vec!["a", "b", "c"], vec!["e", "f"]]);
    }
}
