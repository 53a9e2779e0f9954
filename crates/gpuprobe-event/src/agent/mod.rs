//! What the agent inside a process reports: batches of records, in the bytes that its probe passes on.

mod batch;
mod bytes;
mod record;

pub use batch::{BatchDecoder, BatchEncoder, BatchError, BatchHeader};
pub use record::{
    Activity, ActivityKind, AgentRecord, AgentState, Collection, GraphRecords, RangeKind, RangeRecord,
};

/// The file name of the agent's library.
pub const LIBRARY: &str = "libgpuprobe_agent.so";
/// The function that the agent calls with the address of a batch and its length in bytes. It does nothing; probes read
/// the batch.
pub const EMIT: &str = "gpuprobe_agent_emit";

/// What gpuprobe asks the agent of one process for. Each is a function that is never called, and a counter of the probes
/// on it, which the Linux kernel changes when a probe is attached or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentRequest {
    /// Collect.
    Collect,
    /// Record each node of a CUDA graph, and not the graph as a whole.
    Nodes,
    /// Leave CUPTI to another user of it.
    LetGo,
}

impl AgentRequest {
    pub const ALL: [Self; 3] = [Self::Collect, Self::Nodes, Self::LetGo];

    pub fn function(self) -> &'static str {
        match self {
            Self::Collect => "gpuprobe_agent_collect",
            Self::Nodes => "gpuprobe_agent_nodes",
            Self::LetGo => "gpuprobe_agent_let_go",
        }
    }

    /// The symbol of the counter.
    pub fn semaphore(self) -> &'static str {
        match self {
            Self::Collect => "gpuprobe_agent_collect_semaphore",
            Self::Nodes => "gpuprobe_agent_nodes_semaphore",
            Self::LetGo => "gpuprobe_agent_let_go_semaphore",
        }
    }
}
