//! Processes without counted calls, which have only gauges: those that NVML knows, and those in their first call.

use gpuprobe_analysis::Snapshot;
use gpuprobe_event::{Container, Tgid};

use super::super::process_series::{Aggregate, ProcessLabels};

#[derive(Clone, Debug)]
pub(super) struct Silent {
    pub(super) pid: Tgid,
    pub(super) name: String,
    pub(super) container: Option<Container>,
    /// On GPUs, as NVML reports it.
    pub(super) bytes: u64,
}

impl Silent {
    /// Those of a snapshot.
    pub(super) fn of(snapshot: &Snapshot) -> Vec<Self> {
        let of_nvml = snapshot.gpu_states.users.iter().filter(|user| snapshot.running(user.pid).is_none());
        let of_nvml = of_nvml.map(|user| Self {
            pid: user.pid,
            name: user.name.clone(),
            container: None,
            bytes: user.memory_bytes.unwrap_or(0),
        });
        let pending = snapshot.pending.iter().map(|call| Self {
            pid: call.pid,
            name: call.name.clone(),
            container: call.container.clone(),
            bytes: 0,
        });
        of_nvml.chain(pending).filter(|process| !process.is_counted(snapshot)).collect()
    }

    fn is_counted(&self, snapshot: &Snapshot) -> bool {
        // sorted by pid
        let from = snapshot.processes.partition_point(|process| process.pid < self.pid);
        let mut same = snapshot.processes.iter().skip(from).take_while(|process| process.pid == self.pid);
        same.any(|process| (&process.name, &process.container) == (&self.name, &self.container))
    }

    pub(super) fn labels(&self, aggregate: Aggregate) -> ProcessLabels {
        ProcessLabels::new(aggregate, self.pid, &self.name, self.container.as_ref())
    }
}
