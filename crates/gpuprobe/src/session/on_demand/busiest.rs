//! The process that calls CUDA most, for a recording that names none.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::Tgid;

/// Calls are compared with those of at least this long ago, and at most about twice as long.
const WINDOW: Duration = Duration::from_secs(5);

/// Calls of each process until now. Processes that share a pid differ by their instance.
type Calls = HashMap<(Tgid, u64), u64>;

/// Compares the calls of processes with those some seconds ago.
#[derive(Debug)]
pub(super) struct Busiest {
    /// What the next comparison will be with, and since when.
    next: (Instant, Calls),
    before: Calls,
}

impl Busiest {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: (now, Calls::new()), before: Calls::new() }
    }

    /// The running process with the most calls in the last seconds; if there were none, with the most calls at all.
    pub(super) fn of(&mut self, snapshot: &Snapshot, now: Instant) -> Option<Tgid> {
        let running = snapshot.processes.iter().filter(|process| process.exited_at_ns.is_none());
        let calls: Calls = running
            .map(|process| {
                let calls = process.functions.iter().map(|function| function.calls).sum();
                ((process.pid, process.instance), calls)
            })
            .collect();
        let recent = |key, calls: &u64| calls.saturating_sub(self.before.get(key).copied().unwrap_or(0));
        // the lowest pid of equals, so that the choice does not depend on chance
        let busiest = calls
            .iter()
            .filter(|(_, calls)| **calls > 0)
            .max_by_key(|(key, calls)| (recent(key, calls), **calls, std::cmp::Reverse(key.0)))
            .map(|((pid, _), _)| *pid);
        if now.duration_since(self.next.0) >= WINDOW {
            self.before = std::mem::replace(&mut self.next, (now, calls)).1;
        }
        busiest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuprobe_analysis::snapshot::FunctionCounts;
    use gpuprobe_analysis::{ProcessInfo, ProcessSnapshot};
    use gpuprobe_event::counters::{LATENCY_BUCKETS, ProcessKey};
    use gpuprobe_event::{Api, Class};

    use super::*;

    fn function(calls: u64) -> FunctionCounts {
        FunctionCounts {
            api: Api::Driver,
            function: "cuMemAlloc_v2",
            class: Class::Alloc,
            is_instant: false,
            calls,
            errors: 0,
            bytes: 0,
            total_ns: 0,
            driver: Default::default(),
            latency: [0; LATENCY_BUCKETS],
        }
    }

    fn snapshot(processes: &[(u32, u64, u64, bool)]) -> Snapshot {
        let process = |&(pid, instance, calls, is_running): &(u32, u64, u64, bool)| {
            let key = ProcessKey { tgid: Tgid(pid), instance };
            let exited_at_ns = (!is_running).then_some(1);
            let info = ProcessInfo { name: "p".to_owned(), exited_at_ns, ..ProcessInfo::default() };
            let functions = vec![function(calls)];
            Arc::new(ProcessSnapshot { functions, ..ProcessSnapshot::new(key, &info, &[], None) })
        };
        Snapshot { processes: processes.iter().map(process).collect(), ..Snapshot::default() }
    }

    #[test]
    fn recent_calls_count_first_and_then_all() {
        let start = Instant::now();
        let mut busiest = Busiest::new(start);
        let mut at = |seconds, processes: &[_]| {
            busiest.of(&snapshot(processes), start + Duration::from_secs(seconds)).map(|tgid| tgid.0)
        };
        assert_eq!(at(0, &[]), None);
        assert_eq!(at(0, &[(7, 1, 0, true)]), None, "it has called nothing");
        assert_eq!(at(1, &[(7, 1, 10, true), (8, 1, 20, true)]), Some(8));
        assert_eq!(at(5, &[(7, 1, 10, true), (8, 1, 20, true)]), Some(8));
        assert_eq!(at(10, &[(7, 1, 15, true), (8, 1, 21, true)]), Some(8), "the first seconds still count");
        assert_eq!(at(11, &[(7, 1, 16, true), (8, 1, 21, true)]), Some(7), "8 made one call in six seconds");
        assert_eq!(at(12, &[(7, 1, 16, false), (8, 1, 21, true)]), Some(8), "7 has exited");
        assert_eq!(at(13, &[(7, 2, 4, true), (8, 1, 21, true)]), Some(7), "another process with this pid");
        assert_eq!(at(14, &[(9, 1, 21, true), (8, 1, 21, true)]), Some(9), "new");
    }
}
