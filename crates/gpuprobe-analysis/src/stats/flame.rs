//! A flame graph: values summed over a tree of names. The size of the tree is bounded.

use std::collections::BTreeMap;

use serde::Serialize;

/// Nodes of a tree. A value whose node does not fit is added to the parent only.
const MOST_NODES: usize = 20_000;
/// Deeper stacks are cut off.
const MAX_DEPTH: usize = 200;

/// A name, with everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlameNode {
    /// The sum of its own values and of all nodes below.
    pub total: u64,
    pub children: BTreeMap<String, Self>,
}

/// Builds the tree.
#[derive(Clone, Debug, Default)]
pub struct Flame {
    root: FlameNode,
    nodes: usize,
}

impl Flame {
    /// Adds a value at the end of a stack of names, the outermost first.
    pub fn add<'a>(&mut self, stack: impl IntoIterator<Item = &'a str>, value: u64) {
        let mut node = &mut self.root;
        node.total = node.total.saturating_add(value);
        for name in stack.into_iter().take(MAX_DEPTH) {
            if !node.children.contains_key(name) {
                if self.nodes >= MOST_NODES {
                    return;
                }
                self.nodes += 1;
                node.children.insert(name.to_owned(), FlameNode::default());
            }
            let Some(child) = node.children.get_mut(name) else { return };
            child.total = child.total.saturating_add(value);
            node = child;
        }
    }

    pub fn root(&self) -> &FlameNode {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_every_node_above_it() {
        let mut flame = Flame::default();
        flame.add(["a", "b"], 3);
        flame.add(["a", "c"], 4);
        flame.add(["a"], 5);
        let a = &flame.root().children["a"];
        assert_eq!((flame.root().total, a.total, a.children["b"].total), (12, 12, 3));
    }

    #[test]
    fn the_tree_is_bounded_and_loses_no_value() {
        let mut flame = Flame::default();
        let names: Vec<String> = (0..MOST_NODES + 10).map(|i| i.to_string()).collect();
        names.iter().for_each(|name| flame.add([name.as_str()], 1));
        flame.add(std::iter::repeat_n("deep", 10_000), 1);
        assert_eq!((flame.root().children.len(), flame.root().total), (MOST_NODES, MOST_NODES as u64 + 11));
    }
}
