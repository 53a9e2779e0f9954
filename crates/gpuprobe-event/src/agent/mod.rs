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
/// The function that the agent calls with the address of a batch and its length in bytes. While it is probed, the
/// agent collects.
pub const EMIT: &str = "gpuprobe_agent_emit";
/// Counts the probes of `EMIT`. The Linux kernel changes it when a probe is attached or removed.
pub const EMIT_SEMAPHORE: &str = "gpuprobe_agent_emit_semaphore";
/// Never called. While it is probed, the agent records each node of a CUDA graph, and not the graph as a whole.
pub const NODES: &str = "gpuprobe_agent_nodes";
pub const NODES_SEMAPHORE: &str = "gpuprobe_agent_nodes_semaphore";
/// Never called. While it is probed, the agent leaves CUPTI to another user of it.
pub const LET_GO: &str = "gpuprobe_agent_let_go";
pub const LET_GO_SEMAPHORE: &str = "gpuprobe_agent_let_go_semaphore";
