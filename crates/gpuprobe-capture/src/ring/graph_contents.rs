//! What graphs consist of: their CUDA kernels by handle, from the records that the BPF programs send when a graph is
//! built or changed. Together with the number of launches this gives how often each kernel ran. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::GraphContents;
use gpuprobe_event::counters::ProcessKey;

use crate::wire::{gp_exec_launches, gp_graph_record, number};

/// The most kernels in the contents of all graphs of one process; an inference server has some ten thousand. The names
/// of more are not known.
const MOST_KERNELS: usize = 1 << 20;
/// The most graphs of one process at a time, with captures, executable graphs and child nodes.
const MOST_CONTENTS: usize = 1 << 18;
/// How often the table is read before contents that are missing count as lost: their records may still be in the ring.
const MOST_WAITS: u32 = 3;

/// Kernels of contents that are not known, in results by handle.
pub(crate) const NO_HANDLE: u64 = 0;

/// The graphs of all processes.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    processes: HashMap<ProcessKey, ProcessGraphs>,
    /// Whether launches are counted in a table. If so, forgotten contents are needed until that row is read.
    pub(crate) has_rows: bool,
    /// Contents that nothing refers to any more.
    forgotten: Vec<(ProcessKey, u64)>,
    /// Changes of nodes whose former kernel is not known.
    pub(crate) unknown_changes: u64,
    /// Kernels for which there was no room.
    pub(crate) refused: u64,
}

#[derive(Debug, Default)]
struct ProcessGraphs {
    contents: HashMap<u64, Contents>,
    /// The number of kernels in all contents.
    kernels: usize,
    /// Runs of kernels, by handle, in contents that were forgotten.
    earlier: HashMap<u64, u64>,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    /// How often a launch runs each kernel, by handle. A node that is removed twice makes it negative.
    kernels: HashMap<u64, i64>,
    /// The same by name, as it was last reported.
    named: Option<Arc<GraphContents>>,
    /// How often the table was read while some of the kernels were missing.
    waits: u32,
    /// Contents of child nodes, which are forgotten with these.
    children: Vec<u64>,
}

impl Contents {
    fn add(&mut self, handle: u64, count: i64) {
        let sum = self.kernels.entry(handle).or_default();
        *sum = sum.saturating_add(count);
        self.named = None;
    }

    /// How often one launch runs each kernel. What is missing in `all` has no handle. If there are more than `all`, a
    /// record is missing, and no handle is certain.
    fn runs(&self, all: u64) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.kernels.iter().filter_map(|(handle, n)| Some((*handle, u64::try_from(*n).ok()?)));
        let sum = counts.clone().fold(0, |sum: u64, (_, n)| sum.saturating_add(n));
        let is_certain = sum <= all;
        let missing = if is_certain { all - sum } else { all };
        counts.filter(move |_| is_certain).chain([(NO_HANDLE, missing)]).filter(|(_, n)| *n > 0)
    }

    fn is_complete(&self, all: u64) -> bool {
        self.runs(all).all(|(handle, _)| handle != NO_HANDLE)
    }
}

