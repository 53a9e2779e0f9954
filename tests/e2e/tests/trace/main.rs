//! `gpuprobe trace`: the lines that it prints while programs run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cuda_kernel_names;
mod trace_bad_input;
mod trace_lines;
mod trace_live;
