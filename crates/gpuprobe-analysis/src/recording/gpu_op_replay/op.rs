//! What one call gave to a GPU, as its event tells it.

use gpuprobe_event::{Call, Effect, GraphLaunch, Launch, Tgid, Tid, Transfer};

use crate::gpu_ops::streams::stream_of;

/// One call that gave work to a GPU, or was to.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) tgid: Tgid,
    pub(super) tid: Tid,
    pub(super) start_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) stream: u64,
    pub(super) failed: bool,
    pub(super) captured: bool,
    pub(super) task: Task,
}

/// What it gave.
#[derive(Clone, Debug)]
pub(super) enum Task {
    Launch(Launch),
    GraphLaunch(GraphLaunch),
    /// A copy or a memset.
    Transfer(Transfer),
}

impl Given {
    /// Of a call that returned; nothing where it gives no work.
    pub(super) fn of(call: &Call) -> Option<Self> {
        let task = match &call.effect {
            Effect::Launch(launch) => {
                // a trace can claim any number
                Task::Launch(Launch { kernels: launch.kernels.min(Launch::MOST_KERNELS), ..launch.clone() })
            }
            Effect::GraphLaunch(launch) => Task::GraphLaunch(*launch),
            // a copy is what the driver was asked for
            Effect::Transfer(transfer) if transfer.without_driver => return None,
            Effect::Transfer(transfer) => Task::Transfer(transfer.clone()),
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
            task,
        })
    }

    /// Whether all is known of a copy inside another: traces of earlier versions have its bytes at the outer call alone.
    pub(super) fn is_whole_copy(&self) -> bool {
        let Task::Transfer(transfer) = &self.task else { return false };
        transfer.copied.is_some() || !transfer.parts.is_empty() || self.failed || self.captured
    }

    /// Takes what the calls inside it know better: the runtime may launch by a handle that has no name.
    pub(super) fn learn(&mut self, inner: Self) {
        match (&mut self.task, inner.task) {
            (Task::Launch(launch), Task::Launch(known)) if launch.kernel.is_none() => {
                launch.kernel = known.kernel;
            }
            _ => {}
        }
    }
}
