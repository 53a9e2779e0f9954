//! GPU operations (launches, graph launches, copies, memsets) as totals, as counter series, and as advice.

pub mod advice;
pub mod command_series;
pub mod copies;
pub mod cuda_kernel_series;
pub mod gaps;
pub mod launches;
pub mod process_ops;
pub mod streams;
