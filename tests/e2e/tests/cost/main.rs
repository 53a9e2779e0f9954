//! What probes cost, and the budget that limits it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod budget;
mod cost_per_call;
mod start_cost;
