//! Failure points: instructions of the CUDA runtime that run only if a call fails.

mod code_chunks;
mod failure_points;
mod function_flow;
mod status_register;

pub use failure_points::FailurePoint;
pub(super) use failure_points::{Found, find};
