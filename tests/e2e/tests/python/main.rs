//! Python programs: the lines of their calls are those that they report themselves, with every interpreter of the host.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod autograd_threads;
mod forged_interpreters;
mod freed_code;
mod hostile_python_names;
mod python_lines;
mod python_processes;
mod several_interpreters;
