use gpuprobe_event::counters::LATENCY_BUCKETS;
use gpuprobe_event::{Api, DeviceTime, Space, Tgid, catalogue};

use super::*;

fn process(tgid: u32, name: &str, exited_at_ns: u64, functions: &[&str]) -> ExitedProcess {
    let key = ProcessKey { tgid: Tgid(tgid), instance: 1 };
    let row = |function: &&str| CallCounts {
        process: key,
        function: catalogue().lookup(Api::Driver, None, function).unwrap().id,
        calls: u64::from(tgid),
        errors: 1,
        bytes: 2,
        total_ns: 3,
        driver: DeviceTime { calls: 1, ns: 1 },
        latency: [4; LATENCY_BUCKETS],
    };
    let memory = ProcessMemory {
        process: key,
        live: [LiveTotals { live_bytes: 5, live_allocations: 1 }; Space::ALL.len()],
        allocated_bytes: 10,
        freed_bytes: 5,
        allocations: 4,
        failed_allocations: 3,
        frees: 2,
        failed_frees: 1,
        unknown_frees: 1,
        replaced: 2,
        replaced_bytes: 0,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
        peak_bytes: 0,
        out_of_memory: 3,
    };
    let info =
        ProcessInfo { name: name.to_owned(), exited_at_ns: Some(exited_at_ns), ..ProcessInfo::default() };
    let calls = functions.iter().map(row).collect();
    ExitedProcess {
        key,
        info,
        calls,
        failures: Vec::new(),
        memory: Some(memory),
        gpu_ops: GpuOpRows::default(),
    }
}

/// Adds a process while no other process is running.
fn keep(exited: &mut ExitedProcesses, process: ExitedProcess) {
    exited.keep(process);
    exited.make_room(|_| false);
}

fn pids(exited: &ExitedProcesses) -> Vec<u32> {
    exited.iter().map(|p| p.pid.0).collect()
}

/// A name, the number of processes with it, and their calls by function.
type Past<'a> = (&'a str, u64, Vec<(&'a str, u64)>);

fn past(exited: &ExitedProcesses) -> Vec<Past<'_>> {
    let calls = |p: &PastProcesses| p.functions.iter().map(|f| (f.function, f.calls)).collect();
    exited.past().map(|p| (p.name.as_str(), p.processes, calls(p))).collect()
}

#[test]
fn a_process_is_listed_for_five_minutes_and_then_stays_in_the_sums() {
    let mut exited = ExitedProcesses::default();
    exited.keep(process(1, "a", 10, &["cuInit"]));
    exited.keep(process(2, "a", 20, &["cuInit"]));
    let totals = exited.totals();
    assert_eq!((totals.allocations, totals.frees, totals.replaced), (8, 6, 4));
    assert_eq!(
        (totals.live_allocations, totals.freed_with_context_allocations, totals.freed_with_context_bytes),
        (0, 12, 60)
    );
    exited.forget_old(LISTED_AFTER_EXIT_NS + 9, |_| false);
    assert_eq!((pids(&exited), past(&exited)), (vec![1, 2], vec![]));
    exited.forget_old(LISTED_AFTER_EXIT_NS + 10, |_| false);
    assert_eq!((pids(&exited), past(&exited)), (vec![2], vec![("a", 1, vec![("cuInit", 1)])]));
    assert_eq!((exited.totals(), exited.forgotten_early()), (totals, 0));
}

#[test]
fn memory_of_a_later_run_is_shown_if_the_first_one_had_none() {
    let mut exited = ExitedProcesses::bounded(1);
    exited.take_summed_up();
    let first = ExitedProcess { memory: None, ..process(7, "a", 1, &["cuInit"]) };
    exited.keep(first);
    let mut second = process(7, "a", 2, &["cuInit"]);
    second.key.instance = 2;
    exited.keep(second);
    exited.make_room(|_| false);
    assert!(exited.take_summed_up().is_empty(), "the second run shares the series");
    exited.forget_old(LISTED_AFTER_EXIT_NS + 2, |_| false);
    let summed_up = exited.take_summed_up();
    assert_eq!(summed_up.len(), 1);
    let memory = &summed_up[0].memory;
    assert_eq!((memory.live.is_empty(), memory.allocated_bytes), (false, 10));
}

