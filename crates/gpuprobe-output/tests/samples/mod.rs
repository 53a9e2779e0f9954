//! A recording and snapshots with known numbers.

pub(crate) mod collective_calls;
pub(crate) mod kmod_calls;
pub(crate) mod live_calls;
pub(crate) mod memory_reports;
pub(crate) mod nvml_states;
pub(crate) mod op_rows;
pub(crate) mod tensor_reports;

use std::collections::HashMap;

use gpuprobe_analysis::snapshot::SkippedFiles;
use gpuprobe_analysis::{
    CostReport, ExitedProcess, ExitedProcesses, Inputs, LibraryProbes, Measured, OldestCall, ProcessInfo,
    Snapshot, Target, TierCost, costs, judge,
};
use gpuprobe_event::counters::{
    Allocation, CallCounts, ContextMemory, CopyDirection, FailureCounts, GpuOpRows, LATENCY_BUCKETS,
    LiveTotals, ProcessKey, ProcessMemory,
};
use gpuprobe_event::decode::Words;
use gpuprobe_event::event::Name;
use gpuprobe_event::{
    Api, Call, Container, DeviceTime, Effect, Event, Free, GpuNumbers, HostGpu, LossCause, LossEvent, Losses,
    MemoryAmount, Outcome, PciAddress, Pod, ProcessChange, ProcessEvent, SiteId, Space, Tgid, Tid, Transfer,
    Uuid, catalogue, decode, effect,
};
use memory_reports::call_sites;

pub(crate) const MIB: u64 = 1 << 20;

fn call(id: u64, api: Api, name: &str, duration_ns: u64, status: i64) -> Call {
    let function = catalogue().lookup(api, None, name).expect(name);
    Call {
        id,
        parent: None,
        depth: 0,
        nested: false,
        weight: 1,
        start_ns: id * 1_000_000,
        outcome: Outcome::Returned { value: status.cast_unsigned(), duration_ns },
        return_probed: true,
        tgid: Tgid(4242),
        tid: Tid(4242),
        process: "train\x1b[31m".into(),
        api,
        name: Name::Borrowed(function.name),
        class: function.class,
        status: Some(status),
        error: gpuprobe_event::decode::error_name(function, status),
        args: None,
        stream: None,
        effect: decode::effect(function, &Words::default()),
        driver: None,
        site: None,
        stack: None,
    }
}

/// A call inside another that already counts its effect.
fn inside(call: Call, parent: u64) -> Event {
    Event::Call(Box::new(Call { parent: Some(parent), depth: 1, nested: true, ..call }))
}

fn with(call: Call, effect: Effect) -> Event {
    Event::Call(Box::new(Call { effect, ..call }))
}

fn change(change: ProcessChange, at_ns: u64, tgid: u32, exit_status: Option<i32>) -> Event {
    Event::Process(ProcessEvent {
        id: 0,
        at_ns,
        change,
        tgid: Tgid(tgid),
        tid: Tid(tgid),
        process: "train\x1b[31m".into(),
        parent: Some(Tgid(1)),
        ns_pid: None,
        container: None,
        exit_status,
        rank: None,
        live: Vec::new(),
    })
}