impl Graphs {
    /// Takes in a record.
    pub(crate) fn apply(&mut self, record: &gp_graph_record) -> bool {
        let key = ProcessKey { tgid: gpuprobe_event::Tgid(record.tgid), instance: record.instance };
        let process = self.processes.entry(key).or_default();
        match record.change {
            number::GRAPH_ADD_KERNEL => {
                self.refused += process.add(record.contents, &[(record.member, record.count)]);
            }
            number::GRAPH_ADD_GRAPH | number::GRAPH_ADD_CHILD => {
                let added = process.contents.get(&record.member).map(|added| &added.kernels);
                let times = |(handle, n): (&u64, &i64)| (*handle, n.saturating_mul(record.count));
                let added: Vec<_> = added.into_iter().flatten().map(times).collect();
                self.refused += process.add(record.contents, &added);
                if record.change == number::GRAPH_ADD_CHILD
                    && let Some(owner) = process.contents.get_mut(&record.contents)
                {
                    owner.children.push(record.member);
                }
            }
            number::GRAPH_SET_KERNEL => {
                let contents = process.contents.get(&record.contents);
                let has_it = contents.is_some_and(|contents| contents.kernels.contains_key(&record.member));
                self.unknown_changes += u64::from(!has_it);
            }
            number::GRAPH_FORGET => {
                process.release_children(record.contents, record.member);
                match self.has_rows {
                    true => self.forgotten.push((key, record.contents)),
                    false => drop(process.remove(record.contents)),
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes the contents that nothing refers to any more.
    pub(crate) fn take_forgotten(&mut self) -> Vec<(ProcessKey, u64)> {
        std::mem::take(&mut self.forgotten)
    }

    /// Removes contents, with the row of their launches, if they were ever launched.
    pub(crate) fn retire(&mut self, key: ProcessKey, id: u64, launched: Option<gp_exec_launches>) {
        let Some(process) = self.processes.get_mut(&key) else { return };
        let contents = process.remove(id).unwrap_or_default();
        let Some(gp_exec_launches { launches, kernels }) = launched else { return };
        for (handle, n) in contents.runs(kernels) {
            let sum = process.earlier.entry(handle).or_default();
            *sum = sum.saturating_add(n.saturating_mul(launches));
        }
    }

    /// How often the graph launches of a process ran each kernel, by handle. `rows` are the launches of the contents
    /// that still exist. `is_last`: nothing more will come.
    pub(crate) fn runs(
        &mut self,
        key: ProcessKey,
        rows: &[(u64, gp_exec_launches)],
        is_last: bool,
    ) -> HashMap<u64, u64> {
        // an exited process is not added again
        if rows.is_empty() && !self.processes.contains_key(&key) {
            return HashMap::new();
        }
        let process = self.processes.entry(key).or_default();
        let mut runs = process.earlier.clone();
        for (id, row) in rows.iter().filter(|(_, row)| row.launches > 0) {
            let contents = process.contents.entry(*id).or_default();
            if !contents.is_complete(row.kernels) && contents.waits < MOST_WAITS && !is_last {
                contents.waits += 1;
                continue;
            }
            for (handle, n) in contents.runs(row.kernels) {
                let sum = runs.entry(handle).or_default();
                *sum = sum.saturating_add(n.saturating_mul(row.launches));
            }
        }
        runs
    }

    /// Processes with runs in contents that were forgotten.
    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessKey> {
        self.processes.iter().filter(|(_, process)| !process.earlier.is_empty()).map(|(key, _)| *key)
    }

    /// The contents of a graph with `all` kernels by name. Remembered until a name is missing no more.
    pub(crate) fn named(
        &mut self,
        key: ProcessKey,
        id: u64,
        all: u64,
        mut name_of: impl FnMut(u64) -> Option<Arc<str>>,
    ) -> Option<Arc<GraphContents>> {
        let contents = self.processes.get_mut(&key)?.contents.get_mut(&id)?;
        if let Some(named) = contents.named.as_ref().filter(|named| named.is_named()) {
            return Some(Arc::clone(named));
        }
        let by_name = contents.runs(all).map(|(handle, n)| (name_of(handle), n));
        let named = GraphContents::of(by_name);
        // the same object, as long as nothing has changed
        if contents.named.as_deref() != Some(&named) {
            contents.named = Some(Arc::new(named));
        }
        contents.named.clone()
    }

    /// Forgets an exited process.
    pub(crate) fn forget(&mut self, key: ProcessKey) {
        self.processes.remove(&key);
        self.forgotten.retain(|(process, _)| *process != key);
    }
}

impl ProcessGraphs {
    /// Adds kernels to contents. Returns how many there was no room for.
    fn add(&mut self, id: u64, kernels: &[(u64, i64)]) -> u64 {
        if self.contents.len() >= MOST_CONTENTS && !self.contents.contains_key(&id) {
            return kernels.len() as u64;
        }
        let contents = self.contents.entry(id).or_default();
        let mut refused = 0;
        for (handle, count) in kernels {
            if contents.kernels.contains_key(handle) {
                contents.add(*handle, *count);
            } else if self.kernels < MOST_KERNELS {
                contents.add(*handle, *count);
                self.kernels += 1;
            } else {
                refused += 1;
            }
        }
        refused
    }

    /// Removes the contents of child nodes with those that they belong to, or moves them to the successor.
    fn release_children(&mut self, id: u64, successor: u64) {
        let children = self.contents.get_mut(&id).map(|contents| std::mem::take(&mut contents.children));
        let mut children = children.unwrap_or_default();
        match self.contents.get_mut(&successor) {
            Some(successor) => successor.children.append(&mut children),
            None => children.into_iter().for_each(|child| drop(self.remove(child))),
        }
    }

    fn remove(&mut self, id: u64) -> Option<Contents> {
        let removed = self.contents.remove(&id)?;
        self.kernels -= removed.kernels.len();
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;

    use super::*;

    const KEY: ProcessKey = ProcessKey { tgid: Tgid(7), instance: 1 };

    fn change(graphs: &mut Graphs, change: u16, contents: u64, member: u64, count: i64) {
        let record = gp_graph_record {
            kind: number::RECORD_GRAPH,
            change,
            tgid: 7,
            instance: 1,
            contents,
            member,
            count,
        };
        assert!(graphs.apply(&record));
    }

    fn launched(launches: u64, kernels: u64) -> gp_exec_launches {
        gp_exec_launches { launches, kernels }
    }

    fn runs(graphs: &mut Graphs, rows: &[(u64, gp_exec_launches)]) -> Vec<(u64, u64)> {
        let mut runs: Vec<_> = graphs.runs(KEY, rows, true).into_iter().collect();
        runs.sort_unstable();
        runs
    }

    /// Contents 1 with two of kernel 0x10 and one of 0x20.
    fn two_and_one() -> Graphs {
        let mut graphs = Graphs { has_rows: true, ..Graphs::default() };
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x10, 1);
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x20, 1);
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x10, 1);
        graphs
    }

    #[test]
    fn a_copy_has_what_the_original_had_at_that_time() {
        let mut graphs = two_and_one();
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 2, 1, 1);
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x30, 1);
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 3, 1, 1);
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 3, 2, 1);
        let rows = [(2, launched(10, 3)), (3, launched(1, 7))];
        assert_eq!(runs(&mut graphs, &rows), [(0x10, 24), (0x20, 12), (0x30, 1)]);
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 3, 2, -1);
        assert_eq!(runs(&mut graphs, &[(3, launched(1, 4))]), [(0x10, 2), (0x20, 1), (0x30, 1)]);
    }

    #[test]
    fn runs_of_forgotten_contents_are_kept() {
        let mut graphs = two_and_one();
        change(&mut graphs, number::GRAPH_FORGET, 1, 0, 0);
        assert_eq!(graphs.take_forgotten(), [(KEY, 1)]);
        assert_eq!(runs(&mut graphs, &[(1, launched(4, 3))]), [(0x10, 8), (0x20, 4)], "not yet removed");
        graphs.retire(KEY, 1, Some(launched(5, 3)));
        assert_eq!(runs(&mut graphs, &[]), [(0x10, 10), (0x20, 5)]);
        graphs.retire(KEY, 1, None);
        assert_eq!(runs(&mut graphs, &[]), [(0x10, 10), (0x20, 5)]);
        assert_eq!(graphs.processes().collect::<Vec<_>>(), [KEY]);
        graphs.forget(KEY);
        assert_eq!(runs(&mut graphs, &[]), []);
    }

    #[test]
    fn contents_whose_records_are_late_are_waited_for_and_then_count_without_names() {
        let mut graphs = two_and_one();
        for _ in 0..MOST_WAITS {
            assert_eq!(graphs.runs(KEY, &[(9, launched(2, 4))], false), HashMap::new());
        }
        assert_eq!(graphs.runs(KEY, &[(9, launched(2, 4))], false), HashMap::from([(NO_HANDLE, 8)]));
        // of contents 1 one record was lost
        assert_eq!(runs(&mut graphs, &[(1, launched(1, 5))]), [(NO_HANDLE, 2), (0x10, 2), (0x20, 1)]);
    }

    #[test]
    fn names_are_looked_up_until_all_are_known() {
        let mut graphs = two_and_one();
        let some = |handle| (handle == 0x10).then(|| Arc::from("add"));
        let first = graphs.named(KEY, 1, 3, some).unwrap();
        assert_eq!(first.kernels, [(Some("add".into()), 2), (None, 1)]);
        assert!(Arc::ptr_eq(&first, &graphs.named(KEY, 1, 3, some).unwrap()));
        let all = |handle| Some(Arc::from(if handle == 0x10 { "add" } else { "scale" }));
        let second = graphs.named(KEY, 1, 3, all).unwrap();
        assert_eq!(second.kernels, [(Some("add".into()), 2), (Some("scale".into()), 1)]);
        assert!(Arc::ptr_eq(&second, &graphs.named(KEY, 1, 3, |_| None).unwrap()));
        assert_eq!(graphs.named(KEY, 5, 1, all), None);
    }

    #[test]
    fn a_changed_node_is_unknown_only_if_its_kernel_is_new() {
        let mut graphs = two_and_one();
        change(&mut graphs, number::GRAPH_SET_KERNEL, 1, 0x20, 0);
        assert_eq!(graphs.unknown_changes, 0);
        change(&mut graphs, number::GRAPH_SET_KERNEL, 1, 0x40, 0);
        assert_eq!(graphs.unknown_changes, 1);
    }

    #[test]
    fn contents_of_children_are_forgotten_with_their_graph() {
        let mut graphs = two_and_one();
        graphs.has_rows = false;
        for (child, owner) in [(10, 2), (11, 2), (12, 3)] {
            change(&mut graphs, number::GRAPH_ADD_GRAPH, child, 1, 1);
            change(&mut graphs, number::GRAPH_ADD_CHILD, owner, child, 1);
        }
        assert_eq!(runs(&mut graphs, &[(2, launched(1, 6))]), [(0x10, 4), (0x20, 2)]);
        // contents 4 replace 3
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 4, 3, 1);
        change(&mut graphs, number::GRAPH_FORGET, 3, 4, 0);
        change(&mut graphs, number::GRAPH_FORGET, 2, 0, 0);
        let left = |graphs: &Graphs| {
            let mut left: Vec<_> = graphs.processes[&KEY].contents.keys().copied().collect();
            left.sort_unstable();
            left
        };
        assert_eq!(left(&graphs), [1, 4, 12]);
        change(&mut graphs, number::GRAPH_FORGET, 4, 0, 0);
        assert_eq!(left(&graphs), [1]);
        assert_eq!(graphs.processes[&KEY].kernels, 2);
    }

    #[test]
    fn kernels_without_room_are_counted_and_more_kernels_than_there_are_have_no_names() {
        let mut graphs = two_and_one();
        graphs.processes.get_mut(&KEY).unwrap().kernels = MOST_KERNELS;
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x30, 1);
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x10, 1);
        assert_eq!(graphs.refused, 1);
        // a record that removes a kernel was lost
        assert_eq!(runs(&mut graphs, &[(1, launched(2, 3))]), [(NO_HANDLE, 6)]);
    }

    #[test]
    fn hostile_numbers_neither_panic_nor_grow_without_bound() {
        let mut graphs = two_and_one();
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x10, i64::MAX);
        change(&mut graphs, number::GRAPH_ADD_KERNEL, 1, 0x20, i64::MIN);
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 1, 1, i64::MIN);
        change(&mut graphs, number::GRAPH_ADD_GRAPH, 2, 99, 1);
        runs(&mut graphs, &[(1, launched(u64::MAX, u64::MAX)), (2, launched(1, 0))]);
        let bad = gp_graph_record { change: 99, ..gp_graph_record::default() };
        assert!(!graphs.apply(&bad));
    }
}
