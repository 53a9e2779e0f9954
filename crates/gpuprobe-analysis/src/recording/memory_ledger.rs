//! Memory allocated, freed and live, computed from events.
//!
//! Memory that is live at the end is not necessarily a leak; see [`crate::leaks`].

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::{Allocation, Call, Class, Effect, MemoryAmount, Replaced, Space, Tgid};
pub use gpuprobe_event::{MemorySummary, Total};

/// Live memory of one kind. Records of several threads may be out of order. If a free is read before its allocation,
/// the balance is negative in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Balance {
    count: i128,
    bytes: i128,
}

impl Balance {
    fn add(&mut self, more: Total) {
        self.count += i128::from(more.count);
        self.bytes += i128::from(more.bytes);
    }

    fn subtract(&mut self, less: Total) {
        self.count -= i128::from(less.count);
        self.bytes -= i128::from(less.bytes);
    }
}

type Kinds = BTreeMap<Space, Balance>;

/// Live memory by process and kind. Each event carries the bytes that the BPF side added to or removed from its
/// table, where a free takes effect at its entry. So the sums are correct in any order of the events, and no
/// addresses have to be tracked here.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    live: HashMap<Tgid, Kinds>,
    /// Live memory of processes at their exit.
    at_exit: Kinds,
    totals: MemorySummary,
}

/// Processes with a balance of their own. A recorded trace has fewer; the bound is for forged files.
const MOST_PROCESSES: usize = 1 << 16;
/// The pid under which all others are summed.
const OTHERS: Tgid = Tgid(0);

impl Ledger {
    /// Takes in a call. `has_exited`: its process has already exited, so its memory is already freed.
    pub(crate) fn feed(&mut self, call: &Call, has_exited: bool) {
        if call.duration_ns().is_some() && call.failed() {
            self.failed(call);
        }
        if !call.took_effect() {
            return;
        }
        match &call.effect {
            Effect::Alloc(allocation) => self.allocated(call.tgid, allocation, has_exited),
            Effect::Free(free) => match &free.freed {
                Some(freed) => {
                    self.totals.freed = self.totals.freed.plus(freed.into());
                    self.balances(call.tgid, has_exited)
                        .entry(freed.kind)
                        .or_default()
                        .subtract(freed.into());
                }
                None => {
                    let is_not_null = free.address.is_some_and(|address| address != 0);
                    self.totals.unknown_frees += u64::from(is_not_null && !call.nested);
                }
            },
            Effect::ContextEnd(memory) => {
                for memory in memory {
                    self.totals.freed_with_context = self.totals.freed_with_context.plus(memory.into());
                    self.balances(call.tgid, has_exited)
                        .entry(memory.kind)
                        .or_default()
                        .subtract(memory.into());
                }
            }
            _ => {}
        }
    }

    /// Moves the live memory of a process that exited or runs another program to `at_exit`.
    pub(crate) fn clear(&mut self, pid: Tgid) {
        for (kind, live) in self.live.remove(&pid).unwrap_or_default() {
            let sum = self.at_exit.entry(kind).or_default();
            *sum = Balance { count: sum.count + live.count, bytes: sum.bytes + live.bytes };
        }
    }

    /// Replaces the live memory of a process.
    pub(crate) fn set(&mut self, pid: Tgid, live: &[MemoryAmount]) {
        self.live.remove(&pid);
        let kinds = self.balances(pid, false);
        live.iter().for_each(|memory| kinds.entry(memory.kind).or_default().add(memory.into()));
        let bytes = bytes_in(kinds);
        self.raise_peak(bytes);
    }

    /// The live memory of each process by kind, sorted by bytes, largest first.
    pub(crate) fn live_by_process(&self) -> Vec<(Tgid, Vec<MemoryAmount>)> {
        let mut all: Vec<_> = self.live.iter().map(|(pid, kinds)| (*pid, amounts(kinds))).collect();
        all.retain(|(_, live)| !live.is_empty());
        let bytes =
            |live: &[MemoryAmount]| live.iter().fold(0_u64, |sum, kind| sum.saturating_add(kind.bytes));
        all.sort_by_key(|(pid, live)| (std::cmp::Reverse(bytes(live)), *pid));
        all
    }

