//! The state of the host at one moment: observed processes, their counters and live memory, and the GPUs.

pub(crate) mod gpu_numbering;
pub(crate) mod gpu_state_poller;
pub(crate) mod observer;
pub(crate) mod processes;
pub(crate) mod self_metrics;
mod xid_counts;
