//! The GPU operation of one call, from its event.

use gpuprobe_event::{Call, Effect, GraphLaunch, Launch, Tgid, Tid, Transfer};

use crate::gpu_ops::streams::stream_of;

/// One call that submitted a GPU operation, or failed to.
#[derive(Clone, Debug)]
pub(super) struct GpuOp {
    pub(super) tgid: Tgid,
    pub(super) tid: Tid,
    pub(super) start_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) stream: u64,
    pub(super) failed: bool,
    pub(super) captured: bool,
    /// How many operations it stands for.
    pub(super) weight: u64,
    pub(super) return_probed: bool,
    pub(super) kind: OpKind,
}

#[derive(Clone, Debug)]
pub(super) enum OpKind {
    Launch(Launch),
    GraphLaunch(GraphLaunch),
    /// A copy or a memset.
    Transfer(Transfer),
}

impl GpuOp {
    /// `None` if the call did not return or is no GPU operation.
    pub(super) fn of(call: &Call) -> Option<Self> {
        let kind = match &call.effect {
            Effect::Launch(launch) => {
                // a forged trace can have any number
                OpKind::Launch(Launch { kernels: launch.kernels.min(Launch::MOST_KERNELS), ..launch.clone() })
            }
            Effect::GraphLaunch(launch) => OpKind::GraphLaunch(launch.clone()),
            // a copy is counted where the CUDA driver is called, and this one made no such call
            Effect::Transfer(transfer) if transfer.without_driver => return None,
            Effect::Transfer(transfer) => OpKind::Transfer(transfer.clone()),
            _ => return None,
        };
        Some(Self {
            tgid: call.tgid,
            tid: call.tid,
            start_ns: call.start_ns,
            duration_ns: call.duration_ns()?,
            stream: stream_of(call).unwrap_or(0),
            failed: call.failed(),
            captured: call.effect.captured(),
            weight: u64::from(call.weight),
            return_probed: call.return_probed,
            kind,
        })
    }

    /// Whether the record of a copy inside another call is complete. Traces of earlier versions have the bytes only
    /// at the outer call.
    pub(super) fn is_complete_copy(&self) -> bool {
        let OpKind::Transfer(transfer) = &self.kind else { return false };
        transfer.copied.is_some() || !transfer.parts.is_empty() || self.failed || self.captured
    }

    /// Takes the name of the CUDA kernel from the call inside: the runtime may launch by a handle without a name.
    pub(super) fn take_name_from(&mut self, inner: Self) {
        match (&mut self.kind, inner.kind) {
            (OpKind::Launch(launch), OpKind::Launch(known)) if launch.kernel.is_none() => {
                launch.kernel = known.kernel;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::counters::CopyDirection::HostToDevice;

    use super::super::GpuOpReplay;
    use super::*;
    use crate::gpu_ops::process_ops::GpuOps;
    use crate::samples::{copy, launch, took};

    fn fed(calls: &[Call]) -> GpuOps {
        let mut replay = GpuOpReplay::default();
        calls.iter().for_each(|call| replay.feed(call));
        replay.report()
    }

    #[test]
    fn a_sampled_operation_counts_as_many_as_it_stands_for_and_ends_no_gap() {
        let at = |start_ns| Call { start_ns, ..took(launch("cuLaunchKernel", Some(1)), 10) };
        let exact = [at(0), at(1000), copy(HostToDevice, 100, 0)];
        let sampled = exact.clone().map(|call| Call { weight: 4, ..call });
        let (exact, sampled) = (fed(&exact), fed(&sampled));
        let launched = |ops: &GpuOps| (ops.kernels[0].totals.launches, ops.kernels[0].totals.total_ns);
        assert_eq!((launched(&exact), launched(&sampled)), ((2, 20), (8, 80)));
        let copied = |ops: &GpuOps| (ops.copies[0].copies, ops.copies[0].bytes);
        assert_eq!((copied(&exact), copied(&sampled)), ((1, 100), (4, 400)));
        assert_eq!((exact.gaps.after_launch.gaps, sampled.gaps.after_launch.gaps), (1, 0));
    }
}
