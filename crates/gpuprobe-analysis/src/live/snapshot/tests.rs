use gpuprobe_event::counters::{GraphCounts, LATENCY_BUCKETS, LiveTotals};
use gpuprobe_event::{
    Api, DeviceTime, FunctionId, GpuNumbers, LossCause, MemoryAmount, SiteId, Space, catalogue,
};

use super::*;
use crate::live::exited::{ExitedProcess, LISTED_AFTER_EXIT_NS};

const SECOND: u64 = 1_000_000_000;

fn key(tgid: u32) -> ProcessKey {
    ProcessKey { tgid: Tgid(tgid), instance: 1 }
}

fn counts(process: ProcessKey, function: FunctionId, calls: u64) -> CallCounts {
    let mut latency = [0; LATENCY_BUCKETS];
    latency[10] = calls;
    let (bytes, total_ns, driver) = (10 * calls, 100 * calls, DeviceTime { calls: 1, ns: 7 });
    CallCounts { process, function, calls, errors: 1, bytes, total_ns, driver, latency }
}

fn memory(process: ProcessKey) -> ProcessMemory {
    let mut live = [LiveTotals::default(); Space::ALL.len()];
    live[Space::Pinned as usize] = LiveTotals { live_bytes: 4096, live_allocations: 1 };
    ProcessMemory {
        process,
        live,
        allocated_bytes: 8192,
        freed_bytes: 4096,
        allocations: 2,
        failed_allocations: 3,
        frees: 1,
        failed_frees: 5,
        unknown_frees: 7,
        replaced: 1,
        replaced_bytes: 0,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
        peak_bytes: 0,
        out_of_memory: 0,
    }
}

fn built(calls: &[CallCounts], memory: &[ProcessMemory], exits: &[(ProcessKey, u64)]) -> Snapshot {
    let info = |(key, exited_at_ns)| {
        (key, ProcessInfo { name: "app".to_owned(), exited_at_ns, ..ProcessInfo::default() })
    };
    let running = calls.iter().map(|row| row.process).chain(memory.iter().map(|row| row.process));
    let known = running.map(|key| (key, None)).chain(exits.iter().map(|(key, at)| (*key, Some(*at))));
    let mut losses = Losses::default();
    losses.add(LossCause::LiveFull, 4);
    Snapshot::build(&Inputs {
        failures: &[],
        contexts: &[],
        gpus: &[],
        calls,
        memory,
        allocations: &[],
        gpu_ops: &GpuOpRows::default(),
        call_sites: &[],
        processes: &known.map(info).collect(),
        exited: &ExitedProcesses::default(),
        losses: &losses,
        libraries: &[],
        skipped: &[],
        unix_seconds: 1.5,
    })
}

fn function(name: &str) -> FunctionId {
    catalogue().lookup(Api::Runtime, None, name).unwrap().id
}

#[test]
fn signatures_of_one_name_are_one_function() {
    let mut by_name: HashMap<(Api, &str), Vec<FunctionId>> = HashMap::new();
    for f in catalogue().functions() {
        by_name.entry((f.api, f.name)).or_default().push(f.id);
    }
    let ids = by_name.into_values().find(|ids| ids.len() == 2).unwrap();
    let snapshot = built(&[counts(key(1), ids[0], 3), counts(key(1), ids[1], 4)], &[], &[]);
    let functions = &snapshot.processes[0].functions;
    assert_eq!(functions.len(), 1);
    assert_eq!((functions[0].calls, functions[0].errors, functions[0].bytes), (7, 2, 70));
    assert_eq!((functions[0].total_ns, functions[0].latency[10]), (700, 7));
}

#[test]
fn functions_and_processes_are_sorted_and_unknown_names_are_marked() {
    let calls = [
        counts(key(2), function("cudaMemcpy"), 1),
        counts(key(2), function("cudaFree"), 1),
        counts(key(1), FunctionId(u32::MAX), 1),
    ];
    let snapshot = built(&calls, &[], &[]);
    let got: Vec<_> = snapshot
        .processes
        .iter()
        .map(|p| (p.pid.0, p.functions.iter().map(|f| f.function).collect::<Vec<_>>()))
        .collect();
    assert_eq!(got, [(1, vec!["unknown"]), (2, vec!["cudaFree", "cudaMemcpy"])]);
}

