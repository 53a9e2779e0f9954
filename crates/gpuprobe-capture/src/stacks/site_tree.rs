//! Trees of comparisons by which the BPF programs recognise the stacks of allocations: each compares the word at a
//! distance from the stack pointer with a return address. Each process has a tree for every address that an
//! allocating call returns to.
//!
//! Trees are learned by example: the comparisons are made here with the copy of a stack, as the BPF programs would,
//! and where they end the comparisons that distinguish this stack from the others are added. Pure: the changes for
//! the BPF maps are handed out.

use std::collections::HashMap;

use gpuprobe_event::SiteId;
use gpuprobe_event::counters::ProcessKey;

use crate::wire::{derived, gp_site_node, gp_site_root, gp_site_root_key, number};

/// A change to the BPF maps. They must be written in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Node(u32, gp_site_node),
    Root(gp_site_root_key, gp_site_root),
    RemoveRoot(gp_site_root_key),
}

/// A return address, and its distance from the stack pointer of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) distance: u32,
    pub(crate) address: u64,
}

/// Where the comparisons for a stack begin: the address that the call returns to, and its Python frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Root {
    pub(crate) address: u64,
    /// A hash; 0 if there are none.
    pub(crate) python: u64,
}

/// The result of learning a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It is known now.
    Yes,
    /// The copy of the stack does not reach to where other stacks of the process differ.
    NeedsMore,
    /// Nothing on the stack distinguishes it from another one, or it would take too many comparisons.
    NotPossible,
    /// There is no room for more.
    Full,
}

#[derive(Debug, Default)]
struct Process {
    first: HashMap<Root, gp_site_root>,
    nodes: Vec<u32>,
    /// The BPF programs send no more stacks.
    stopped: bool,
}

/// Where a new comparison is added.
#[derive(Clone, Copy, Debug)]
enum End {
    Lower(u32),
    Higher(u32),
}

/// The trees of all processes.
#[derive(Debug)]
pub(crate) struct SiteTrees {
    /// As in the BPF map; the first stands for none.
    nodes: Vec<gp_site_node>,
    free: Vec<u32>,
    processes: HashMap<ProcessKey, Process>,
    max_nodes: usize,
    max_per_process: usize,
    /// Return addresses of allocating calls, of all processes.
    return_addresses: usize,
    changes: Vec<Change>,
}

/// The BPF map has this many entries, without those that stop stacks.
const MAX_RETURN_ADDRESSES: usize = 56 << 10;

fn scrambled(address: u64) -> u64 {
    address.wrapping_mul(derived::SCRAMBLE)
}

fn key(process: ProcessKey, root: Root) -> gp_site_root_key {
    let Root { address, python } = root;
    gp_site_root_key { instance: process.instance, address, python, tgid: process.tgid.0, reserved: 0 }
}

