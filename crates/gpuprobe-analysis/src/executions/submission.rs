//! Calls that gave a GPU something to execute.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Call, Effect, GraphContents, Outcome, Tgid, Tid, Transfer};

/// A call that gave a GPU something to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The id of the event.
    pub call: u64,
    pub tid: Tid,
    pub start_ns: u64,
    pub end_ns: u64,
    /// The handle of the stream, if the call names one.
    pub stream: Option<u64>,
    pub op: SubmittedOp,
}

/// What was submitted, as far as the call shows it. What is not known can be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmittedOp {
    Kernel {
        name: Option<Arc<str>>,
        grid: Option<[u32; 3]>,
        block: Option<[u32; 3]>,
        /// One on each GPU that the call names.
        kernels: u64,
    },
    Copy {
        direction: CopyDirection,
        bytes: Option<u64>,
    },
    Memset {
        bytes: Option<u64>,
    },
    Graph {
        contents: Option<Arc<GraphContents>>,
    },
}

impl Submission {
    /// `None` if the call gave a GPU nothing to execute: it failed, was captured, or copied nothing. A call inside
    /// another one of the same kind is not a submission of its own.
    pub fn of(call: &Call) -> Option<Self> {
        let may_have_submitted = call.took_effect() || call.outcome == Outcome::Unobserved;
        if !may_have_submitted || call.nested || call.effect.captured() {
            return None;
        }
        let op = match &call.effect {
            Effect::Launch(launch) => SubmittedOp::Kernel {
                name: launch.kernel.clone(),
                grid: launch.grid,
                block: launch.block,
                kernels: launch.kernels,
            },
            Effect::GraphLaunch(launch) => SubmittedOp::Graph { contents: launch.contents.clone() },
            Effect::Transfer(transfer) => transferred(transfer)?,
            _ => return None,
        };
        let end_ns = call.start_ns.saturating_add(call.duration_ns().unwrap_or(0));
        Some(Self { call: call.id, tid: call.tid, start_ns: call.start_ns, end_ns, stream: call.stream, op })
    }

    /// Whether a GPU certainly executed something. A copy between two places of the host may need no GPU.
    pub(super) fn surely_executes(&self) -> bool {
        let is_of_host = |direction| matches!(direction, CopyDirection::HostToHost | CopyDirection::Unknown);
        !matches!(self.op, SubmittedOp::Copy { direction, .. } if is_of_host(direction))
    }

    /// Whether it is known what it executes. A launch without a name may be that of any CUDA kernel.
    pub(super) fn is_named(&self) -> bool {
        !matches!(self.op, SubmittedOp::Kernel { name: None, .. })
    }
}

fn transferred(transfer: &Transfer) -> Option<SubmittedOp> {
    let bytes = match transfer.bytes {
        None if transfer.parts.is_empty() => None,
        _ => Some(transfer.moved()),
    };
    if transfer.without_driver || bytes == Some(0) {
        return None;
    }
    Some(match transfer.direction {
        CopyDirection::Fill => SubmittedOp::Memset { bytes },
        direction => SubmittedOp::Copy { direction, bytes },
    })
}

/// Makes submissions of calls in the order of their returns.
#[derive(Debug, Default)]
pub struct Submissions {
    /// The last launch inside another one, by thread. The CUDA runtime may launch by a handle whose name only the call
    /// of the CUDA driver inside has.
    names: HashMap<(Tgid, Tid), (u64, Arc<str>)>,
}

impl Submissions {
    const MOST_THREADS: usize = 1 << 12;

    pub fn of(&mut self, call: &Call) -> Option<Submission> {
        let key = (call.tgid, call.tid);
        if call.nested
            && let Some(name) = call.effect.kernel()
        {
            if self.names.len() >= Self::MOST_THREADS {
                self.names.clear();
            }
            self.names.insert(key, (call.start_ns, Arc::clone(name)));
            return None;
        }
        let mut submission = Submission::of(call)?;
        if let SubmittedOp::Kernel { name: name @ None, .. } = &mut submission.op
            && let Some((start_ns, inner)) = self.names.get(&key)
            && *start_ns >= call.start_ns
        {
            *name = Some(Arc::clone(inner));
        }
        Some(submission)
    }

    /// A process exited or runs another program.
    pub fn clear(&mut self, tgid: Tgid) {
        self.names.retain(|(of, _), _| *of != tgid);
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::Api;

    use super::*;
    use crate::samples::{call, captured, copy, launch, nested, of_kernel, unfinished};

    #[test]
    fn calls_that_execute_nothing_are_no_submissions() {
        let direction = CopyDirection::HostToDevice;
        for call in [
            call(Api::Runtime, "cudaMalloc", 0),
            copy(direction, 0, 0),
            copy(direction, 8, 1),
            unfinished(copy(direction, 8, 0)),
            captured(launch("cuLaunchKernel", None)),
            nested(launch("cuLaunchKernel", None), 1),
        ] {
            assert_eq!(Submission::of(&call), None, "{call:?}");
        }
        let copied = Submission::of(&copy(direction, 8, 0)).map(|submission| submission.op);
        assert_eq!(copied, Some(SubmittedOp::Copy { direction, bytes: Some(8) }));
    }

    #[test]
    fn a_launch_by_a_handle_has_the_name_of_the_call_inside() {
        let mut submissions = Submissions::default();
        let inner = nested(of_kernel(launch("cuLaunchKernel", None), Some("add")), 1);
        let outer = launch("cudaLaunchKernel", None);
        let name = |submission: Option<Submission>| match submission.map(|it| it.op) {
            Some(SubmittedOp::Kernel { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(submissions.of(&inner), None);
        assert_eq!(name(submissions.of(&outer)).as_deref(), Some("add"));
        let later = Call { start_ns: outer.start_ns + 1, ..outer };
        assert_eq!(name(submissions.of(&later)), None, "it has another call inside");
    }
}