#[test]
fn the_oldest_are_moved_to_the_sums_when_there_is_no_room() {
    let mut exited = ExitedProcesses::bounded(1);
    keep(&mut exited, process(1, "b", 0, &["cuInit", "cuMemAlloc_v2"]));
    keep(&mut exited, process(10, "a", 0, &["cuInit"]));
    // a snapshot with the current sums
    let shown: Vec<_> = exited.past().cloned().collect();
    keep(&mut exited, process(100, "b", 0, &["cuMemFree_v2", "cuInit"]));
    keep(&mut exited, process(1000, "b", 0, &["cuInit"]));
    let b = vec![("cuInit", 101), ("cuMemAlloc_v2", 1), ("cuMemFree_v2", 100)];
    assert_eq!(past(&exited), [("a", 1, vec![("cuInit", 10)]), ("b", 2, b)]);
    assert_eq!((pids(&exited), exited.forgotten_early()), (vec![1000], 3));
    let sums = exited.past().last().unwrap();
    let init = &sums.functions[0];
    assert_eq!((init.errors, init.bytes, init.total_ns), (2, 4, 6));
    assert_eq!(init.latency, [8; LATENCY_BUCKETS]);
    let memory = MemoryCounts {
        live: Vec::new(),
        allocated_bytes: 20,
        freed_bytes: 10,
        unknown_frees: 2,
        replaced: 4,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
        peak_bytes: 0,
        out_of_memory: 6,
    };
    assert_eq!(sums.memory, memory);
    assert_eq!(shown[0].processes, 1, "a snapshot does not change");
}

#[test]
fn names_beyond_the_bound_share_a_sum() {
    let mut exited = ExitedProcesses::bounded(0);
    for tgid in 0..200 {
        keep(&mut exited, process(tgid, &format!("name{tgid:03}"), 0, &["cuInit"]));
    }
    keep(&mut exited, process(1, "name000", 0, &["cuInit"]));
    let past = past(&exited);
    assert_eq!(past.len(), MOST_NAMES + 1);
    assert_eq!(past[0], ("name000", 2, vec![("cuInit", 1)]));
    let all: u64 = past.iter().flat_map(|(_, _, calls)| calls).map(|(_, n)| n).sum();
    assert_eq!(all, (0..200).sum::<u64>() + 1);
    let other = past.iter().find(|(name, ..)| *name == OTHER).unwrap();
    assert_eq!(other.1, 200 - MOST_NAMES as u64);
}

#[test]
fn exited_processes_have_no_live_memory_and_those_without_rows_are_ignored() {
    let mut exited = ExitedProcesses::default();
    exited.keep(process(1, "a", 0, &["cuInit"]));
    exited.keep(ExitedProcess { memory: None, ..process(2, "a", 0, &[]) });
    assert_eq!(pids(&exited), [1]);
    let live = &exited.iter().next().unwrap().memory.live;
    assert_eq!(live.len(), Space::ALL.len());
    assert!(live.iter().all(|live| (live.amount.bytes, live.amount.allocations) == (0, 0)));
}

fn calls_of(exited: &ExitedProcesses, pid: u32) -> u64 {
    let of_pid = exited.iter().filter(|p| p.pid.0 == pid);
    of_pid.flat_map(|p| &p.functions).map(|f| f.calls).sum()
}

/// A run with the same pid and name but another instance.
fn run(instance: u64, exited_at_ns: u64) -> ExitedProcess {
    let mut run = process(7, "a", exited_at_ns, &["cuInit"]);
    run.key.instance = instance;
    run
}

#[test]
fn earlier_runs_are_listed_until_the_last_run_is_dropped() {
    for most in [0, 2, 100] {
        let mut exited = ExitedProcesses::bounded(most);
        let mut sum = 0;
        for instance in 1..=5 {
            exited.keep(run(instance, instance));
            // the next run has started, with the same labels
            exited.make_room(|process| process.pid.0 == 7);
            exited.forget_old(LISTED_AFTER_EXIT_NS + instance - 1, |process| process.pid.0 == 7);
            sum += 7;
            assert_eq!((calls_of(&exited, 7), past(&exited)), (sum, vec![]), "{most}");
        }
        assert!(exited.iter().count() <= most.min(1) + 1, "earlier runs take the room of one");
        // the last run exited without any rows
        exited.forget_old(LISTED_AFTER_EXIT_NS + 5, |_| false);
        assert_eq!((calls_of(&exited, 7), past(&exited)), (0, vec![("a", 5, vec![("cuInit", 35)])]));
        assert_eq!(exited.past().next().unwrap().memory.allocated_bytes, 50);
        assert!(exited.earlier.is_empty() && exited.pids.is_empty());
    }
}

#[test]
fn listed_runs_keep_earlier_runs_with_the_same_labels_only() {
    let mut exited = ExitedProcesses::default();
    exited.keep(run(1, 10));
    exited.keep(process(7, "b", 10, &["cuInit"]));
    exited.keep(run(2, 20));
    exited.forget_old(LISTED_AFTER_EXIT_NS + 10, |_| false);
    assert_eq!((calls_of(&exited, 7), past(&exited)), (14, vec![("b", 1, vec![("cuInit", 7)])]));
    let shown: Vec<_> = exited.with_pid(Tgid(7)).map(|p| p.instance).collect();
    assert_eq!(shown, [2, 1]);
    exited.forget_old(LISTED_AFTER_EXIT_NS + 20, |_| false);
    let a = ("a", 2, vec![("cuInit", 14)]);
    assert_eq!((calls_of(&exited, 7), past(&exited)), (0, vec![a, ("b", 1, vec![("cuInit", 7)])]));
    assert_eq!(exited.forgotten_early(), 0);
}
