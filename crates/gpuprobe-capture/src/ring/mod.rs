//! Reads ring buffers, those of the BPF programs and those of perf, and decodes their records to events.

pub(crate) mod agent_ring;
pub(crate) mod backlog;
pub(crate) mod batch;
pub(crate) mod call_effects;
pub(crate) mod cuda_kernel_names;
pub(crate) mod decoder;
pub(crate) mod device_calls;
pub(crate) mod graph_contents;
pub(crate) mod mapping_events;
pub(crate) mod mapping_record;
pub(crate) mod records;
pub(crate) mod ring_reader;
mod spool;
pub(crate) mod spool_file;
mod spool_queue;
pub(crate) mod xid_message;
