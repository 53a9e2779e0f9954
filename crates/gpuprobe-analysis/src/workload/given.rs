//! What one call gave to a GPU, as its event tells it.

use std::sync::Arc;

use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{Call, Class, CopyPart, Tgid, Tid};

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
    Launch {
        kernel: Option<Arc<str>>,
        /// Launches that the call makes.
        kernels: u64,
        grid: Option<[u32; 3]>,
        block: Option<[u32; 3]>,
        shared: u64,
    },
    GraphLaunch {
        /// Where it is known what the graph is made of.
        kernels: Option<u64>,
    },
    /// A copy or a memset.
    Copy { direction: CopyDirection, is_async: bool, host: HostMemory, size: u64, parts: Vec<CopyPart> },
}

impl Given {
    /// Of a call that returned; nothing where it gives no work.
    pub(super) fn of(call: &Call) -> Option<Self> {
        let effect = &call.effect;
        let task = match call.class {
            Class::Launch => Task::Launch {
                kernel: effect.kernel.clone(),
                kernels: effect.kernels.unwrap_or(1).min(MOST_LAUNCHED),
                grid: effect.grid,
                block: effect.block,
                shared: effect.shared.unwrap_or(0),
            },
            Class::GraphLaunch => Task::GraphLaunch { kernels: effect.kernels },
            Class::Memcpy | Class::Memset => {
                let direction = match call.class {
                    Class::Memset => CopyDirection::Fill,
                    _ => direction(effect.kind.as_deref()),
                };
                Task::Copy {
                    direction,
                    // traces of earlier versions leave it to the name
                    is_async: effect.is_async.unwrap_or_else(|| call.name.contains("Async")),
                    host: host(direction, effect.host.as_deref()),
                    size: effect.size.unwrap_or(0),
                    parts: effect.parts.clone(),
                }
            }
            _ => return None,
        };
        Some(Self {
            tgid: call.tgid,
            tid: call.tid,
            start_ns: call.start_ns,
            duration_ns: call.duration_ns()?,
            stream: stream_of(call).unwrap_or(0),
            failed: call.failed(),
            captured: effect.captured,
            task,
        })
    }

    /// Takes what only the call inside it knew: the runtime may launch by a handle that has no name.
    pub(super) fn learn(&mut self, inner: Self) {
        if let (Task::Launch { kernel, .. }, Task::Launch { kernel: known, .. }) =
            (&mut self.task, inner.task)
            && kernel.is_none()
        {
            *kernel = known;
        }
    }
}

/// A direction by its word.
pub(super) fn direction(word: Option<&str>) -> CopyDirection {
    let found = CopyDirection::ALL.iter().find(|direction| Some(direction.as_str()) == word);
    found.copied().unwrap_or(CopyDirection::Unknown)
}

/// Host memory by its word. Where a copy has a host end and none is told, it is not known.
pub(super) fn host(direction: CopyDirection, word: Option<&str>) -> HostMemory {
    use CopyDirection::{DeviceToDevice, Fill, Peer};
    match HostMemory::ALL.iter().find(|host| Some(host.as_str()) == word) {
        Some(host) => *host,
        None if matches!(direction, DeviceToDevice | Peer | Fill) => HostMemory::Nothing,
        None => HostMemory::Unknown,
    }
}
