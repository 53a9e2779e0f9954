use std::sync::Arc;

use gpuprobe_event::gpu_state::{GpuId, XidCount};
use gpuprobe_event::{GpuProcess, HostGpu, MemoryAmount, PciAddress, Uuid};

use super::*;
use crate::live::snapshot::{GpuMemory, MemoryCounts};

fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

fn process(pid: u32, exited_at_ns: Option<u64>, live: &[(Option<Gpu>, Space, u64)]) -> Arc<ProcessSnapshot> {
    let live = live.iter().map(|&(gpu, kind, bytes)| {
        let amount = MemoryAmount { kind, bytes, allocations: 1 };
        GpuMemory { gpu, amount }
    });
    let memory = MemoryCounts { live: live.collect(), ..MemoryCounts::default() };
    let info = crate::ProcessInfo { name: format!("app{pid}"), exited_at_ns, ..Default::default() };
    let key = gpuprobe_event::counters::ProcessKey { tgid: Tgid(pid), instance: exited_at_ns.unwrap_or(9) };
    Arc::new(ProcessSnapshot { memory, ..ProcessSnapshot::new(key, &info, &[], None) })
}

fn snapshot(processes: Vec<Arc<ProcessSnapshot>>) -> Snapshot {
    let gpu = |index| HostGpu { index, uuid: None, pci: pci(index + 1), minor: None, is_parted: false };
    Snapshot { processes, gpus: vec![gpu(0), gpu(1)], ..Snapshot::default() }
}

/// The host's GPU with this number, with these processes.
fn gpu(number: u8, users: &[(u32, Option<u64>)]) -> GpuState {
    let user = |&(pid, memory_bytes)| GpuProcess { pid: Tgid(pid), memory_bytes, busy_percent: None };
    GpuState {
        // NVML numbers GPUs differently if it does not see all of them
        id: GpuId { index: 1 - number, pci: Some(pci(number + 1)), ..GpuId::default() },
        processes: users.iter().map(user).collect(),
        ..GpuState::default()
    }
}

fn built(gpus: Vec<GpuState>, processes: Vec<Arc<ProcessSnapshot>>, compared: Compared<'_>) -> GpuStates {
    let others = HashMap::from([(Tgid(50), "stranger".to_owned())]);
    let readings = GpuReadings { is_up: true, gpus, ..GpuReadings::default() };
    GpuStates::build(&readings, &snapshot(processes), &others, compared)
}

/// GPU, pid, seen bytes, unexplained bytes, and seen bytes above NVML's figure.
type Figures = (u8, u32, Option<u64>, Option<u64>, Option<u64>);

fn figures(states: &GpuStates) -> Vec<Figures> {
    let figures = |u: &GpuUser| (u.gpu, u.pid.0, u.seen_bytes, u.unexplained_bytes(), u.seen_above_bytes());
    states.users.iter().map(figures).collect()
}

#[test]
fn an_out_of_memory_error_has_the_state_of_its_gpu() {
    let memory = gpuprobe_event::gpu_state::GpuMemory { free_bytes: 77, ..Default::default() };
    let full = GpuState {
        memory: Some(memory),
        ..gpu(1, &[(1, Some(500)), (50, Some(30)), (2, Some(40)), (3, None)])
    };
    let processes = vec![process(1, None, &[]), process(2, None, &[]), process(3, None, &[])];
    let states = built(vec![gpu(0, &[(2, Some(9))]), full], processes, Compared::AllProcesses);
    let mut error = OutOfMemoryEvent { tgid: Tgid(1), ..OutOfMemoryEvent::default() };
    states.complete(&mut error, 1);
    let others: Vec<_> =
        error.others.iter().map(|other| (other.tgid.0, &*other.process, other.bytes)).collect();
    assert_eq!((error.free_bytes, others), (Some(77), vec![(2, "app2", 40), (50, "stranger", 30)]));
    states.complete(&mut error, 7);
    assert_eq!((error.free_bytes, error.others.len()), (None, 0), "an unknown GPU");
}

