//! What one call gave to a GPU, as its event tells it.

use gpuprobe_event::{Call, Effect, GraphLaunch, Launch, Tgid, Tid, Transfer};

use crate::streams::stream_of;

/// GPUs that one call launches a kernel on.
const MOST_LAUNCHED: u64 = 64;

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
                Task::Launch(Launch { kernels: launch.kernels.min(MOST_LAUNCHED), ..launch.clone() })
            }
            Effect::GraphLaunch(launch) => Task::GraphLaunch(*launch),
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

    /// Takes what the call inside it knows better: the runtime may launch by a handle that has no name, and the time of a
    /// copy is that of the driver's call, as it is in the tables.
    pub(super) fn learn(&mut self, inner: Self) {
        match (&mut self.task, inner.task) {
            (Task::Launch(launch), Task::Launch(known)) if launch.kernel.is_none() => {
                launch.kernel = known.kernel;
            }
            (Task::Transfer(_), Task::Transfer(_)) => self.duration_ns = inner.duration_ns,
            _ => {}
        }
    }
}
