//! A recorded trace replayed into its summary and into the data that a report draws.

pub mod call_errors;
mod call_tree;
pub mod collectives;
pub mod diff;
pub mod event_filter;
pub mod functions;
mod gpu_errors;
mod gpu_op_replay;
pub mod kernel_module;
pub mod memory_ledger;
mod out_of_memory;
pub mod processes;
pub mod ranks;
mod recorded_sites;
pub mod replay;
pub mod site_calls;
pub mod site_memory;
pub mod slowest;
pub mod summary;

pub use self::call_tree::TreeRow;
pub use self::gpu_errors::{FailedCall, GpuError};
pub use self::gpu_op_replay::{IdleGroup, IdleSummary, StreamIdle};
pub use self::out_of_memory::OutOfMemoryLog;