/// A program that allocates three times, fails once, copies, launches, frees one block and is killed.
pub(crate) fn events() -> Vec<Event> {
    use Api::{Driver, Runtime};
    use CopyDirection::{DeviceToHost, Fill, HostToDevice};
    let memory = |address, bytes, kind| {
        Effect::Alloc(effect::Allocation { bytes, address: Some(address), kind, ..Default::default() })
    };
    let moved = |bytes, direction| {
        Effect::Transfer(Transfer { bytes: Some(bytes), ..Transfer::new(direction, false) })
    };
    let freed = |address, freed| Effect::Free(Free { address: Some(address), freed, ..Free::default() });
    let other = |event: Event| match event {
        Event::Call(call) => Event::Call(Box::new(Call { tgid: Tgid(77), process: "idle".into(), ..*call })),
        event => event,
    };
    let mut events = vec![
        change(ProcessChange::Start, 0, 4242, None),
        inside(call(2, Driver, "cuMemAlloc_v2", 80_000, 0), 1),
        with(call(1, Runtime, "cudaMalloc", 90_000, 0), memory(0x7f00_0000, 8 * MIB, Space::Device)),
        with(call(3, Runtime, "cudaMalloc", 70_000, 0), memory(0x7f80_0000, 8 * MIB, Space::Device)),
        with(call(4, Runtime, "cudaMallocHost", 1_300_000, 0), memory(0x5500_0000, 4096, Space::Pinned)),
        inside(call(6, Driver, "cuMemAlloc_v2", 2000, 2), 5),
        Event::Call(Box::new(call(5, Runtime, "cudaMalloc", 3000, 2))),
        with(call(7, Runtime, "cudaMemcpy", 2_600_000, 0), moved(8 * MIB, HostToDevice)),
        with(call(8, Runtime, "cudaMemcpy", 2_600_000, 0), moved(8 * MIB, HostToDevice)),
        with(call(9, Runtime, "cudaMemcpy", 400, 0), moved(12, DeviceToHost)),
        with(call(10, Runtime, "cudaMemset", 9000, 0), moved(MIB, Fill)),
    ];
    events.extend((11..=15).map(|id| Event::Call(Box::new(call(id, Runtime, "cudaLaunchKernel", 4500, 0)))));
    events.extend([
        Event::Call(Box::new(call(16, Runtime, "cudaStreamQuery", 700, 600))),
        with(
            call(17, Runtime, "cudaFree", 110_000, 0),
            freed(0x7f80_0000, Some(MemoryAmount { kind: Space::Device, allocations: 1, bytes: 8 * MIB })),
        ),
        with(call(18, Runtime, "cudaFree", 200, 0), freed(0, None)),
        other(with(
            call(19, Runtime, "cudaMalloc", 50_000, 0),
            memory(0x7f00_0000, 3 * MIB / 2, Space::Device),
        )),
        Event::Call(Box::new(Call {
            outcome: Outcome::Unfinished,
            status: None,
            ..call(20, Runtime, "cudaDeviceSynchronize", 0, 0)
        })),
        change(ProcessChange::Exit, 2_500_000_000, 4242, Some(137)),
        Event::Loss(LossEvent { at_ns: 2_500_000_000, cause: LossCause::RingFull, count: 12 }),
    ]);
    events
}

pub(crate) fn key(tgid: u32, instance: u64) -> ProcessKey {
    ProcessKey { tgid: Tgid(tgid), instance }
}

/// Calls that took 2^`log2` nanoseconds each.
fn counts(process: ProcessKey, api: Api, name: &str, calls: u64, log2: usize) -> CallCounts {
    let function = catalogue().lookup(api, None, name).expect(name).id;
    let mut latency = [0; LATENCY_BUCKETS];
    latency[log2] = calls;
    // half of the allocations enter the NVIDIA kernel module
    let entered = if name == "cuMemAlloc_v2" { calls / 2 } else { 0 };
    let driver = DeviceTime { calls: entered, ns: (entered << log2) / 2 };
    CallCounts { process, function, calls, errors: 0, bytes: 0, total_ns: calls << log2, driver, latency }
}

fn failures(process: ProcessKey, rows: &[(&str, i64, u64)]) -> Vec<FailureCounts> {
    let row = |&(name, status, count): &(&str, i64, u64)| FailureCounts {
        process,
        failure: Some((catalogue().lookup(Api::Driver, None, name).expect(name).id, status)),
        count,
    };
    rows.iter().map(row).collect()
}

fn memory(process: ProcessKey, device: LiveTotals) -> ProcessMemory {
    let mut live = [LiveTotals::default(); Space::ALL.len()];
    live[Space::Device as usize] = device;
    ProcessMemory {
        process,
        live,
        allocated_bytes: 24_000_000,
        freed_bytes: 24_000_000 - device.live_bytes,
        allocations: 3,
        failed_allocations: 0,
        frees: 3 - device.live_allocations,
        failed_frees: 0,
        unknown_frees: 0,
        replaced: 0,
        replaced_bytes: 0,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
        peak_bytes: 0,
        out_of_memory: 0,
    }
}

