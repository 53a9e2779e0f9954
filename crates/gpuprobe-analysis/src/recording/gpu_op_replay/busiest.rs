//! How long each thread was busy with calls that work could be taken off.

use std::collections::HashMap;

use gpuprobe_event::counters::HostMemory;
use gpuprobe_event::{Tgid, Tid};

use super::op::Given;
use crate::gpu_ops::launches::SHORT_LAUNCH_LOG2;
use crate::gpu_ops::process_ops::Busiest;
use crate::stats::buckets::bucket;

/// Threads that are told apart; the others are not looked at.
const MOST_THREADS: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    threads: HashMap<(Tgid, Tid), Busiest>,
    /// Of processes that ended.
    ended: Busiest,
}

impl Busy {
    /// A launch. One that took long was kept waiting by a full queue.
    pub(super) fn launch(&mut self, given: &Given) {
        let length = bucket(given.duration_ns);
        if (1..SHORT_LAUNCH_LOG2).contains(&length) {
            // as little as the bucket can stand for, as it is of counts
            self.add(given, Busiest { launching_ns: 1 << length, copying_ns: 0 });
        }
    }

    /// A copy with this memory at its host end.
    pub(super) fn copy(&mut self, given: &Given, host: HostMemory) {
        if host == HostMemory::Pageable {
            self.add(given, Busiest { launching_ns: 0, copying_ns: given.duration_ns });
        }
    }

    /// A process has ended, or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        let threads: Vec<_> =
            self.threads.extract_if(|(of, _), _| *of == tgid).map(|(_, busy)| busy).collect();
        self.ended = sum(self.ended, threads.into_iter().fold(Busiest::default(), most));
    }

    /// Of each process its busiest threads, all processes together; nothing where none was busy.
    pub(super) fn busiest(&self) -> Option<Busiest> {
        let mut processes: HashMap<Tgid, Busiest> = HashMap::new();
        for ((tgid, _), busy) in &self.threads {
            let process = processes.entry(*tgid).or_default();
            *process = most(*process, *busy);
        }
        Some(processes.into_values().fold(self.ended, sum)).filter(|busiest| *busiest != Busiest::default())
    }

    fn add(&mut self, given: &Given, more: Busiest) {
        let key = (given.tgid, given.tid);
        if self.threads.len() < MOST_THREADS || self.threads.contains_key(&key) {
            let busy = self.threads.entry(key).or_default();
            *busy = sum(*busy, more);
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