#[test]
fn unexplained_bytes_are_nvmls_figure_minus_the_live_memory_on_that_gpu() {
    let host = |number| Some(Gpu::Host(number));
    let live = [
        (host(0), Space::Device, 100),
        (host(0), Space::Pool, 20),
        (host(0), Space::Vmm, 3),
        (host(0), Space::Array, 4),
        (host(0), Space::Managed, 5000),
        (host(0), Space::Pinned, 6000),
        (host(1), Space::Device, 70),
    ];
    let gpus = vec![gpu(1, &[(7, Some(60)), (8, None)]), gpu(0, &[(7, Some(1127))])];
    let states = built(gpus, vec![process(7, None, &live), process(8, None, &[])], Compared::AllProcesses);
    let expected = [
        (0, 7, Some(127), Some(1000), Some(0)),
        (1, 7, Some(70), Some(0), Some(10)),
        (1, 8, Some(0), None, None),
    ];
    assert_eq!(figures(&states), expected);
    assert_eq!(states.gpus.iter().map(|g| g.gpu).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn memory_of_an_unknown_gpu_is_on_the_only_gpu_of_the_process() {
    let live = [(None, Space::Device, 5), (Some(Gpu::OfProcess(3)), Space::Device, 7)];
    let processes = || vec![process(7, None, &live)];
    let states = built(vec![gpu(1, &[(7, Some(20))])], processes(), Compared::AllProcesses);
    assert_eq!(figures(&states), [(1, 7, Some(12), Some(8), Some(0))]);
    let gpus = vec![gpu(0, &[(7, Some(20))]), gpu(1, &[(7, Some(20))])];
    let states = built(gpus, processes(), Compared::AllProcesses);
    assert_eq!(figures(&states), [(0, 7, None, None, None), (1, 7, None, None, None)]);
}

#[test]
fn exited_processes_are_omitted_and_unseen_processes_are_compared_if_all_are_observed() {
    // 7 has exited and its pid was reused; 8 has exited; 50 made no call; 51 is not known
    let processes = || {
        vec![
            process(7, Some(1), &[(None, Space::Device, 9)]),
            process(7, None, &[]),
            process(8, Some(1), &[]),
        ]
    };
    let gpus = || vec![gpu(0, &[(7, Some(1)), (8, Some(2)), (50, Some(3)), (51, Some(4))])];
    let states = built(gpus(), processes(), Compared::AllProcesses);
    let expected = [(0, 7, Some(0), Some(1), Some(0)), (0, 50, Some(0), Some(3), Some(0))];
    assert_eq!(figures(&states), expected);
    assert_eq!(states.users[1].name, "stranger");
    // a selected process is compared before its first call; others in the snapshot are its children
    let states = built(gpus(), processes(), Compared::Only(&[Tgid(50)]));
    assert_eq!(figures(&states), expected);
    let states = built(gpus(), processes(), Compared::Only(&[Tgid(4)]));
    assert_eq!(figures(&states), [(0, 7, Some(0), Some(1), Some(0)), (0, 50, None, None, None)]);
    let states = built(gpus(), processes(), Compared::NoProcess);
    assert_eq!(figures(&states), [(0, 7, None, None, None), (0, 50, None, None, None)]);
}

#[test]
fn errors_are_listed_by_the_gpus_of_the_host() {
    let xid = |index, uuid, count| XidCount { id: GpuId { index, uuid, ..GpuId::default() }, xid: 79, count };
    let mut snapshot = snapshot(Vec::new());
    snapshot.gpus[1].uuid = Some(Uuid([3; 16]));
    // a GPU that the host lists, one that it does not list, and one with the number of another
    let xids = vec![xid(0, Some(Uuid([3; 16])), 2), xid(5, None, 1), xid(1, None, 1)];
    let readings = GpuReadings { xids, ..GpuReadings::default() };
    let states = GpuStates::build(&readings, &snapshot, &HashMap::new(), Compared::NoProcess);
    assert_eq!(states.is_up, Some(false));
    let counts: Vec<_> = states.xids.iter().map(|e| (e.gpu, e.xid, e.count)).collect();
    assert_eq!(counts, [(1, 79, 2), (5, 79, 1)]);
}
