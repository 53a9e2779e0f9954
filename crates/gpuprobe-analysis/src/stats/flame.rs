//! Values by the way to where they belong: a tree of names, whose size has a bound.

use std::collections::BTreeMap;

use serde::Serialize;

/// Nodes of a tree. What does not fit is added to the node it would have been below.
const MOST_NODES: usize = 20_000;
/// Deeper ways are cut.
const DEEPEST: usize = 200;

/// A name with everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlameNode {
    /// Of itself and of all that is below.
    pub total: u64,
    /// What is below, by name.
    pub children: BTreeMap<String, Self>,
}

/// Collects a tree.
#[derive(Clone, Debug, Default)]
pub struct Flame {
    root: FlameNode,
    nodes: usize,
}

impl Flame {
    /// Adds a value at the end of a way, the outermost name first.
    pub fn add<'a>(&mut self, way: impl IntoIterator<Item = &'a str>, value: u64) {
        let mut node = &mut self.root;
        node.total = node.total.saturating_add(value);
        for name in way.into_iter().take(DEEPEST) {
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

    /// The tree.
    pub fn root(&self) -> &FlameNode {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_add_up_on_their_way() {
        let mut flame = Flame::default();
        flame.add(["a", "b"], 3);
        flame.add(["a", "c"], 4);
        flame.add(["a"], 5);
        let a = &flame.root().children["a"];
        assert_eq!((flame.root().total, a.total, a.children["b"].total), (12, 12, 3));
    }

    #[test]
    fn a_tree_has_a_bound_and_loses_no_value() {
        let mut flame = Flame::default();
        let names: Vec<String> = (0..MOST_NODES + 10).map(|i| i.to_string()).collect();
        names.iter().for_each(|name| flame.add([name.as_str()], 1));
        flame.add(std::iter::repeat_n("deep", 10_000), 1);
        assert_eq!((flame.root().children.len(), flame.root().total), (MOST_NODES, MOST_NODES as u64 + 11));
    }
}
