//! The state of the host at one moment: observed processes, their counters and live memory, and the GPUs.

pub(crate) mod error_gpus;
pub(crate) mod gpu_look;
pub(crate) mod gpu_numbering;
pub(crate) mod gpu_state_poller;
pub(crate) mod kernel_log_xids;
pub(crate) mod nccl_ras;
pub(crate) mod nvml_loader;
pub(crate) mod observer;
mod out_of_memory_notes;
pub(crate) mod pending_calls;
pub(crate) mod processes;
pub(crate) mod rank;
pub(crate) mod self_metrics;
pub(crate) mod tensor_reader;
mod xid_counts;
