//! Memory as the events tell it.
//!
//! Live at the end is not in itself a leak; who judges leaks needs more than this.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::event::Name;
use gpuprobe_event::{Call, Class, HeldMemory, Tgid};
use serde::Serialize;

/// A number of allocations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// How many.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
}

impl Total {
    /// Both together.
    pub(crate) fn plus(self, more: Self) -> Self {
        Self { count: self.count.saturating_add(more.count), bytes: self.bytes.saturating_add(more.bytes) }
    }

    fn add(&mut self, bytes: u64) {
        self.count += 1;
        // sizes come out of a process's arguments, so their sum may be anything
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A total of one kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindTotal {
    /// `device`, `managed`, `pinned`...
    pub kind: Name,
    /// How much.
    pub total: Total,
}

/// What happened to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemorySummary {
    /// Allocations that succeeded.
    pub allocated: Total,
    /// Outermost allocations that failed.
    pub failed_allocations: u64,
    /// Frees of something known.
    pub freed: Total,
    /// Outermost frees that failed.
    pub failed_frees: u64,
    /// Frees of addresses nobody knew, as of memory allocated before the recording. Freeing NULL is nothing.
    pub unknown_frees: u64,
    /// What ended with the context that it was allocated in.
    pub freed_by_context: Total,
    /// What a process still held when it ended or ran another program: the driver frees that.
    pub freed_by_exit: Total,
    /// Live when the recording ended, by kind.
    pub live: Vec<KindTotal>,
}

/// Live memory by process and kind. Events bear the bytes that the kernel side counted once, in a table where a free
/// takes effect at its entry; so sums are right in whatever order calls of several threads are told, and no address
/// has to be followed here.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    live: HashMap<Tgid, BTreeMap<Name, Total>>,
    /// Of all processes.
    rows: usize,
    totals: MemorySummary,
}

/// Kinds of memory of processes that are told apart. More come only from files that nobody recorded.
const MOST_ROWS: usize = 1 << 16;
/// What all others are called.
const OTHERS: (Tgid, Name) = (Tgid(0), Name::Borrowed("(others)"));

impl Ledger {
    /// Notes a call; `ended` says that its process is already gone, and with it what the call gave.
    pub(crate) fn feed(&mut self, call: &Call, ended: bool) {
        let moves = matches!(call.class, Class::Memcpy | Class::Memset);
        if moves || call.duration_ns().is_none() {
            return;
        }
        if call.failed() {
            let outermost = u64::from(call.parent.is_none());
            match call.class {
                Class::Alloc | Class::HostRegister => self.totals.failed_allocations += outermost,
                Class::Free | Class::HostUnregister => self.totals.failed_frees += outermost,
                _ => {}
            }
            return;
        }
        if let Some(bytes) = call.effect.size {
            self.allocated(call, bytes, ended);
        }
        let frees = matches!(call.class, Class::Free | Class::HostUnregister) && call.parent.is_none();
        match call.effect.freed {
            Some(_) if !call.effect.ended.is_empty() => self.ended_with_context(call),
            Some(bytes) => self.freed(call, bytes),
            None => self.totals.unknown_frees += u64::from(frees && call.effect.ptr != Some(0)),
        }
    }

    /// A process ended or runs another program: what it held is free.
    pub(crate) fn clear(&mut self, pid: Tgid) {
        let held = self.live.remove(&pid).unwrap_or_default();
        self.rows -= held.len();
        for total in held.into_values() {
            self.totals.freed_by_exit = self.totals.freed_by_exit.plus(total);
        }
    }

    /// What a process holds, told anew.
    pub(crate) fn set(&mut self, pid: Tgid, held: &[HeldMemory]) {
        self.rows -= self.live.remove(&pid).map_or(0, |kinds| kinds.len());
        for HeldMemory { kind, allocations, bytes } in held {
            let row = self.row(pid, kind.clone());
            *row = row.plus(Total { count: *allocations, bytes: *bytes });
        }
    }