    pub(crate) fn report(&self) -> MemorySummary {
        let mut all = Kinds::new();
        for (kind, live) in self.live.values().flatten() {
            let sum = all.entry(*kind).or_default();
            *sum = Balance { count: sum.count + live.count, bytes: sum.bytes + live.bytes };
        }
        let largest_first = |kinds: &Kinds| {
            let mut amounts = amounts(kinds);
            amounts.sort_by_key(|memory| std::cmp::Reverse(memory.bytes));
            amounts
        };
        let freed_by_exit = largest_first(&self.at_exit);
        MemorySummary { live: largest_first(&all), freed_by_exit, ..self.totals.clone() }
    }

    fn failed(&mut self, call: &Call) {
        let outermost = u64::from(!call.nested);
        match call.class {
            Class::Alloc | Class::HostRegister => self.totals.failed_allocations += outermost,
            Class::Free | Class::HostUnregister => self.totals.failed_frees += outermost,
            _ => {}
        }
    }

    fn allocated(&mut self, pid: Tgid, allocation: &Allocation, has_exited: bool) {
        let Allocation { bytes, kind, replaced, live_bytes, .. } = *allocation;
        self.totals.allocated.add(bytes);
        let kinds = self.balances(pid, has_exited);
        kinds.entry(kind).or_default().add(Total { count: 1, bytes });
        if let Some(Replaced { bytes, kind }) = replaced {
            kinds.entry(kind).or_default().subtract(Total { count: 1, bytes });
        }
        let computed = bytes_in(kinds);
        if let Some(Replaced { bytes, .. }) = replaced {
            self.totals.replaced.add(bytes);
        }
        // only the BPF side knows the live bytes at that instant: records of several threads may be out of order
        if let Some(bytes) = live_bytes {
            self.raise_peak(bytes);
        } else if !has_exited {
            self.raise_peak(computed);
        }
    }

    fn raise_peak(&mut self, bytes: u64) {
        self.totals.peak_bytes = self.totals.peak_bytes.max(bytes);
    }

    /// The balances of a running process, or the sum of those that exited.
    fn balances(&mut self, pid: Tgid, has_exited: bool) -> &mut Kinds {
        if has_exited {
            return &mut self.at_exit;
        }
        let is_known = self.live.len() < MOST_PROCESSES || self.live.contains_key(&pid);
        self.live.entry(if is_known { pid } else { OTHERS }).or_default()
    }
}

/// Saturates: sizes are arguments of the process, so their sum may overflow.
fn unsigned(n: i128) -> u64 {
    u64::try_from(n.max(0)).unwrap_or(u64::MAX)
}

fn bytes_in(kinds: &Kinds) -> u64 {
    unsigned(kinds.values().map(|live| live.bytes).sum())
}

