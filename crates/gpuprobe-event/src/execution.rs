//! What a GPU executed, as CUPTI reports it.

use std::sync::Arc;

use crate::copy_kind::CopyDirection;
use crate::ids::{Tgid, Tid};

/// One execution: a CUDA kernel, a copy, a memset, or a CUDA graph as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Unique in its recording.
    pub id: u64,
    pub tgid: Tgid,
    pub process: Arc<str>,
    pub kind: ExecutionKind,
    /// Nanoseconds since the recording began, by the clock of the host.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The GPU by the process's number.
    pub gpu: u32,
    /// CUPTI's number of the context.
    pub context: u32,
    /// CUPTI's number of the stream, which is not its handle.
    pub stream: u32,
    /// CUPTI's number of the submission. The executions of one graph launch share it.
    pub correlation: u32,
    /// CUPTI's number of the CUDA graph that it is a node of, or that it is.
    pub graph: Option<u32>,
    /// The call that submitted it, if that was found.
    pub submission: Option<SubmittingCall>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutionKind {
    Kernel {
        /// The demangled name, if known.
        name: Option<Arc<str>>,
        grid: [u32; 3],
        block: [u32; 3],
        /// Static and dynamic shared memory.
        shared_bytes: u32,
    },
    Copy {
        direction: CopyDirection,
        bytes: u64,
    },
    Memset {
        bytes: u64,
    },
    /// A CUDA graph as a whole.
    Graph,
}

/// The call that submitted an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmittingCall {
    /// The id of the event.
    pub call: u64,
    /// Its thread.
    pub tid: Tid,
    /// From the beginning of the call to the start of the execution. 0 if the clocks of GPU and host disagree about
    /// their order.
    pub queued_ns: u64,
}

impl Execution {
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// When the submitting call began, if it is known.
    pub fn submitted_ns(&self) -> Option<u64> {
        self.submission.map(|by| self.start_ns.saturating_sub(by.queued_ns))
    }
}

impl ExecutionKind {
    /// The name of a CUDA kernel without a known name. No function can have it.
    pub const UNKNOWN_KERNEL: &'static str = "(unknown)";

    /// The word for its kind in traces.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Kernel { .. } => "kernel",
            Self::Copy { .. } => "copy",
            Self::Memset { .. } => "memset",
            Self::Graph => "graph",
        }
    }

    /// A title in one name: that of the CUDA kernel, or the kind.
    pub fn title(&self) -> &str {
        match self {
            Self::Kernel { name, .. } => name.as_deref().unwrap_or(Self::UNKNOWN_KERNEL),
            _ => self.as_str(),
        }
    }

    /// Bytes of a copy or memset.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Copy { bytes, .. } | Self::Memset { bytes } => Some(*bytes),
            Self::Kernel { .. } | Self::Graph => None,
        }
    }
}

#[cfg(test)]
impl Execution {
    /// One of each kind, with and without what is optional.
    pub(crate) fn samples() -> Vec<Self> {
        let kernel = ExecutionKind::Kernel {
            name: Some(Arc::from("void k<int>(int*)")),
            grid: [4, 2, 1],
            block: [128, 1, 1],
            shared_bytes: 1024,
        };
        let submission = SubmittingCall { call: 8, tid: Tid(101), queued_ns: 4_321 };
        let first = Self {
            id: 30,
            tgid: Tgid(100),
            process: Arc::from("python"),
            kind: kernel,
            start_ns: 1_000_000_123,
            end_ns: 1_000_005_555,
            gpu: 1,
            context: 2,
            stream: 7,
            correlation: 55,
            graph: None,
            submission: Some(submission),
        };
        let of = |id, kind, graph| Self { id, kind, graph, submission: None, ..first.clone() };
        let unnamed =
            ExecutionKind::Kernel { name: None, grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 0 };
        let copy = |direction| ExecutionKind::Copy { direction, bytes: 4096 };
        vec![
            first.clone(),
            of(31, unnamed, Some(9)),
            of(32, copy(CopyDirection::DeviceToHost), None),
            of(33, copy(CopyDirection::Unknown), None),
            of(34, ExecutionKind::Memset { bytes: 64 }, None),
            of(35, ExecutionKind::Graph, Some(9)),
        ]
    }
}
