//! Loads the BPF programs: the settings, what the machine must allow, and which programs and map sizes are chosen.

pub(crate) mod collect;
pub(crate) mod config;
pub(crate) mod hooks;
pub(crate) mod libbpf_log;
pub(crate) mod loader;
pub(crate) mod map_sizes;
pub(crate) mod probe_programs;
pub(crate) mod requirements;
pub(crate) mod second_object;
