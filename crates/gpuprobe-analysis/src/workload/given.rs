//! What one call gave to a GPU, as its event tells it.

use gpuprobe_event::{Api, Call, Effect, GraphLaunch, Launch, Tgid, Tid, Transfer};

use crate::streams::stream_of;

/// One call that gave work to a GPU, or was to.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) tgid: Tgid,
    pub(super) tid: Tid,
    pub(super) start_ns: u64,
    pub(super) duration_ns: u64,
    /// Its time is that of calls inside it.
    is_of_inner: bool,
    pub(super) api: Api,
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
            Effect::Transfer(transfer) if transfer.rejected => return None,
            Effect::Transfer(transfer) => Task::Transfer(transfer.clone()),
            _ => return None,
        };
        Some(Self {
            tgid: call.tgid,
            tid: call.tid,
            start_ns: call.start_ns,
            duration_ns: call.duration_ns()?,
            is_of_inner: false,
            api: call.api,
            stream: stream_of(call).unwrap_or(0),
            failed: call.failed(),
            captured: call.effect.captured(),
            task,
        })
    }

    /// Takes what the calls inside it know better: the runtime may launch by a handle that has no name, and the time of its
    /// copies is that of the driver's calls.
    pub(super) fn learn(&mut self, inner: Self) {
        match (&mut self.task, inner.task) {
            (Task::Launch(launch), Task::Launch(known)) if launch.kernel.is_none() => {
                launch.kernel = known.kernel;
            }
            (Task::Transfer(_), Task::Transfer(_)) if self.api == Api::Runtime => {
                let before_ns = if self.is_of_inner { self.duration_ns } else { 0 };
                self.duration_ns = before_ns.saturating_add(inner.duration_ns);
                self.is_of_inner = true;
            }
            _ => {}
        }
    }
}