#[test]
fn memory_is_listed_by_kind_and_summed_over_processes() {
    let snapshot = built(&[], &[memory(key(1)), memory(key(2))], &[]);
    let live = &snapshot.processes[1].memory.live;
    assert_eq!(live.len(), Space::ALL.len());
    let amount = MemoryAmount { kind: Space::Pinned, bytes: 4096, allocations: 1 };
    assert_eq!(live[2], GpuMemory { gpu: None, amount });
    let totals = MemoryTotals {
        allocations: 4,
        failed_allocations: 6,
        frees: 16,
        failed_frees: 10,
        unknown_frees: 14,
        replaced: 2,
        live_allocations: 2,
        live_bytes: 8192,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
    };
    assert_eq!(snapshot.totals, totals);
}

#[test]
fn an_exited_process_is_shown_until_its_rows_are_removed_and_has_no_live_memory() {
    let rows = [memory(key(1)), memory(key(2))];
    let snapshot = built(&[], &rows, &[(key(1), 700 * SECOND), (key(2), 701 * SECOND)]);
    let pids: Vec<_> = snapshot.processes.iter().map(|p| p.pid.0).collect();
    assert_eq!(pids, [1, 2], "regardless of the time since the exit");
    let totals = snapshot.totals;
    assert_eq!((totals.allocations, totals.live_allocations, totals.live_bytes), (4, 0, 0));
    assert_eq!(
        (totals.freed_with_context_allocations, totals.freed_with_context_bytes),
        (2, 8192),
        "freed by the exit"
    );
}