/// Three exited processes that are summed up by name.
fn past() -> ExitedProcesses {
    let mut exited = ExitedProcesses::bounded(0);
    for (tgid, name) in [(51, "short"), (52, "brief\0"), (53, "short")] {
        let key = key(tgid, 1);
        let info = ProcessInfo { name: name.to_owned(), ..ProcessInfo::default() };
        let mut launches = counts(key, Api::Driver, "cuLaunchKernel", 5, 14);
        launches.errors = 1;
        let calls = vec![launches, counts(key, Api::Driver, "cuMemAlloc_v2", 3, 18)];
        let memory = Some(memory(key, LiveTotals { live_bytes: 1_000_000, live_allocations: 1 }));
        let failures = failures(key, &[("cuLaunchKernel", 700, 1)]);
        let work = if tgid == 51 { op_rows::rows(key) } else { GpuOpRows::default() };
        exited.keep(ExitedProcess { key, info, calls, failures, memory, gpu_ops: work });
        exited.make_room(|_| false);
    }
    exited
}

/// The numbering of a process whose first GPU is not the host's first.
fn first_is(host: u8) -> GpuNumbers {
    let mut numbers = GpuNumbers::default();
    numbers.set(0, host);
    numbers
}

/// The memory of a process in two contexts, and the GPUs of the host, one of them without a UUID.
fn on_two_gpus(process: ProcessKey) -> (Vec<ContextMemory>, Vec<HostGpu>) {
    let context = |gpu: u8| {
        let mut live = [LiveTotals::default(); Space::ALL.len()];
        let live_allocations = u64::from(gpu == 0);
        live[Space::Device as usize] =
            LiveTotals { live_bytes: 8_000_000 * live_allocations, live_allocations };
        ContextMemory { process, gpu: Some(gpu), live }
    };
    let gpu = |index: u8, uuid| HostGpu {
        index,
        uuid,
        pci: PciAddress { domain: 0, bus: 0x1b + index, device: 0, function: 0 },
        minor: Some(0),
        is_parted: false,
    };
    (vec![context(0), context(1)], vec![gpu(0, None), gpu(1, Some(Uuid([0x5a; 16])))])
}

fn in_a_pod() -> Container {
    let [namespace, name, container] = ["research", "train-0", "main"].map(str::to_owned);
    Container { id: "3f2a9c0d1e2b4f5a".repeat(4), pod: Some(Pod { namespace, name, container }) }
}

/// A process whose rows were looked at twice.
fn tracked(rows: &GpuOpRows, info: ProcessInfo) -> ProcessInfo {
    let mut info = ProcessInfo { gpus: first_is(1), ..info };
    info.requests.update(&rows.commands);
    rows.unified.iter().for_each(|(_, totals)| info.requests.update_unified(totals));
    // the second look is so late that kernels without a name are final
    for at in [0, u64::MAX] {
        info.launched.update(&rows.launches, at);
        info.graph_kernels.update(&rows.graph_kernels, at);
    }
    info
}

/// A running process, another one under the same pid, an exited process, and some that are summed up by name.
pub(crate) fn snapshot() -> Snapshot {
    let (train, again, exited) = (key(4242, 1), key(4242, 2), key(99, 1));
    let mut copies = counts(train, Api::Driver, "cuMemcpyHtoD_v2", 4, 21);
    (copies.bytes, copies.errors) = (32_000_000, 4);
    let calls = [
        counts(train, Api::Driver, "cuLaunchKernel", 1000, 12),
        counts(again, Api::Driver, "cuLaunchKernel", 1, 31),
        copies,
        counts(train, Api::Driver, "cuCtxSynchronize", 2, 0),
        counts(exited, Api::Runtime, "cudaMalloc", 3, 16),
    ];
    let live = LiveTotals { live_bytes: 8_000_000, live_allocations: 1 };
    let info = |name: &str, exited_at_ns| ProcessInfo {
        name: name.to_owned(),
        exited_at_ns,
        ..ProcessInfo::default()
    };
    let mut losses = Losses::default();
    losses.add(LossCause::CountersFull, 5);
    let unexplained = ProcessMemory { unknown_frees: 3, replaced: 1, ..memory(train, live) };
    let (contexts, gpus) = on_two_gpus(train);
    let rows = op_rows::rows(train);
    let tracked = tracked(&rows, info("a\"b\\c\nd", None));
    let snapshot = Snapshot::build(&Inputs {
        contexts: &contexts,
        gpus: &gpus,
        calls: &calls,
        // one of the four failures had no room, and two have an unknown error number
        failures: &failures(train, &[("cuMemcpyHtoD_v2", 1, 1), ("cuMemcpyHtoD_v2", 4242, 2)]),
        memory: &[unexplained, memory(exited, live)],
        allocations: &[allocation(train, 0x7989_d800_0000)],
        gpu_ops: &rows,
        call_sites: &call_sites(),
        processes: &HashMap::from([
            (train, tracked),
            (again, info("a\"b\\c\nd", None)),
            (exited, ProcessInfo { container: Some(in_a_pod()), ..info("short", Some(1)) }),
        ]),
        exited: &past(),
        losses: &losses,
        libraries: &[LibraryProbes {
            path: "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14".to_owned(),
            attached: 412,
            skipped: 1,
            state: "attached".to_owned(),
        }],
        skipped: &[
            SkippedFiles { reason: "not_elf", files: 2 },
            SkippedFiles { reason: "damaged", files: 0 },
        ],
        unix_seconds: 1_733_143_016.0,
    });
    let pending = vec![OldestCall {
        pid: train.tgid,
        name: "a\"b\\c\nd".to_owned(),
        container: None,
        api: Api::Driver,
        function: "cuStreamSynchronize",
        age_ns: 412_345_678_901,
    }];
    Snapshot { gpu_states: nvml_states::states(&snapshot), has_tensors: true, pending, ..snapshot }
}

