//! The time that each thread spends in short launches and in pageable copies.

use std::collections::HashMap;

use gpuprobe_event::counters::HostMemory;
use gpuprobe_event::{Tgid, Tid};

use super::op::GpuOp;
use crate::gpu_ops::launches::SHORT_LAUNCH_LOG2;
use crate::gpu_ops::process_ops::Busiest;
use crate::stats::buckets::bucket;

/// Threads that are followed; others are ignored.
const MOST_THREADS: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct BusiestThreads {
    threads: HashMap<(Tgid, Tid), Busiest>,
    /// The sum over exited processes.
    exited: Busiest,
}

impl BusiestThreads {
    /// Adds a launch, unless it took so long that it waited for a full queue.
    pub(super) fn launch(&mut self, op: &GpuOp) {
        let length = bucket(op.duration_ns);
        if (1..SHORT_LAUNCH_LOG2).contains(&length) {
            // the lower bound of the bucket, to be consistent with histograms of the tables
            self.add(op, Busiest { launching_ns: 1 << length, copying_ns: 0 });
        }
    }

    /// Adds a copy from or to this kind of host memory.
    pub(super) fn copy(&mut self, op: &GpuOp, host: HostMemory) {
        if host == HostMemory::Pageable {
            self.add(op, Busiest { launching_ns: 0, copying_ns: op.duration_ns });
        }
    }

    /// Settles a process that exited or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        let threads: Vec<_> =
            self.threads.extract_if(|(of, _), _| *of == tgid).map(|(_, time)| time).collect();
        self.exited = sum(self.exited, threads.into_iter().fold(Busiest::default(), most));
    }

    /// The busiest threads of each process, summed over processes; `None` if the sum is zero.
    pub(super) fn busiest(&self) -> Option<Busiest> {
        let mut processes: HashMap<Tgid, Busiest> = HashMap::new();
        for ((tgid, _), time) in &self.threads {
            let process = processes.entry(*tgid).or_default();
            *process = most(*process, *time);
        }
        Some(processes.into_values().fold(self.exited, sum)).filter(|busiest| *busiest != Busiest::default())
    }

    fn add(&mut self, op: &GpuOp, more: Busiest) {
        let key = (op.tgid, op.tid);
        if self.threads.len() < MOST_THREADS || self.threads.contains_key(&key) {
            let time = self.threads.entry(key).or_default();
            *time = sum(*time, more);
        }
    }
}

fn most(a: Busiest, b: Busiest) -> Busiest {
    Busiest { launching_ns: a.launching_ns.max(b.launching_ns), copying_ns: a.copying_ns.max(b.copying_ns) }
}

fn sum(a: Busiest, b: Busiest) -> Busiest {
    Busiest {
        launching_ns: a.launching_ns.saturating_add(b.launching_ns),
        copying_ns: a.copying_ns.saturating_add(b.copying_ns),
    }
}
