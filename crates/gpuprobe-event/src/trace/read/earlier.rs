//! What earlier lines have said: lines refer to it, or repeat it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::stacks::Stacks;
use crate::catalogue::{Api, Function, catalogue};
use crate::cut::cut;
use crate::effect::GraphContents;
use crate::ids::Tgid;

#[derive(Debug, Default)]
pub(super) struct Earlier {
    pub(super) format: u32,
    pub(super) names: Names,
    pub(super) functions: Functions,
    pub(super) graphs: Graphs,
    pub(super) stacks: Stacks,
}

/// The last text of each of a few hash values. A trace repeats the same texts in millions of lines, and its hash maps, which
/// must not be slow for forged traces, are slower than this for all others.
#[derive(Debug)]
struct Recent<T>(Vec<Option<T>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self((0..Self::SLOTS).map(|_| None).collect())
    }
}

impl<T> Recent<T> {
    const SLOTS: usize = 512;

    #[inline]
    fn slot(&mut self, text: &str) -> Option<&mut Option<T>> {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
        let (words, rest) = text.as_bytes().as_chunks::<8>();
        let whole = words.iter().fold(text.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
        let last = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // the highest bits depend on all others
        self.0.get_mut((mix(whole, last) >> (u64::BITS - Self::SLOTS.ilog2())) as usize)
    }
}

/// Names that lines share.
#[derive(Debug, Default)]
pub(super) struct Names {
    recent: Recent<Arc<str>>,
    all: HashSet<Arc<str>>,
    bytes: usize,
}

impl Names {
    /// Bytes of names that are remembered. A trace has few names, unless it was forged.
    const MOST: usize = 16 << 20;

    /// Shares one allocation among all lines with this name.
    pub(super) fn share(&mut self, name: &str, most: usize) -> Arc<str> {
        if name.len() > most {
            return self.find(&cut(name, most));
        }
        match self.recent.slot(name) {
            Some(Some(known)) if **known == *name => Arc::clone(known),
            _ => {
                let shared = self.find(name);
                self.recent.slot(name).map(|slot| slot.insert(Arc::clone(&shared)));
                shared
            }
        }
    }

    fn find(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.all.get(name) {
            return Arc::clone(known);
        }
        if self.bytes > Self::MOST {
            self.all.clear();
            self.bytes = 0;
        }
        let shared: Arc<str> = Arc::from(name);
        self.bytes += name.len() + size_of::<Arc<str>>();
        self.all.insert(Arc::clone(&shared));
        shared
    }

    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.bytes
    }
}

/// Functions by their names.
#[derive(Debug, Default)]
pub(super) struct Functions(Recent<&'static Function>);

impl Functions {
    /// A function of the catalogue.
    pub(super) fn find(&mut self, api: Api, name: &str) -> Option<&'static Function> {
        let slot = self.0.slot(name)?;
        match slot {
            Some(known) if known.api == api && known.name == name => Some(known),
            _ => catalogue().lookup(api, None, name).map(|function| *slot.insert(function)),
        }
    }
}

/// The contents of graphs: a trace has them with the first launch.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    by_graph: HashMap<(Tgid, u64), Arc<GraphContents>>,
    kernels: usize,
}

impl Graphs {
    /// Kernels that are remembered. A real trace has a few thousand.
    const MOST_KERNELS: usize = 1 << 20;

    pub(super) fn get(&self, graph: (Tgid, u64)) -> Option<Arc<GraphContents>> {
        self.by_graph.get(&graph).cloned()
    }

    pub(super) fn add(&mut self, graph: (Tgid, u64), contents: GraphContents) -> Arc<GraphContents> {
        let contents = Arc::new(contents);
        self.kernels += contents.kernels.len() + 1;
        if self.kernels > Self::MOST_KERNELS {
            self.by_graph.clear();
            self.kernels = contents.kernels.len() + 1;
        }
        self.by_graph.insert(graph, Arc::clone(&contents));
        contents
    }
}
