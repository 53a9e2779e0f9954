//! Calls by function and by the calls around them. A call is recorded when it returns, so calls inside it come first;
//! they wait until the outermost call has returned.

use std::collections::HashMap;

use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, Tgid, Tid};
use serde::Serialize;

use super::functions::{FunctionRow, FunctionSummary, Observed};

/// Rows of the tree. A recorded trace has fewer; the bound is for forged files.
const MOST_ROWS: usize = 1 << 13;
/// Levels of the tree. Deeper calls are rows of the last level.
const MOST_LEVELS: usize = 4;
/// Inner calls of a thread that wait. If one call contains more, the waiting ones are rows without it.
const MOST_WAITING: usize = 1 << 14;
const MOST_THREADS: usize = 1 << 12;
/// The name of the row for all other functions.
const OTHERS: Name = Name::Borrowed("(others)");

/// The calls of one function, made inside the function of the row above with one level less.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeRow {
    /// 0 for outermost calls.
    pub level: usize,
    #[serde(flatten)]
    pub function: FunctionSummary,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CallTree {
    nodes: Vec<Node>,
    by_name: HashMap<(Option<usize>, Api, Name), usize>,
    waiting: HashMap<(Tgid, Tid), Vec<Waiting>>,
}

#[derive(Clone, Debug)]
struct Node {
    parent: Option<usize>,
    level: usize,
    row: FunctionRow,
}

/// A call that was made inside another.
#[derive(Clone, Debug)]
struct Waiting {
    id: u64,
    parent: Option<u64>,
    api: Api,
    name: Name,
    class: Class,
    observed: Observed,
}

impl CallTree {
    pub(crate) fn feed(&mut self, call: &Call) {
        let thread = (call.tgid, call.tid);
        let one = Waiting {
            id: call.id,
            parent: call.parent,
            api: call.api,
            name: call.name.clone(),
            class: call.class,
            observed: Observed::of(call),
        };
        if call.parent.is_none() {
            let mut calls = self.waiting.remove(&thread).unwrap_or_default();
            calls.push(one);
            return self.settle(calls);
        }
        let is_full = self.waiting.len() >= MOST_THREADS;
        match self.waiting.get_mut(&thread) {
            None if is_full => self.settle(vec![one]),
            None => drop(self.waiting.insert(thread, vec![one])),
            Some(calls) => {
                calls.push(one);
                if calls.len() >= MOST_WAITING {
                    let calls = std::mem::take(calls);
                    self.settle(calls);
                }
            }
        }
    }

    /// Counts calls of one thread.
    fn settle(&mut self, mut calls: Vec<Waiting>) {
        // an outer call has a smaller id
        calls.sort_by_key(|call| call.id);
        let mut at: Vec<(u64, usize)> = Vec::with_capacity(calls.len());
        for call in calls {
            let parent = call.parent.and_then(|parent| {
                at.binary_search_by_key(&parent, |(id, _)| *id).ok().map(|found| at[found].1)
            });
            let node = self.node(parent, &call);
            self.nodes[node].row.add(&call.observed);
            at.push((call.id, node));
        }
    }

    fn node(&mut self, parent: Option<usize>, call: &Waiting) -> usize {
        // at the last level, calls inside a call are rows next to it
        let last = parent.filter(|&parent| self.nodes[parent].level + 1 >= MOST_LEVELS);
        let parent = last.map_or(parent, |last| self.nodes[last].parent);
        let mut key = (parent, call.api, call.name.clone());
        if self.nodes.len() >= MOST_ROWS && !self.by_name.contains_key(&key) {
            key = (None, call.api, OTHERS);
        }
        if let Some(&node) = self.by_name.get(&key) {
            return node;
        }
        let row = FunctionRow::new(call.api, key.2.clone(), call.class);
        let level = key.0.map_or(0, |parent| self.nodes[parent].level + 1);
        self.nodes.push(Node { parent: key.0, level, row });
        self.by_name.insert(key, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// Outermost calls by total time, longest first; below each the calls made inside it, in the same order.
    pub(crate) fn report(&self) -> Vec<TreeRow> {
        if !self.waiting.is_empty() {
            let mut all = self.clone();
            std::mem::take(&mut all.waiting).into_values().for_each(|calls| all.settle(calls));
            return all.report();
        }
        let mut inside: HashMap<Option<usize>, Vec<(usize, FunctionSummary)>> = HashMap::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let row = FunctionSummary { latency: Vec::new(), ..node.row.report() };
            inside.entry(node.parent).or_default().push((i, row));
        }
        for rows in inside.values_mut() {
            // from the end, so that they can be popped
            rows.sort_by(|(_, a), (_, b)| b.in_order(a));
        }
        let mut rows = Vec::with_capacity(self.nodes.len());
        let mut open: Vec<_> = inside.remove(&None).into_iter().collect();
        while let Some(siblings) = open.last_mut() {
            let Some((i, function)) = siblings.pop() else {
                open.pop();
                continue;
            };
            rows.push(TreeRow { level: open.len() - 1, function });
            open.extend(inside.remove(&Some(i)));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{call, inside, took};

    fn shown(tree: &CallTree) -> Vec<String> {
        let text =
            |row: &TreeRow| format!("{}{} {}", "  ".repeat(row.level), row.function.name, row.function.calls);
        tree.report().iter().map(text).collect()
    }

    fn driver(id: u64, parent: u64) -> Call {
        inside(Call { id, ..call(Api::Driver, "cuMemAlloc_v2", 0) }, parent)
    }

    #[test]
    fn a_driver_call_is_below_the_runtime_call_that_made_it() {
        let mut tree = CallTree::default();
        tree.feed(&driver(2, 1));
        tree.feed(&Call { id: 1, ..took(call(Api::Runtime, "cudaMalloc", 0), 5000) });
        tree.feed(&driver(4, 3));
        tree.feed(&Call { id: 3, ..took(call(Api::Runtime, "cudaMallocAsync", 0), 9000) });
        tree.feed(&Call { id: 5, parent: None, ..driver(5, 1) });
        assert_eq!(
            shown(&tree),
            [
                "cudaMallocAsync 1",
                "  cuMemAlloc_v2 1",
                "cudaMalloc 1",
                "  cuMemAlloc_v2 1",
                "cuMemAlloc_v2 1"
            ]
        );
    }

    #[test]
    fn calls_without_their_outer_call_are_rows_by_themselves() {
        let mut tree = CallTree::default();
        tree.feed(&driver(2, 1));
        assert_eq!(shown(&tree), ["cuMemAlloc_v2 1"]);
        (0..2 * MOST_WAITING as u64).for_each(|i| tree.feed(&driver(i + 3, 1)));
        assert_eq!(shown(&tree), [format!("cuMemAlloc_v2 {}", 2 * MOST_WAITING + 1)]);
    }

    #[test]
    fn deep_and_circular_nesting_is_bounded() {
        let mut tree = CallTree::default();
        (2..100).rev().for_each(|id| tree.feed(&driver(id, id - 1)));
        tree.feed(&driver(200, 200));
        tree.feed(&driver(201, 202));
        tree.feed(&driver(202, 201));
        tree.feed(&Call { id: 1, ..call(Api::Runtime, "cudaMalloc", 0) });
        let rows = tree.report();
        assert_eq!(rows.iter().map(|row| row.level).max(), Some(MOST_LEVELS - 1));
        assert_eq!(rows.iter().map(|row| row.function.calls).sum::<u64>(), 102);
    }
}