/// The kinds with live allocations.
fn amounts(kinds: &Kinds) -> Vec<MemoryAmount> {
    let amount = |(kind, live): (&Space, &Balance)| MemoryAmount {
        kind: *kind,
        allocations: unsigned(live.count),
        bytes: unsigned(live.bytes),
    };
    kinds.iter().filter(|(_, live)| live.count > 0).map(amount).collect()
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::CopyDirection;
    use gpuprobe_event::{Api, Free};

    use super::*;
    use crate::samples::{alloc, call, copy, free, inside, nested, unfinished};

    fn fed(calls: &[Call]) -> MemorySummary {
        let mut ledger = Ledger::default();
        calls.iter().for_each(|c| ledger.feed(c, false));
        ledger.report()
    }

    fn device(allocations: u64, bytes: u64) -> Vec<MemoryAmount> {
        vec![MemoryAmount { kind: Space::Device, allocations, bytes }]
    }

    fn total(count: u64, bytes: u64) -> Total {
        Total { count, bytes }
    }

    #[test]
    fn allocated_memory_is_live_until_it_is_freed() {
        let report = fed(&[alloc(0x10, 100, 10), alloc(0x20, 30, 11), free(0x10, Some(100), 20)]);
        assert_eq!(report.allocated, Total { count: 2, bytes: 130 });
        assert_eq!(report.freed, Total { count: 1, bytes: 100 });
        assert_eq!(report.live, device(1, 30));
        assert_eq!(report.unknown_frees, 0);
    }

    #[test]
    fn freeing_null_is_not_counted_and_freeing_an_unknown_pointer_is() {
        let report = fed(&[free(0, None, 1), free(0x99, None, 2)]);
        assert_eq!(report.unknown_frees, 1);
        assert_eq!(report.freed, Total::default());
    }

    #[test]
    fn a_late_free_does_not_free_the_next_allocation_at_its_address() {
        let report = fed(&[alloc(0x10, 100, 10), alloc(0x10, 50, 30), free(0x10, Some(100), 20)]);
        assert_eq!(report.live, device(1, 50));
        assert_eq!(report.freed, Total { count: 1, bytes: 100 });
    }

    #[test]
    fn failures_copies_and_unfinished_calls_allocate_nothing() {
        let failed = Call { class: Class::Alloc, ..call(Api::Runtime, "cudaMalloc", 2) };
        let inner = nested(Call { class: Class::Alloc, ..call(Api::Driver, "cuMemAlloc_v2", 2) }, 1);
        let bad_free = Call { class: Class::Free, ..call(Api::Runtime, "cudaFree", 1) };
        let copied = copy(CopyDirection::HostToDevice, 9, 0);
        let report = fed(&[inner, failed, bad_free, copied, unfinished(alloc(0x10, 100, 10))]);
        let expected = MemorySummary { failed_allocations: 1, failed_frees: 1, ..MemorySummary::default() };
        assert_eq!(report, expected);
    }

    #[test]
    fn a_failure_counts_at_the_outermost_call_of_its_kind_inside_any_other_call() {
        let failed = |class, name| Call { class, ..call(Api::Runtime, name, 2) };
        let calls = [
            nested(failed(Class::Alloc, "cuMemAlloc_v2"), 2),
            inside(failed(Class::Alloc, "cudaMalloc"), 1),
            inside(failed(Class::Free, "cudaFree"), 1),
            inside(failed(Class::HostRegister, "cudaHostRegister"), 1),
            call(Api::Nccl, "ncclCommInitRank", 1),
        ];
        let report = fed(&calls);
        assert_eq!((report.failed_allocations, report.failed_frees), (2, 1));
        let unknown = fed(&[inside(free(0x99, None, 1), 1), nested(free(0x99, None, 1), 1)]);
        assert_eq!(unknown.unknown_frees, 1);
    }

    #[test]
    fn a_replaced_allocation_is_not_freed() {
        let mut again = alloc(0x10, 30, 20);
        let Effect::Alloc(allocation) = &mut again.effect else { panic!("not an allocation") };
        allocation.replaced = Some(Replaced { bytes: 100, kind: allocation.kind });
        let report = fed(&[alloc(0x10, 100, 10), again]);
        assert_eq!((report.replaced, report.freed), (total(1, 100), Total::default()));
        assert_eq!((report.live, report.peak_bytes), (device(1, 30), 100));
    }

    #[test]
    fn one_call_can_free_several_allocations() {
        let mut unmap = free(0x10, Some(300), 20);
        let freed = Some(MemoryAmount { kind: Space::Device, allocations: 3, bytes: 300 });
        unmap.effect = Effect::Free(Free { freed, ..Free::default() });
        let report =
            fed(&[alloc(0x10, 100, 1), alloc(0x20, 100, 2), alloc(0x30, 100, 3), alloc(0x40, 50, 4), unmap]);
        assert_eq!((report.freed, report.live), (total(3, 300), device(1, 50)));
    }

    #[test]
    fn an_inner_free_is_not_counted_again() {
        let inner = free(0x10, None, 21);
        let report = fed(&[alloc(0x10, 100, 10), nested(inner, 1), free(0x10, Some(100), 20)]);
        assert_eq!((report.freed.count, report.unknown_frees), (1, 0));
    }

    #[test]
    fn the_peak_is_the_highest_live_memory_of_one_process() {
        let mut ledger = Ledger::default();
        ledger.feed(&alloc(0x10, 100, 10), false);
        ledger.feed(&Call { tgid: Tgid(200), ..alloc(0x10, 30, 11) }, false);
        ledger.feed(&free(0x10, Some(100), 12), false);
        ledger.feed(&alloc(0x10, 50, 13), false);
        assert_eq!(ledger.report().peak_bytes, 100);
        let mut with_live = alloc(0x20, 1, 14);
        let Effect::Alloc(allocation) = &mut with_live.effect else { panic!("not an allocation") };
        allocation.live_bytes = Some(130);
        ledger.feed(&with_live, false);
        assert_eq!(ledger.report().peak_bytes, 130, "the figure of the BPF side is used");
        // implausible sizes
        (0..3).for_each(|i| ledger.feed(&Call { tgid: Tgid(i), ..alloc(1, u64::MAX, 15) }, false));
        (0..300).for_each(|i| ledger.clear(Tgid(i)));
        let report = ledger.report();
        assert_eq!((report.peak_bytes, report.freed_by_exit[0].bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_free_before_its_allocation_or_after_the_exit_leaves_nothing_live() {
        let report = fed(&[free(0x10, Some(100), 20), alloc(0x10, 100, 10)]);
        assert_eq!((report.live, report.freed), (vec![], total(1, 100)));
        let mut ledger = Ledger::default();
        ledger.feed(&alloc(0x10, 100, 10), false);
        ledger.clear(Tgid(100));
        ledger.feed(&free(0x10, Some(100), 20), true);
        let report = ledger.report();
        assert_eq!((report.freed_by_exit, report.freed), (vec![], total(1, 100)));
    }

    #[test]
    fn sums_saturate() {
        let mut destroyed = free(0x10, None, 20);
        destroyed.effect = Effect::ContextEnd(device(u64::MAX, u64::MAX));
        let report = fed(&[destroyed.clone(), destroyed]);
        assert_eq!(report.freed_with_context, total(u64::MAX, u64::MAX));
    }

    #[test]
    fn processes_beyond_the_bound_share_one_balance() {
        let mut ledger = Ledger::default();
        let of = |pid: u32| Call { tgid: Tgid(pid + 1), ..alloc(0x10, 5, 10) };
        let most = u32::try_from(MOST_PROCESSES).unwrap();
        (0..most + 100).for_each(|i| ledger.feed(&of(i), false));
        assert_eq!(ledger.live.len(), MOST_PROCESSES + 1);
        assert_eq!(ledger.live[&OTHERS][&Space::Device], Balance { count: 100, bytes: 500 });
        assert_eq!(ledger.report().live, device(u64::from(most) + 100, 5 * (u64::from(most) + 100)));
        (0..=most).for_each(|pid| ledger.clear(Tgid(pid)));
        assert_eq!((ledger.live.len(), ledger.report().live.len()), (0, 0));
    }

    #[test]
    fn live_memory_can_be_saved_and_restored() {
        let mut before = Ledger::default();
        before.feed(&alloc(0x10, 100, 10), false);
        before.feed(&Call { tgid: Tgid(200), ..alloc(0x10, 700, 10) }, false);
        let saved = before.live_by_process();
        assert_eq!(saved.iter().map(|(pid, _)| pid.0).collect::<Vec<_>>(), [200, 100]);
        let mut after = Ledger::default();
        for (pid, live) in &saved {
            // setting it twice changes nothing
            after.set(*pid, live);
            after.set(*pid, live);
        }
        assert_eq!(after.live_by_process(), saved);
        after.feed(&free(0x10, Some(100), 20), false);
        assert_eq!(after.report().live, device(1, 700));
        assert_eq!(after.report().unknown_frees, 0);
    }

    #[test]
    fn the_exit_of_a_process_frees_its_memory() {
        let mut ledger = Ledger::default();
        ledger.feed(&alloc(0x10, 100, 10), false);
        ledger.feed(&Call { tgid: Tgid(200), ..alloc(0x10, 7, 10) }, false);
        ledger.clear(Tgid(100));
        ledger.feed(&alloc(0x20, 5, 11), true);
        let report = ledger.report();
        assert_eq!(report.freed_by_exit, device(2, 105));
        assert_eq!(report.live, device(1, 7));
    }
}
