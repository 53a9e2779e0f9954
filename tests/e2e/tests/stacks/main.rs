//! `gpuprobe stacks`: where the threads of programs hang, without probes and without disturbing them.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod busy_programs;
mod hostile_stacks;
mod hung_calls;
mod hung_jobs;
mod many_threads;
mod nccl_ras;
mod recent_xids;
mod restricted_processes;
mod stacks_at_quit;
mod undisturbed;
mod wrong_usage;