impl SiteTrees {
    /// With so many comparisons in total. One process may use half of them.
    pub(crate) fn new(max_nodes: u32) -> Self {
        let max_nodes = max_nodes as usize;
        Self {
            nodes: vec![gp_site_node::default()],
            free: Vec::new(),
            processes: HashMap::new(),
            max_nodes,
            max_per_process: max_nodes / 2,
            return_addresses: 0,
            changes: Vec::new(),
        }
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Stops the BPF programs from sending unknown stacks of this process.
    pub(crate) fn stop_stacks(&mut self, process: ProcessKey) {
        let known = self.processes.entry(process).or_default();
        if !std::mem::replace(&mut known.stopped, true) {
            self.changes.push(Change::Root(
                key(process, Root::default()),
                gp_site_root { node: number::NO_STACKS, site: 0 },
            ));
        }
    }

    /// The site that the BPF programs will find for this stack.
    pub(crate) fn find(
        &self,
        process: ProcessKey,
        first: Root,
        word: impl Fn(u32) -> Option<u64>,
    ) -> Option<SiteId> {
        let root = self.processes.get(&process)?.first.get(&first)?;
        let (mut index, mut site) = (root.node, root.site);
        while index != 0 {
            let node = self.nodes.get(index as usize)?;
            let found = scrambled(word(node.distance)?);
            (index, site) = if found == node.address {
                (node.same, node.site)
            } else {
                (if found < node.address { node.lower } else { node.higher }, 0)
            };
        }
        (site != 0).then_some(SiteId(site))
    }

    /// Learns a stack: a call that returns to `first`, then these steps outwards. `word` reads the copy of the stack
    /// at a distance from the call's stack pointer.
    pub(crate) fn learn(
        &mut self,
        process: ProcessKey,
        first: Root,
        steps: &[Step],
        site: SiteId,
        word: impl Fn(u32) -> Option<u64>,
    ) -> Learned {
        let Some(&root) = self.processes.entry(process).or_default().first.get(&first) else {
            if self.return_addresses >= MAX_RETURN_ADDRESSES {
                return Learned::Full;
            }
            let Some(node) = self.chain(process, steps, site) else { return Learned::Full };
            self.return_addresses += 1;
            let ends_here = if steps.is_empty() { site.0 } else { 0 };
            return self.set_first(process, first, gp_site_root { node, site: ends_here });
        };
        let mut rest = steps.to_vec();
        let (mut index, mut made) = (root.node, 0);
        let end = loop {
            // the tree ends here already: a stack with fewer known frames gets the site of a longer one
            let Some(node) = self.nodes.get(index as usize).filter(|_| index != 0) else {
                return Learned::Yes;
            };
            made += 1;
            let Some(found) = word(node.distance).map(scrambled) else { return Learned::NeedsMore };
            let (next, end) = if found == node.address {
                rest.retain(|step| step.distance != node.distance);
                (node.same, None)
            } else if found < node.address {
                (node.lower, Some(End::Lower(index)))
            } else {
                (node.higher, Some(End::Higher(index)))
            };
            match end.filter(|_| next == 0) {
                Some(end) => break end,
                None => index = next,
            }
        };
        if rest.is_empty() || made + rest.len() >= number::SITE_STEPS {
            return Learned::NotPossible;
        }
        let Some(begin) = self.chain(process, &rest, site) else { return Learned::Full };
        self.link(end, begin);
        Learned::Yes
    }

    fn set_first(&mut self, process: ProcessKey, first: Root, root: gp_site_root) -> Learned {
        self.processes.entry(process).or_default().first.insert(first, root);
        self.changes.push(Change::Root(key(process, first), root));
        Learned::Yes
    }

    fn link(&mut self, end: End, to: u32) {
        let (End::Lower(index) | End::Higher(index)) = end;
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        match end {
            End::Lower(_) => node.lower = to,
            End::Higher(_) => node.higher = to,
        }
        self.changes.push(Change::Node(index, *node));
    }

    /// Adds a chain of comparisons that ends at the site, and returns the first one, or 0 if there are none.
    fn chain(&mut self, process: ProcessKey, steps: &[Step], site: SiteId) -> Option<u32> {
        let known = self.processes.entry(process).or_default();
        let room = self.free.len() + self.max_nodes.saturating_sub(self.nodes.len());
        if room < steps.len() || known.nodes.len() + steps.len() > self.max_per_process {
            return None;
        }
        let mut next = 0;
        for step in steps.iter().rev() {
            let node = gp_site_node {
                address: scrambled(step.address),
                distance: step.distance,
                same: next,
                site: if next == 0 { site.0 } else { 0 },
                ..gp_site_node::default()
            };
            next = match self.free.pop() {
                Some(index) => index,
                None => {
                    self.nodes.push(node);
                    u32::try_from(self.nodes.len() - 1).ok()?
                }
            };
            if let Some(slot) = self.nodes.get_mut(next as usize) {
                *slot = node;
            }
            known.nodes.push(next);
            self.changes.push(Change::Node(next, node));
        }
        Some(next)
    }

    /// Frees the trees of an exited process.
    pub(crate) fn forget(&mut self, process: ProcessKey) {
        let Some(known) = self.processes.remove(&process) else { return };
        self.return_addresses -= known.first.len();
        self.changes.extend(known.first.keys().map(|first| Change::RemoveRoot(key(process, *first))));
        if known.stopped {
            self.changes.push(Change::RemoveRoot(key(process, Root::default())));
        }
        self.free.extend(known.nodes);
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;

    use super::*;

    const PROCESS: ProcessKey = ProcessKey { tgid: Tgid(7), instance: 9 };

    /// A stack as words by distance, and its steps.
    struct Sample {
        words: HashMap<u32, u64>,
        steps: Vec<Step>,
    }

    fn sample(steps: &[(u32, u64)], garbage: &[(u32, u64)]) -> Sample {
        let words = garbage.iter().chain(steps).copied().collect();
        let steps = steps.iter().map(|(distance, address)| Step { distance: *distance, address: *address });
        Sample { words, steps: steps.collect() }
    }

    impl Sample {
        fn word(&self, distance: u32) -> Option<u64> {
            (distance < 4096).then(|| self.words.get(&distance).copied().unwrap_or(0))
        }

        fn learn(&self, trees: &mut SiteTrees, first: u64, site: u32) -> Learned {
            let first = Root { address: first, python: 0 };
            trees.learn(PROCESS, first, &self.steps, SiteId(site), |distance| self.word(distance))
        }

        /// As the BPF programs find it, with what was written to the maps.
        fn find(&self, bpf: &BpfSide, first: u64) -> u32 {
            let Some(root) = bpf.roots.get(&first) else { return 0 };
            let (mut index, mut site) = (root.node, root.site);
            for _ in 0..number::SITE_STEPS {
                if index == 0 {
                    break;
                }
                let node = bpf.nodes[&index];
                let word = scrambled(self.word(node.distance).unwrap());
                (index, site) = if word == node.address {
                    (node.same, node.site)
                } else {
                    (if word < node.address { node.lower } else { node.higher }, 0)
                };
            }
            if index == 0 { site } else { 0 }
        }
    }

    #[derive(Default)]
    struct BpfSide {
        roots: HashMap<u64, gp_site_root>,
        nodes: HashMap<u32, gp_site_node>,
    }

    impl BpfSide {
        fn write(&mut self, changes: Vec<Change>) {
            for change in changes {
                match change {
                    Change::Node(index, node) => drop(self.nodes.insert(index, node)),
                    Change::Root(key, root) => drop(self.roots.insert(key.address, root)),
                    Change::RemoveRoot(key) => drop(self.roots.remove(&key.address)),
                }
            }
        }
    }

    #[test]
    fn stacks_are_distinguished_by_where_they_differ() {
        let (mut trees, mut bpf) = (SiteTrees::new(1000), BpfSide::default());
        let samples = [
            sample(&[(16, 100), (64, 200)], &[]),
            sample(&[(16, 101), (64, 200)], &[]),
            sample(&[(16, 100), (64, 201)], &[]),
            // the first frame has another size, with old values in it
            sample(&[(48, 100), (96, 200)], &[(16, 99)]),
            sample(&[(48, 100), (96, 200)], &[(16, 102)]),
            sample(&[(48, 100), (96, 200)], &[(16, 1 << 40)]),
        ];
        let sites = [1, 2, 3, 4, 4, 4];
        for (i, one) in samples.iter().enumerate() {
            assert!([0, 4].contains(&one.find(&bpf, 5)), "{i}: not taken for another before it is learned");
            assert_eq!(one.learn(&mut trees, 5, sites[i]), Learned::Yes);
            bpf.write(trees.take_changes());
            for (j, other) in samples[..=i].iter().enumerate() {
                let first = Root { address: 5, python: 0 };
                let found = trees.find(PROCESS, first, |distance| other.word(distance));
                assert_eq!(found, Some(SiteId(sites[j])), "{j} after {i}, in user space");
                assert_eq!(other.find(&bpf, 5), sites[j], "{j} after {i}");
            }
        }
        assert_eq!(samples[0].find(&bpf, 6), 0, "another return address has another tree");
        assert_eq!(samples[0].learn(&mut trees, 5, 77), Learned::Yes);
        assert_eq!(trees.take_changes().len(), 0, "a known stack is not learned again");
    }

    #[test]
    fn ten_thousand_neighbours_do_not_make_one_long_branch() {
        let (mut trees, mut bpf) = (SiteTrees::new(100_000), BpfSide::default());
        for i in 0..10_000_u32 {
            let one = sample(&[(16, 0x1000 + 5 * u64::from(i)), (32, 7)], &[]);
            assert_eq!(one.learn(&mut trees, 5, i + 1), Learned::Yes, "{i}");
        }
        bpf.write(trees.take_changes());
        for i in (0..10_000_u32).step_by(97) {
            assert_eq!(sample(&[(16, 0x1000 + 5 * u64::from(i)), (32, 7)], &[]).find(&bpf, 5), i + 1);
        }
    }

    #[test]
    fn stacks_that_cannot_be_distinguished_or_do_not_fit_are_refused() {
        let mut trees = SiteTrees::new(20);
        let long = sample(&[(16, 1), (32, 2)], &[]);
        assert_eq!(long.learn(&mut trees, 5, 1), Learned::Yes);
        assert_eq!(
            sample(&[(16, 1)], &[]).learn(&mut trees, 5, 2),
            Learned::NotPossible,
            "the beginning of another"
        );
        let far = Sample { words: HashMap::new(), steps: vec![Step { distance: 5000, address: 3 }] };
        assert_eq!(far.learn(&mut trees, 6, 3), Learned::Yes);
        let other = sample(&[(24, 3)], &[]);
        assert_eq!(other.learn(&mut trees, 6, 4), Learned::NeedsMore);
        let many: Vec<_> = (0..11).map(|i| (16 + 8 * i, 9)).collect();
        assert_eq!(sample(&many, &[]).learn(&mut trees, 8, 5), Learned::Full);
        assert_eq!(sample(&[], &[]).learn(&mut trees, 9, 6), Learned::Yes);
        trees.forget(PROCESS);
        assert_eq!(trees.free.len(), 3, "there is room again");
        assert_eq!(sample(&many[..10], &[]).learn(&mut trees, 8, 5), Learned::Yes);
    }

    #[test]
    fn stacks_are_stopped_once_until_the_process_exits() {
        let mut trees = SiteTrees::new(40);
        trees.stop_stacks(PROCESS);
        trees.stop_stacks(PROCESS);
        let changes = trees.take_changes();
        let [Change::Root(root, wanted)] = changes[..] else { panic!("{changes:?}") };
        assert_eq!((root.tgid, root.address, wanted.node), (7, 0, number::NO_STACKS));
        trees.forget(PROCESS);
        assert!(matches!(trees.take_changes()[..], [Change::RemoveRoot(removed)] if removed.address == 0));
    }
}
