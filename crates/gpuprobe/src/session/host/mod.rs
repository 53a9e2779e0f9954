//! The state of the host at one moment: observed processes, their counters and live memory, and the GPUs.

pub(crate) mod gpu_numbering;
pub(crate) mod gpu_state_poller;
pub(crate) mod nccl_ras;
pub(crate) mod observer;
mod out_of_memory_notes;
pub(crate) mod processes;
pub(crate) mod self_metrics;
mod xid_counts;