    /// What each process holds, by kind, those that hold most first.
    pub(crate) fn standing(&self) -> Vec<(Tgid, Vec<HeldMemory>)> {
        let of_kind = |(kind, total): (&Name, &Total)| HeldMemory {
            kind: kind.clone(),
            allocations: total.count,
            bytes: total.bytes,
        };
        let held = |kinds: &BTreeMap<Name, Total>| -> Vec<_> {
            kinds.iter().filter(|(_, total)| total.count > 0).map(of_kind).collect()
        };
        let mut all: Vec<_> = self.live.iter().map(|(pid, kinds)| (*pid, held(kinds))).collect();
        all.retain(|(_, held)| !held.is_empty());
        let bytes = |held: &[HeldMemory]| held.iter().fold(0_u64, |sum, kind| sum.saturating_add(kind.bytes));
        all.sort_by_key(|(pid, held)| (std::cmp::Reverse(bytes(held)), *pid));
        all
    }

    pub(crate) fn report(&self) -> MemorySummary {
        let mut kinds: BTreeMap<&Name, Total> = BTreeMap::new();
        for (kind, total) in self.live.values().flatten().filter(|(_, total)| total.count > 0) {
            let sum = kinds.entry(kind).or_default();
            *sum = sum.plus(*total);
        }
        let mut live: Vec<_> =
            kinds.into_iter().map(|(kind, total)| KindTotal { kind: kind.clone(), total }).collect();
        live.sort_by_key(|k| std::cmp::Reverse(k.total.bytes));
        MemorySummary { live, ..self.totals.clone() }
    }

    fn allocated(&mut self, call: &Call, bytes: u64, ended: bool) {
        self.totals.allocated.add(bytes);
        if ended {
            self.totals.freed_by_exit.add(bytes);
        } else {
            self.held(call).add(bytes);
        }
    }

    fn freed(&mut self, call: &Call, bytes: u64) {
        let count = call.effect.freed_allocations.unwrap_or(1);
        self.totals.freed = self.totals.freed.plus(Total { count, bytes });
        let held = self.held(call);
        // a trace that begins in the middle may free more than it allocated; that is not negative memory
        held.count = held.count.saturating_sub(count);
        held.bytes = held.bytes.saturating_sub(bytes);
    }

    fn ended_with_context(&mut self, call: &Call) {
        for HeldMemory { kind, allocations, bytes } in &call.effect.ended {
            let total = Total { count: *allocations, bytes: *bytes };
            self.totals.freed_by_context = self.totals.freed_by_context.plus(total);
            let held = self.row(call.tgid, kind.clone());
            held.count = held.count.saturating_sub(*allocations);
            held.bytes = held.bytes.saturating_sub(*bytes);
        }
    }

    fn held(&mut self, call: &Call) -> &mut Total {
        let kind = call.effect.kind.clone().unwrap_or(Name::Borrowed("unknown"));
        self.row(call.tgid, kind)
    }

