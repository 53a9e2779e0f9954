//! GPU operations: launches, graphs, copies, the gaps between them, and collectives.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod collectives;
mod copies;
mod copying_threads;
mod launch_returns;
mod launches;
