//! GPU operations: launches, graphs, copies and the gaps between them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod copies;
mod launches;
