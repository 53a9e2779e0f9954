//! The last operation on each stream: what a program that hangs may wait for.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::Tgid;
use gpuprobe_event::counters::CopyDirection;

use super::op::{GpuOp, OpKind};
use crate::gpu_ops::launches::UNKNOWN_KERNEL;
use crate::threads::sample::LastOperation;

/// Streams that are followed; the last operations of others are not known.
const MOST_STREAMS: usize = 8192;

#[derive(Clone, Debug, Default)]
pub(super) struct LastOps(HashMap<(Tgid, u64), LastOp>);

#[derive(Clone, Debug)]
struct LastOp {
    start_ns: u64,
    kind: LastKind,
}

#[derive(Clone, Debug)]
enum LastKind {
    Kernel(Option<Arc<str>>),
    Graph,
    Copy(CopyDirection),
}

impl LastOps {
    /// Takes in an operation. One that failed or became part of a graph was not submitted.
    pub(super) fn take(&mut self, op: &GpuOp) {
        let key = (op.tgid, op.stream);
        if op.failed || op.captured || (self.0.len() >= MOST_STREAMS && !self.0.contains_key(&key)) {
            return;
        }
        let kind = match &op.kind {
            OpKind::Launch(launch) => LastKind::Kernel(launch.kernel.clone()),
            OpKind::GraphLaunch(_) => LastKind::Graph,
            OpKind::Transfer(transfer) => LastKind::Copy(transfer.direction),
        };
        // the record of a launch without a return probe may come after later ones of other threads
        if self.0.get(&key).is_none_or(|last| last.start_ns <= op.start_ns) {
            self.0.insert(key, LastOp { start_ns: op.start_ns, kind });
        }
    }

    pub(super) fn clear(&mut self, tgid: Tgid) {
        self.0.retain(|(of, _), _| *of != tgid);
    }

    /// The last operations of all processes.
    pub(super) fn report(&self, now_ns: u64) -> HashMap<Tgid, Vec<LastOperation>> {
        let mut by_process: HashMap<Tgid, Vec<LastOperation>> = HashMap::new();
        for ((tgid, stream), last) in &self.0 {
            let operation = match &last.kind {
                LastKind::Kernel(name) => name.as_deref().unwrap_or(UNKNOWN_KERNEL).to_owned(),
                LastKind::Graph => "graph launch".to_owned(),
                LastKind::Copy(CopyDirection::Fill) => "memset".to_owned(),
                LastKind::Copy(direction) => format!("copy {}", direction.as_str()),
            };
            let age_ns = now_ns.saturating_sub(last.start_ns);
            by_process.entry(*tgid).or_default().push(LastOperation { stream: *stream, operation, age_ns });
        }
        by_process
    }
}
