//! Ways through programs to allocations, as comparisons that the kernel side can make: where on the stack a return
//! address lies and which one it is. Each process has a tree of them for every address that allocating calls return to.
//! Learned by example: the comparisons are made here with the copy of a stack, as the kernel would, and what tells this
//! way from the others is added where they end. Pure: what has to be written to the kernel's tables is handed out.

use std::collections::HashMap;

use gpuprobe_event::SiteId;
use gpuprobe_event::counters::ProcessKey;

use crate::wire::{derived, gp_site_node, gp_way, gp_way_key, number};

/// What has to be written, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Node(u32, gp_site_node),
    Root(gp_way_key, gp_way),
    RemoveRoot(gp_way_key),
}

/// One return address on the way, and where it lies above the stack pointer of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) distance: u32,
    pub(crate) address: u64,
}

/// What became of a way that was to be learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It is known from now on, or was.
    Yes,
    /// The copy of the stack does not reach to where other ways of the process differ.
    NeedsMore,
    /// Nothing on the stack tells it from another one, or it would take too many comparisons.
    NotPossible,
    /// There is no room for more.
    Full,
}

#[derive(Debug, Default)]
struct Process {
    first: HashMap<u64, gp_way>,
    nodes: Vec<u32>,
    /// No more stacks are sent.
    stopped: bool,
}

/// Where a comparison that is not there yet belongs.
#[derive(Clone, Copy, Debug)]
enum End {
    Lower(u32),
    Higher(u32),
}

/// All trees.
#[derive(Debug)]
pub(crate) struct SiteTrees {
    /// As the kernel has them; the first is none.
    nodes: Vec<gp_site_node>,
    free: Vec<u32>,
    processes: HashMap<ProcessKey, Process>,
    max_nodes: usize,
    max_per_process: usize,
    /// Addresses that allocating calls return to, of all processes.
    return_addresses: usize,
    changes: Vec<Change>,
}

/// The kernel's table of first addresses has this many rows, but for those that say how stacks are wanted.
const MAX_RETURN_ADDRESSES: usize = 56 << 10;

fn scrambled(address: u64) -> u64 {
    address.wrapping_mul(derived::SCRAMBLE)
}

fn key(process: ProcessKey, address: u64) -> gp_way_key {
    gp_way_key { instance: process.instance, address, tgid: process.tgid.0, reserved: 0 }
}

impl SiteTrees {
    /// So many comparisons in all. Half of them is as much as one process may take from the others.
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

    /// What has to be written to the kernel's tables since this was asked last.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Stacks of this process by ways that are not known are not to be sent any more.
    pub(crate) fn stop_stacks(&mut self, process: ProcessKey) {
        let known = self.processes.entry(process).or_default();
        if !std::mem::replace(&mut known.stopped, true) {
            self.changes.push(Change::Root(key(process, 0), gp_way { node: number::NO_STACKS, site: 0 }));
        }
    }

    /// The site that the kernel side will find for this stack.
    pub(crate) fn find(
        &self,
        process: ProcessKey,
        first: u64,
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

    /// Learns a way: a call that returns to `first`, then these steps outwards. `word` reads the copy of the stack, by the
    /// distance from the call's stack pointer.
    pub(crate) fn learn(
        &mut self,
        process: ProcessKey,
        first: u64,
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
            return self.set_first(process, first, gp_way { node, site: ends_here });
        };
        let mut rest = steps.to_vec();
        let (mut index, mut made) = (root.node, 0);
        let end = loop {
            // the way ends here already: who knows less of its beginning than others goes with them
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

    fn set_first(&mut self, process: ProcessKey, first: u64, root: gp_way) -> Learned {
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

    /// Comparisons that follow each other, the last of them at the site; returns the first, 0 where there are none.
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

    /// A process has ended: nobody walks its tree any more.
    pub(crate) fn forget(&mut self, process: ProcessKey) {
        let Some(known) = self.processes.remove(&process) else { return };
        self.return_addresses -= known.first.len();
        self.changes.extend(known.first.keys().map(|first| Change::RemoveRoot(key(process, *first))));
        if known.stopped {
            self.changes.push(Change::RemoveRoot(key(process, 0)));
        }
        self.free.extend(known.nodes);
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;

    use super::*;

    const PROCESS: ProcessKey = ProcessKey { tgid: Tgid(7), instance: 9 };

    /// A stack as words by their distance, and the way that it has.
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
            trees.learn(PROCESS, first, &self.steps, SiteId(site), |distance| self.word(distance))
        }

        /// As the kernel side does it, with what it was told.
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
        roots: HashMap<u64, gp_way>,
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
    fn ways_are_told_apart_by_where_they_differ() {
        let (mut trees, mut bpf) = (SiteTrees::new(1000), BpfSide::default());
        let samples = [
            sample(&[(16, 100), (64, 200)], &[]),
            sample(&[(16, 101), (64, 200)], &[]),
            sample(&[(16, 100), (64, 201)], &[]),
            // another size of the first frame, with whatever lay there before in it
            sample(&[(48, 100), (96, 200)], &[(16, 99)]),
            sample(&[(48, 100), (96, 200)], &[(16, 102)]),
            sample(&[(48, 100), (96, 200)], &[(16, 1 << 40)]),
        ];
        let sites = [1, 2, 3, 4, 4, 4];
        for (i, one) in samples.iter().enumerate() {
            assert!([0, 4].contains(&one.find(&bpf, 5)), "{i}: not taken for another before it is learnt");
            assert_eq!(one.learn(&mut trees, 5, sites[i]), Learned::Yes);
            bpf.write(trees.take_changes());
            for (j, other) in samples[..=i].iter().enumerate() {
                let found = trees.find(PROCESS, 5, |distance| other.word(distance));
                assert_eq!(found, Some(SiteId(sites[j])), "{j} after {i}, without the bpf");
                assert_eq!(other.find(&bpf, 5), sites[j], "{j} after {i}");
            }
        }
        assert_eq!(samples[0].find(&bpf, 6), 0, "another return address is another root");
        assert_eq!(samples[0].learn(&mut trees, 5, 77), Learned::Yes);
        assert_eq!(trees.take_changes().len(), 0, "what is known is not learnt again");
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
    fn what_cannot_be_told_apart_and_what_does_not_fit_is_said() {
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
    fn stacks_are_stopped_once_and_until_the_process_ends() {
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
