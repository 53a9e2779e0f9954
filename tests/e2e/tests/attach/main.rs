//! Probes: which calls are seen from when on, in which processes and libraries, and what is left of probes afterwards.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod containers;
mod corner_calls;
mod early_calls;
mod killed;
mod late_attach;
mod late_gpu_ops;
mod library_layouts;
mod multiple_stacks;
mod paused;
mod reused_inode;
mod short_processes;
mod signals;
mod tail_calls;
