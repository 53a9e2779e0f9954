//! Events of the agent inside a process, other than executions: its states, and NVTX ranges.

use std::sync::Arc;

use crate::agent::{Collection, GraphRecords, RangeKind};
use crate::ids::{Tgid, Tid};

/// A change of what the agent does. It says why there are no GPU times, or how they were collected.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentEvent {
    /// Unique in its recording.
    pub id: u64,
    pub tgid: Tgid,
    /// The agent's thread.
    pub tid: Tid,
    pub process: Arc<str>,
    /// When the change began and when it was complete, in nanoseconds since the recording began. Submissions between
    /// them may or may not have executions.
    pub begin_ns: u64,
    pub end_ns: u64,
    pub collection: Collection,
    pub graphs: GraphRecords,
    /// CUPTI's result code, if a call of it failed.
    pub code: u32,
    /// While it collects, the file of libcupti; otherwise why, for people.
    pub text: Arc<str>,
}

/// A range or mark of NVTX: a part of the program that the program named itself.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeEvent {
    /// Unique in its recording.
    pub id: u64,
    pub tgid: Tgid,
    pub tid: Tid,
    pub process: Arc<str>,
    pub kind: RangeKind,
    /// Nanoseconds since the recording began.
    pub start_ns: u64,
    /// Equal to the start for a mark.
    pub end_ns: u64,
    /// The name of its domain; `None` for the default domain.
    pub domain: Option<Arc<str>>,
    /// Its message; empty if that is not known.
    pub name: Arc<str>,
    /// ARGB; 0 if it has none.
    pub color: u32,
}

/// Words of enum values in traces, for both directions.
macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $type {
            /// The word in traces.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The inverse of `as_str`.
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

words!(Collection {
    Collecting = "collecting",
    Stopped = "stopped",
    Refused = "refused",
    LetGo = "let_go",
    Failed = "failed",
});
words!(GraphRecords { Whole = "whole", Nodes = "nodes", NodesOfRunning = "nodes_of_running" });
words!(RangeKind { Nested = "nested", Process = "process", Mark = "mark" });

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn states() -> Vec<AgentEvent> {
        let collecting = AgentEvent {
            id: 40,
            tgid: Tgid(100),
            tid: Tid(102),
            process: Arc::from("python"),
            begin_ns: 1_000,
            end_ns: 18_000_500,
            collection: Collection::Collecting,
            graphs: GraphRecords::Whole,
            code: 0,
            text: Arc::from("/usr/lib/libcupti.so.13"),
        };
        let text = Arc::from("another subscriber");
        let refused =
            AgentEvent { id: 41, collection: Collection::Refused, code: 39, text, ..collecting.clone() };
        let nodes = AgentEvent { id: 42, graphs: GraphRecords::NodesOfRunning, ..collecting.clone() };
        vec![collecting, refused, nodes]
    }

    pub(crate) fn ranges() -> Vec<RangeEvent> {
        let nested = RangeEvent {
            id: 50,
            tgid: Tgid(100),
            tid: Tid(101),
            process: Arc::from("python"),
            kind: RangeKind::Nested,
            start_ns: 5_000,
            end_ns: 9_999,
            domain: Some(Arc::from("NCCL")),
            name: Arc::from("forward \"1\""),
            color: 0xff00_ff00,
        };
        let process =
            RangeEvent { id: 51, kind: RangeKind::Process, domain: None, color: 0, ..nested.clone() };
        let mark = RangeEvent { id: 52, kind: RangeKind::Mark, end_ns: 5_000, ..process.clone() };
        vec![nested, process, mark]
    }
}
