//! Tensors of a process that keeps some of them, and of one that was attached to late.

use std::collections::HashMap;

use gpuprobe_analysis::{
    Fragmentation, FragmentationByGpu, LiveMemory, LiveTensors, ProcessInfo, Rules, TensorReport,
    tensors_of_pools,
};
use gpuprobe_event::counters::{LiveTotals, SiteMemory, TensorMemory};
use gpuprobe_event::{Frame, Losses, SiteId, TensorSource};

use super::{MIB, key};

const SECOND: u64 = 1_000_000_000;

fn row(site: u32, bytes: u64, live: u64, allocations: u64) -> SiteMemory {
    SiteMemory {
        process: key(4242, 1),
        site: SiteId(site),
        gpu: Some(0),
        live: LiveTotals { live_bytes: live * bytes, live_allocations: live },
        allocations,
        allocated_bytes: allocations * bytes,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
    }
}

fn on_gpu(pid: u32, gpu: Option<u8>, live: u64, in_use_bytes: u64, reserved_bytes: u64) -> TensorMemory {
    TensorMemory {
        process: key(pid, 1),
        gpu,
        live: LiveTotals { live_bytes: live * MIB, live_allocations: live },
        allocations: live,
        allocated_bytes: live * MIB,
        frees: 0,
        unknown_frees: 2,
        replaced: 0,
        in_use_bytes,
        reserved_bytes: Some(reserved_bytes),
        source: TensorSource::Reports,
    }
}

fn python(function: &str, line: u32) -> Vec<Frame> {
    let frame = |function: &str, module: &str, line: Option<u32>| Frame {
        address: 0x55aa,
        function: Some(function.to_owned()),
        offset: 0x1c,
        module: Some(module.to_owned()),
        file: line.map(|_| "/home/user/train.py".to_owned()),
        line,
        inlined: false,
        python: line.is_some(),
    };
    vec![
        frame("c10::cuda::CUDACachingAllocator::malloc(unsigned long)", "libc10_cuda.so", None),
        frame("at::native::clone(at::Tensor const&)", "libtorch_cpu.so", None),
        frame(function, "python3.12", Some(line)),
        frame("main", "python3.12", Some(90)),
    ]
}

pub(crate) fn tensor_report() -> TensorReport {
    let mut tensors = LiveTensors::new(LiveMemory::new(Rules { warm_up_ns: 5 * SECOND }, true));
    let info = |name: &str| ProcessInfo { name: name.to_owned(), ..ProcessInfo::default() };
    let infos = HashMap::from([
        (key(4242, 1), info("train")),
        (key(77, 1), info("e\x1b[2Jvil\n")),
        (key(88, 1), info("pools")),
    ]);
    for second in 1..=40 {
        let rows = [row(1, MIB, second, second), row(2, 4 * MIB, 1 + second % 3, 10 * second)];
        let live = second + 4 * (1 + second % 3);
        let gpus = [
            on_gpu(4242, Some(0), live, live * MIB, 64 * MIB),
            on_gpu(4242, Some(1), 0, 0, 2 * MIB),
            on_gpu(77, None, 0, 3 * MIB, MIB),
        ];
        let found = Fragmentation { bytes: MIB / 2, unplaced_bytes: 0 };
        tensors.set_fragmentation(&gpus[..2], &FragmentationByGpu::from([((key(4242, 1), Some(0)), found)]));
        let pools = row(3, MIB, 5, 9);
        let of_pools = tensors_of_pools(&[SiteMemory { process: key(88, 1), ..pools }]);
        tensors.feed(&rows, &[&gpus[..], &of_pools].concat(), &infos, second * SECOND);
    }
    tensors.call_sites.name(SiteId(1), python("remember", 12));
    tensors.call_sites.name(SiteId(2), python("step", 31));
    tensors.report(&Losses::default(), 40 * SECOND)
}
