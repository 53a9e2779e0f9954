//! Tests that take minutes: everything at once, at scale, and every figure compared with its other implementation.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod chaos;
mod conformance;
mod daemon_scale;
mod launches_counted;
mod torture;
mod trace_scale;
