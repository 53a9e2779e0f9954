//! GPU time by GPU and CUDA kernel as counters, for a daemon that collects a few seconds of every minute.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpuprobe_event::{Execution, ExecutionKind, Gpu};
use serde::Serialize;

use crate::gpu_ops::cuda_kernel_series::CudaKernelSeries;
use crate::gpu_ops::launches::UNKNOWN_KERNEL;

/// The GPU time of one GPU, over all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuKernelTime {
    /// Nanoseconds of CUDA kernels. The number of series is bounded.
    #[serde(skip)]
    pub kernels: CudaKernelSeries,
    pub executions: u64,
    /// Nanoseconds in which executions were collected.
    pub sampled_ns: u64,
}

/// Sums GPU time by GPU. The counters never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSeconds {
    gpus: BTreeMap<Gpu, GpuKernelTime>,
}

impl KernelSeconds {
    /// Numbers of GPUs have eight bits, so there are not many. Copies and memsets are no CUDA kernels; graphs as a
    /// whole are `(graphs)`.
    pub fn add(&mut self, gpu: Gpu, execution: &Execution) {
        let name: Arc<str> = match &execution.kind {
            ExecutionKind::Kernel { name: Some(name), .. } => Arc::clone(name),
            ExecutionKind::Kernel { name: None, .. } => Arc::from(UNKNOWN_KERNEL),
            ExecutionKind::Graph => Arc::from("(graphs)"),
            ExecutionKind::Copy { .. } | ExecutionKind::Memset { .. } => return,
        };
        let time = self.gpus.entry(gpu).or_default();
        time.executions += 1;
        time.kernels.add(&CudaKernelSeries::of(name, execution.duration_ns()));
    }

    /// Executions on a GPU were collected for so long. Time that several processes were collected at once counts
    /// once; the caller sees to that.
    pub fn sampled(&mut self, gpu: Gpu, ns: u64) {
        let time = self.gpus.entry(gpu).or_default();
        time.sampled_ns = time.sampled_ns.saturating_add(ns);
    }

    pub fn report(&self) -> Vec<(Gpu, GpuKernelTime)> {
        self.gpus.iter().map(|(gpu, time)| (*gpu, time.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Tgid;

    use super::*;

    fn kernel(name: &str, ns: u64) -> Execution {
        let name = Some(Arc::from(name));
        Execution {
            id: 0,
            tgid: Tgid(1),
            process: "app".into(),
            kind: ExecutionKind::Kernel { name, grid: [1; 3], block: [1; 3], shared_bytes: 0 },
            start_ns: 0,
            end_ns: ns,
            gpu: 0,
            context: 1,
            stream: 7,
            correlation: 1,
            graph: None,
            submission: None,
        }
    }

    #[test]
    fn time_is_summed_by_gpu_and_kernel() {
        let mut seconds = KernelSeconds::default();
        seconds.add(Gpu::Host(0), &kernel("a", 10));
        seconds.add(Gpu::Host(0), &kernel("a", 5));
        seconds.add(Gpu::Host(1), &kernel("b", 7));
        seconds.add(Gpu::Host(1), &Execution { kind: ExecutionKind::Memset { bytes: 1 }, ..kernel("", 9) });
        seconds.sampled(Gpu::Host(0), 100);
        let report = seconds.report();
        let rows: Vec<_> = report.iter().map(|(_, time)| time.kernels.named().collect::<Vec<_>>()).collect();
        assert_eq!(rows, [vec![("a", 15)], vec![("b", 7)]]);
        assert_eq!((report[0].1.sampled_ns, report[0].1.executions, report[1].1.executions), (100, 2, 1));
    }

    #[test]
    fn series_are_bounded_and_no_time_is_missing() {
        let mut seconds = KernelSeconds::default();
        for round in 0..5 {
            (0..500).for_each(|at| seconds.add(Gpu::Host(0), &kernel(&format!("k{at}"), 1000 + round)));
        }
        let kernels = &seconds.report()[0].1.kernels;
        assert!(kernels.named().count() < 200, "{}", kernels.named().count());
        let sum = kernels.named().map(|(_, ns)| ns).sum::<u64>() + kernels.other();
        assert_eq!(sum, 500 * (5 * 1000 + 10));
    }
}
