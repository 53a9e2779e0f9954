//! The state that the daemon serves: running and exited processes, GPUs, and gpuprobe itself at one moment.

pub mod exited;
pub mod function_counts;
pub mod gpu_state;
mod memory_counts;
pub mod pending_calls;
mod process_snapshot;
pub mod self_metrics;
pub mod snapshot;