    fn row(&mut self, tgid: Tgid, kind: Name) -> &mut Total {
        let is_known = self.live.get(&tgid).is_some_and(|kinds| kinds.contains_key(&kind));
        let (tgid, kind) = if is_known || self.rows < MOST_ROWS { (tgid, kind) } else { OTHERS };
        self.live.entry(tgid).or_default().entry(kind).or_insert_with(|| {
            self.rows += 1;
            Total::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;
    use crate::samples::{alloc, call, copy, free, inside, unfinished};

    fn fed(calls: &[Call]) -> MemorySummary {
        let mut ledger = Ledger::default();
        calls.iter().for_each(|c| ledger.feed(c, false));
        ledger.report()
    }

    fn device(count: u64, bytes: u64) -> Vec<KindTotal> {
        vec![KindTotal { kind: Name::Borrowed("device"), total: Total { count, bytes } }]
    }

    #[test]
    fn what_is_allocated_and_not_freed_is_live() {
        let report = fed(&[alloc(0x10, 100, 10), alloc(0x20, 30, 11), free(0x10, Some(100), 20)]);
        assert_eq!(report.allocated, Total { count: 2, bytes: 130 });
        assert_eq!(report.freed, Total { count: 1, bytes: 100 });
        assert_eq!(report.live, device(1, 30));
        assert_eq!(report.unknown_frees, 0);
    }

    #[test]
    fn freeing_null_is_nothing_and_an_unknown_pointer_is_counted() {
        let report = fed(&[free(0, None, 1), free(0x99, None, 2)]);
        assert_eq!(report.unknown_frees, 1);
        assert_eq!(report.freed, Total::default());
    }

    #[test]
    fn a_free_told_late_does_not_take_the_next_owner_of_the_address() {
        let report = fed(&[alloc(0x10, 100, 10), alloc(0x10, 50, 30), free(0x10, Some(100), 20)]);
        assert_eq!(report.live, device(1, 50));
        assert_eq!(report.freed, Total { count: 1, bytes: 100 });
    }

    #[test]
    fn failures_copies_and_unfinished_calls_hold_nothing() {
        let failed = Call { class: Class::Alloc, ..call(Api::Runtime, "cudaMalloc", 2) };
        let inner = inside(Call { class: Class::Alloc, ..call(Api::Driver, "cuMemAlloc_v2", 2) }, 1);
        let bad_free = Call { class: Class::Free, ..call(Api::Runtime, "cudaFree", 1) };
        let report =
            fed(&[inner, failed, bad_free, copy(Some("H2D"), 9, 0), unfinished(alloc(0x10, 100, 10))]);
        let expected = MemorySummary { failed_allocations: 1, failed_frees: 1, ..MemorySummary::default() };
        assert_eq!(report, expected);
    }

    #[test]
    fn one_call_can_end_several_allocations() {
        let mut unmap = free(0x10, Some(300), 20);
        unmap.effect.freed_allocations = Some(3);
        let report =
            fed(&[alloc(0x10, 100, 1), alloc(0x20, 100, 2), alloc(0x30, 100, 3), alloc(0x40, 50, 4), unmap]);
        assert_eq!((report.freed, report.live), (Total { count: 3, bytes: 300 }, device(1, 50)));
    }

    #[test]
    fn an_inner_free_is_not_counted_again() {
        let inner = free(0x10, None, 21);
        let report = fed(&[alloc(0x10, 100, 10), inside(inner, 1), free(0x10, Some(100), 20)]);
        assert_eq!((report.freed.count, report.unknown_frees), (1, 0));
    }

    #[test]
    fn more_than_can_be_counted_is_as_much_as_can_be() {
        let mut destroyed = free(0x10, Some(0), 20);
        let kind = Name::Borrowed("device");
        destroyed.effect.ended = vec![HeldMemory { kind, allocations: u64::MAX, bytes: u64::MAX }];
        let report = fed(&[destroyed.clone(), destroyed]);
        assert_eq!(report.freed_by_context, Total { count: u64::MAX, bytes: u64::MAX });
    }

    #[test]
    fn more_kinds_than_there_are_share_one() {
        let mut ledger = Ledger::default();
        let odd = |i: u32| {
            let mut call = Call { tgid: Tgid(i % 7 + 1), ..alloc(0x10, 5, 10) };
            call.effect.kind = Some(Name::Owned(i.to_string()));
            call
        };
        (0..MOST_ROWS as u32 + 100).for_each(|i| ledger.feed(&odd(i), false));
        assert_eq!(ledger.rows, MOST_ROWS + 1);
        let others = ledger.report().live.into_iter().find(|live| live.kind == OTHERS.1);
        assert_eq!(others.map(|live| live.total), Some(Total { count: 100, bytes: 500 }));
        (0..8).for_each(|pid| ledger.clear(Tgid(pid)));
        assert_eq!((ledger.rows, ledger.report().live.len()), (0, 0));
    }

    #[test]
    fn what_is_held_can_be_told_and_taken_in_again() {
        let mut before = Ledger::default();
        before.feed(&alloc(0x10, 100, 10), false);
        before.feed(&Call { tgid: Tgid(200), ..alloc(0x10, 700, 10) }, false);
        let held = before.standing();
        assert_eq!(held.iter().map(|(pid, _)| pid.0).collect::<Vec<_>>(), [200, 100]);
        let mut after = Ledger::default();
        for (pid, held) in &held {
            // twice is as good as once
            after.set(*pid, held);
            after.set(*pid, held);
        }
        assert_eq!(after.standing(), held);
        after.feed(&free(0x10, Some(100), 20), false);
        assert_eq!(after.report().live, device(1, 700));
        assert_eq!((after.rows, after.report().unknown_frees), (2, 0));
    }

    #[test]
    fn the_end_of_a_process_frees_what_it_held() {
        let mut ledger = Ledger::default();
        ledger.feed(&alloc(0x10, 100, 10), false);
        ledger.feed(&Call { tgid: Tgid(200), ..alloc(0x10, 7, 10) }, false);
        ledger.clear(Tgid(100));
        ledger.feed(&alloc(0x20, 5, 11), true);
        let report = ledger.report();
        assert_eq!(report.freed_by_exit, Total { count: 2, bytes: 105 });
        assert_eq!(report.live, device(1, 7));
    }
}