fn allocation(process: ProcessKey, ptr: u64) -> Allocation {
    Allocation {
        process,
        ptr,
        bytes: 8_000_000,
        space: Space::Device,
        gpu: None,
        since_ns: 0,
        site: SiteId::UNKNOWN,
    }
}

/// A program that allocates three blocks, frees two, and ends with the third.
pub(crate) fn classic_sequence() -> Vec<Snapshot> {
    const BLOCKS: [u64; 3] = [0x7989_d800_0000, 0x7989_dcc0_0000, 0x7989_dd40_0000];
    let app = key(246_649, 1);
    let at = |unix_seconds, live: Option<usize>, exited_at_ns| {
        let allocations: Vec<_> =
            BLOCKS.iter().take(live.unwrap_or(0)).map(|&p| allocation(app, p)).collect();
        let live_blocks =
            |n: usize| LiveTotals { live_bytes: 8_000_000 * n as u64, live_allocations: n as u64 };
        Snapshot::build(&Inputs {
            contexts: &[],
            gpus: &[],
            calls: &[],
            failures: &[],
            memory: &live.map(|n| memory(app, live_blocks(n))).into_iter().collect::<Vec<_>>(),
            allocations: &allocations,
            gpu_ops: &GpuOpRows::default(),
            call_sites: &[],
            processes: &HashMap::from([(
                app,
                ProcessInfo { name: "app".to_owned(), exited_at_ns, ..ProcessInfo::default() },
            )]),
            exited: &ExitedProcesses::default(),
            losses: &Losses::default(),
            libraries: &[],
            skipped: &[],
            unix_seconds,
        })
    };
    vec![
        at(1_733_143_016.0, None, None),
        at(1_733_143_019.0, Some(3), None),
        at(1_733_143_031.0, Some(3), None),
        at(1_733_143_034.0, Some(1), None),
        // the BPF row still has one live block, which the exit of the process frees
        at(1_733_143_037.0, Some(1), Some(5)),
        at(1_733_143_040.0, None, None),
    ]
}

/// Three rounds of three modes.
pub(crate) fn cost_report() -> CostReport {
    let mode = |name, what, floor, ns: [f64; 3], reader_ns| Measured {
        name,
        what,
        floor,
        ns: ns.to_vec(),
        made: 3,
        seen: None,
        reader_ns,
    };
    let measured = [
        mode("none", "without probes", None, [2.0, 3.0, 4.0], None),
        mode("floor", "with empty probes", None, [800.0, 1000.0, 900.4], None),
        mode("count", "counted", Some("floor"), [1000.0, 1200.0, 990.0], None),
        mode("stream", "streamed", Some("floor"), [1000.0, 1500.0, 1400.0], Some(512.4)),
    ];
    let target = |mode, limit| Target { mode, to: "floor", limit };
    let targets = judge(&measured, &[target("count", 1.25), target("stream", 1.3)]);
    let tier = |tier: &str, targets| TierCost { tier: tier.to_owned(), modes: costs(&measured), targets };
    CostReport {
        kernel: "6.18.0".to_owned(),
        rounds: 3,
        calls_per_round: 1000,
        tiers: vec![tier("session", targets), tier("perf", Vec::new())],
    }
}