#[test]
fn exited_processes_are_shown_and_the_totals_never_decrease() {
    let mut exited = ExitedProcesses::default();
    let info = |at| ProcessInfo { name: "app".to_owned(), exited_at_ns: Some(at), ..ProcessInfo::default() };
    for (tgid, at) in [(1, 10), (2, 20)] {
        exited.keep(ExitedProcess {
            key: key(tgid),
            info: info(at),
            calls: vec![counts(key(tgid), function("cudaFree"), 3)],
            failures: Vec::new(),
            memory: Some(memory(key(tgid))),
            gpu_ops: GpuOpRows::default(),
        });
    }
    let snapshot = |exited: &ExitedProcesses| {
        Snapshot::build(&Inputs {
            failures: &[],
            contexts: &[],
            gpus: &[],
            calls: &[counts(key(3), function("cudaFree"), 4)],
            memory: &[memory(key(3))],
            allocations: &[],
            gpu_ops: &GpuOpRows::default(),
            call_sites: &[],
            processes: &HashMap::from([(key(3), ProcessInfo::default())]),
            exited,
            losses: &Losses::default(),
            libraries: &[],
            skipped: &[],
            unix_seconds: 1.5,
        })
    };
    let all = snapshot(&exited);
    let shown: Vec<_> =
        all.processes.iter().map(|p| (p.pid.0, p.exited_at_ns, p.functions[0].calls)).collect();
    assert_eq!(shown, [(1, Some(10), 3), (2, Some(20), 3), (3, None, 4)]);
    assert_eq!(all.processes[0].memory.live[2].amount.bytes, 0);
    assert_eq!(all.processes[0].memory.allocated_bytes, 8192);
    exited.forget_old(LISTED_AFTER_EXIT_NS + 15, |_| false);
    let later = snapshot(&exited);
    assert_eq!(later.processes.iter().map(|p| p.pid.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(later.totals, all.totals);
    assert_eq!((all.past.len(), later.past.len()), (0, 1));
    assert_eq!((later.past[0].processes, later.past[0].functions[0].calls), (1, 3));
    let shared = |snapshot: &Snapshot| {
        let process = snapshot.processes.iter().find(|p| p.pid.0 == 2).unwrap();
        Arc::ptr_eq(process, exited.iter().next().unwrap())
    };
    assert!(shared(&all) && shared(&later), "the rows of an exited process are built once");
}

/// A process may start between reading the events and reading the rows.
#[test]
fn rows_of_an_unknown_process_are_left_to_the_next_snapshot() {
    let (calls, memory) = ([counts(key(3), function("cudaFree"), 4)], [memory(key(3))]);
    let gpu_ops = GpuOpRows {
        graphs: vec![GraphCounts {
            process: key(3),
            launches: 1,
            errors: 0,
            derived: 1,
            unknown: 0,
            captured: 0,
            disabled: 0,
            conditional: 0,
        }],
        ..GpuOpRows::default()
    };
    let failures = [FailureCounts { process: key(3), failure: None, count: 2 }];
    let snapshot = |processes: &HashMap<ProcessKey, ProcessInfo>| {
        Snapshot::build(&Inputs {
            failures: &failures,
            contexts: &[],
            gpus: &[],
            calls: &calls,
            memory: &memory,
            allocations: &[],
            gpu_ops: &gpu_ops,
            call_sites: &[],
            processes,
            exited: &ExitedProcesses::default(),
            losses: &Losses::default(),
            libraries: &[],
            skipped: &[],
            unix_seconds: 1.5,
        })
    };
    let first = snapshot(&HashMap::new());
    assert_eq!((first.processes.len(), first.totals), (0, MemoryTotals::default()));
    let next = snapshot(&HashMap::from([(key(3), ProcessInfo::default())]));
    let process = &next.processes[0];
    assert_eq!((process.functions[0].calls, process.failures[0].count), (4, 2));
    assert_eq!((process.gpu_ops.graphs.launches, next.totals.allocations), (1, 2));
}

#[test]
fn every_loss_cause_is_listed() {
    let snapshot = built(&[], &[], &[]);
    assert_eq!(snapshot.losses.len(), LossCause::ALL.len());
    assert!(snapshot.losses.contains(&LossCount { cause: LossCause::LiveFull, count: 4 }));
}

/// The host's numbers of the first two GPUs of the process are known, that of the third is not.
#[test]
fn memory_is_listed_by_the_gpus_of_the_host_if_these_are_known() {
    let mut gpus = GpuNumbers::default();
    gpus.set(0, 3);
    gpus.set(1, 3);
    let info = ProcessInfo { name: "app".to_owned(), gpus, ..ProcessInfo::default() };
    let by_kind = |device, managed| {
        let mut kinds = [LiveTotals::default(); Space::ALL.len()];
        kinds[Space::Device as usize] = device;
        kinds[Space::Managed as usize] = managed;
        kinds
    };
    let some = |n: u64| LiveTotals { live_bytes: 100 * n, live_allocations: n };
    let none = LiveTotals::default();
    let context = |tgid, gpu, live| ContextMemory { process: key(tgid), gpu, live };
    let row = |tgid, device| ProcessMemory { live: by_kind(device, none), ..memory(key(tgid)) };
    let allocation = |tgid, gpu| Allocation {
        process: key(tgid),
        ptr: 16,
        bytes: 100,
        space: Space::Device,
        gpu,
        since_ns: 0,
        site: SiteId::UNKNOWN,
    };
    let snapshot = Snapshot::build(&Inputs {
        failures: &[],
        contexts: &[
            context(1, Some(0), by_kind(some(1), none)),
            context(1, Some(1), by_kind(some(2), none)),
            context(1, Some(2), by_kind(some(3), none)),
            context(1, None, by_kind(some(4), none)),
            context(2, Some(0), by_kind(some(5), none)),
        ],
        gpus: &[],
        calls: &[],
        memory: &[row(1, some(10)), row(2, some(5))],
        allocations: &[allocation(1, Some(0)), allocation(2, Some(0))],
        gpu_ops: &GpuOpRows::default(),
        call_sites: &[],
        processes: &HashMap::from([(key(1), info), (key(2), ProcessInfo::default())]),
        exited: &ExitedProcesses::default(),
        losses: &Losses::default(),
        libraries: &[],
        skipped: &[],
        unix_seconds: 1.0,
    });
    let device = |process: usize| -> Vec<_> {
        let live = snapshot.processes[process].memory.live.iter();
        let device = live.filter(|live| live.amount.kind == Space::Device);
        device.map(|live| (live.gpu, live.amount.bytes, live.amount.allocations)).collect()
    };
    let known = [(Some(Gpu::Host(3)), 300, 3), (Some(Gpu::OfProcess(2)), 300, 3), (None, 400, 4)];
    assert_eq!(device(0), known, "the contexts of one GPU are summed");
    assert_eq!(device(1), [(Some(Gpu::OfProcess(0)), 500, 5)], "a process whose GPUs are not known");
    let of = |process: usize| snapshot.processes[process].allocations[0].gpu;
    assert_eq!([of(0), of(1)], [Some(Gpu::Host(3)), Some(Gpu::OfProcess(0))]);
}

/// On a host with many threads, open calls are not read at each snapshot.
#[test]
fn the_time_of_an_open_call_is_kept_until_it_is_known_again() {
    let mut counted = HashMap::new();
    let mut open_after = |open_ns: u64| {
        let process = ProcessSnapshot::new(key(1), &ProcessInfo::default(), &[], None);
        let mut snapshot = Snapshot { processes: vec![Arc::new(process)], ..Snapshot::default() };
        snapshot.set_open_times(&HashMap::from([(key(1), open_ns)]), &mut counted);
        snapshot.processes[0].open_ns
    };
    assert_eq!([0, 300, 0, 1600, 0].map(&mut open_after), [0, 300, 300, 1600, 1600]);
}
