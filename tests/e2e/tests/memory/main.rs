//! Memory: what is live, on which GPU, and where it was allocated.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod async_tensors;
mod call_sites;
mod call_sites_of_commands;
mod classic;
mod host_gpus;
mod memory_command;
mod memory_rules;
mod out_of_memory;
mod tensors;
