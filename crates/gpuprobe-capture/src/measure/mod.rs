//! Measures what probes cost: the workloads, settings and checks that `gpuprobe bench` and `--budget` share.
//!
//! `--budget` calls functions of our own executable, because it must start fast and without a folder to run programs
//! from; `bench` runs a program on copies of a library, because it also measures other prologues and the probes of
//! other programs (`--beside`).

pub(crate) mod measure_config;
pub(crate) mod probe_cost;
pub(crate) mod seen_calls;
pub(crate) mod workload;
