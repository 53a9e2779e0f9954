//! A snapshot of a busy host for measurements: a thousand processes with twenty functions each.

use std::sync::Arc;

use gpuprobe_analysis::snapshot::{FunctionCounts, MemoryCounts};
use gpuprobe_analysis::{GpuOps, ProcessSnapshot, Snapshot};
use gpuprobe_event::counters::LATENCY_BUCKETS;
use gpuprobe_event::{Api, Class, Container, Pod, Tgid, catalogue};

const PROCESSES: u32 = 1000;
const FUNCTIONS: usize = 20;

/// Running processes that call the same functions.
pub(crate) fn many_processes() -> Snapshot {
    let functions: Vec<_> = catalogue()
        .functions()
        .iter()
        .filter(|f| f.api == Api::Driver && f.class != Class::Other)
        .take(FUNCTIONS)
        .collect();
    let process = |pid: u32| {
        let counts = |(i, f): (usize, &&gpuprobe_event::Function)| FunctionCounts {
            api: f.api,
            function: f.name,
            class: f.class,
            is_instant: false,
            calls: u64::from(pid) * 1000,
            errors: 0,
            bytes: 0,
            total_ns: u64::from(pid) * 4_321_987 + i as u64,
            driver: gpuprobe_event::DeviceTime::default(),
            latency: std::array::from_fn::<u64, LATENCY_BUCKETS, _>(|b| u64::from(pid) * (b as u64 % 7)),
        };
        Arc::new(ProcessSnapshot {
            pid: Tgid(100_000 + pid),
            instance: 1,
            name: "python3".to_owned(),
            ns_pid: None,
            container: Some(Container {
                id: "4f84a3d8f21048f6ef56005af98e7ea7395c0ffee0ddba11".to_owned(),
                pod: Some(Pod {
                    namespace: "research".to_owned(),
                    name: format!("train-{pid}"),
                    container: "main".to_owned(),
                }),
            }),
            uid: None,
            exited_at_ns: None,
            functions: functions.iter().enumerate().map(counts).collect(),
            failures: Vec::new(),
            memory: MemoryCounts::default(),
            open_ns: 0,
            gpu_ops: GpuOps::default(),
            allocations: Vec::new(),
        })
    };
    Snapshot { unix_seconds: 1.0, processes: (0..PROCESSES).map(process).collect(), ..Snapshot::default() }
}
