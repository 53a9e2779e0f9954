//! Launches, graphs, copies, gaps and ioctls of one process.

use gpuprobe_event::counters::{
    CommandCounts, CommandTotals, CopyCounts, CopyDirection, CopyTotals, GapCounts, GapKind, GpuOpRows,
    GraphCounts, GraphKernelCounts, HostMemory, LATENCY_BUCKETS, LaunchCounts, LaunchTotals, LongGap,
    ProcessKey, StreamGaps,
};
use gpuprobe_event::driver::{CommandCode, DeviceKind, Version, command_name};
use gpuprobe_event::{Api, Moved, UnifiedTotals, catalogue};

fn kernel(process: ProcessKey, kernel: Option<&str>, handle: u64, launches: u64) -> LaunchCounts {
    LaunchCounts {
        process,
        handle,
        kernel: kernel.map(Into::into),
        stream: 0x5601_0000_0080,
        totals: LaunchTotals {
            launches,
            threads: launches * 256,
            total_ns: launches * 4_000,
            grid: Some(([1, 1, 1], [64, 1, 1])),
            block: Some(([256, 1, 1], [256, 1, 1])),
            ..LaunchTotals::default()
        },
    }
}

/// Two commands with names, one without, and one of unified memory.
fn commands(process: ProcessKey) -> Vec<CommandCounts> {
    let command = |device, request, detail, calls, failures| {
        let code = CommandCode { device, request, detail };
        let totals = CommandTotals { calls, failures, total_ns: calls * 12_500 };
        let command = command_name(Version::newest(), code).text;
        CommandCounts { process, code, command, totals }
    };
    vec![
        command(DeviceKind::Control, 0xc030_462b, 0x40, 26, 0),
        command(DeviceKind::Gpu, 0xc020_462a, 0x2080_0110, 4, 1),
        command(DeviceKind::Control, 0xc020_462a, 0x7fff_ffff, 3, 3),
        command(DeviceKind::Uvm, 37, 0, 1, 0),
    ]
}

/// Unified memory that both processors accessed, and that moved to a GPU and back.
pub(crate) fn unified() -> UnifiedTotals {
    let moved = |migrations, bytes| Moved { migrations, bytes };
    let (to_gpu, to_cpu) = (moved(12, 25_165_824), moved(2, 131_072));
    UnifiedTotals { cpu_faults: 2, gpu_faults: 17, to_gpu, to_cpu, between_gpus: Moved::default() }
}

/// More CUDA kernels than have series of their own, and names that must be escaped or cut.
fn graph_kernel(process: ProcessKey, handle: u64, kernel: Option<&str>, runs: u64) -> GraphKernelCounts {
    GraphKernelCounts { process, handle, kernel: kernel.map(Into::into), runs }
}

pub(crate) fn rows(process: ProcessKey) -> GpuOpRows {
    let few = (0..22).map(|i| kernel(process, Some(&format!("k{i:02}")), 100 + i, 40 - i));
    let hard = "a\"b\\c\nd".to_owned() + &"x".repeat(10_000);
    let mut launches: Vec<_> = few.collect();
    let mut shared = kernel(process, Some(&hard), 1, 1000);
    (shared.totals.errors, shared.totals.shared_most) = (3, 49_152);
    launches.push(shared);
    let mut unsized_one = kernel(process, None, 2, 50);
    (unsized_one.totals.grid, unsized_one.totals.block, unsized_one.totals.threads) = (None, None, 0);
    launches.push(unsized_one);
    launches.push(kernel(process, None, 3, 5));
    let copy = |direction, is_async, host, bytes: u64| {
        let mut sizes = [0; LATENCY_BUCKETS];
        (sizes[2], sizes[(bytes / 3).ilog2() as usize]) = (1, 3);
        let total_ns = 1_500_000_000;
        let totals = CopyTotals { direction, is_async, host, copies: 4, errors: 1, bytes, total_ns, sizes };
        CopyCounts { process, totals }
    };
    let mut lengths = [0; LATENCY_BUCKETS];
    lengths[20] = 3;
    let gaps = GapCounts { gaps: 3, total_ns: 4_500_000, lengths };
    let meanwhile = catalogue().lookup(Api::Driver, None, "cuMemcpyDtoH_v2").map(|f| f.id);
    let gap = |ns, meanwhile| LongGap { ns, since_ns: 7, kind: GapKind::AfterSync, meanwhile };
    let mut short = [0; LATENCY_BUCKETS];
    (short[12], short[LATENCY_BUCKETS - 1]) = (60, 40);
    let between = GapCounts { gaps: 100, total_ns: 90_000_000_000, lengths: short };
    GpuOpRows {
        calls: Vec::new(),
        commands: commands(process),
        unified: vec![(process, unified())],
        launches,
        graphs: vec![GraphCounts {
            process,
            launches: 40,
            errors: 0,
            derived: 40_000,
            unknown: 1,
            captured: 1000,
            disabled: 40,
            conditional: 80,
        }],
        graph_kernels: vec![
            graph_kernel(process, 1, Some("add(float*, float*, int)"), 39_000),
            graph_kernel(process, 2, Some("in_graphs_only"), 960),
            graph_kernel(process, 0, None, 40),
        ],
        copies: vec![
            copy(CopyDirection::HostToDevice, false, HostMemory::Pinned, 64 << 20),
            copy(CopyDirection::HostToDevice, false, HostMemory::Pageable, 96 << 20),
            copy(CopyDirection::HostToDevice, true, HostMemory::Pinned, 3 << 20),
            copy(CopyDirection::DeviceToDevice, false, HostMemory::Nothing, 8192),
            copy(CopyDirection::DeviceToDevice, true, HostMemory::Nothing, 512),
            copy(CopyDirection::Fill, true, HostMemory::Nothing, 4096),
        ],
        gaps: vec![StreamGaps {
            process,
            stream: 0,
            gaps: [gaps, between],
            longest: vec![gap(2_000_000, meanwhile), gap(1_500_000, None), gap(1_000_000, meanwhile)],
        }],
    }
}
