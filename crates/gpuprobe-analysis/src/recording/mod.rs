//! A recorded trace replayed into its summary and into the data that a report draws.

pub mod call_errors;
pub mod diff;
pub mod event_filter;
pub mod functions;
mod gpu_errors;
mod gpu_op_replay;
pub mod kernel_module;
pub mod memory_ledger;
pub mod processes;
pub mod replay;
pub mod site_memory;
pub mod slowest;
pub mod summary;

pub use self::gpu_errors::{FailedCall, GpuError};
