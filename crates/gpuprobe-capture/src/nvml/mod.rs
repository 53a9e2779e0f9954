//! Reads the state of the GPUs from NVML, NVIDIA's management library.

pub(crate) mod gpu_activity_reader;
mod gpu_processes;
pub(crate) mod gpu_reader;
pub(crate) mod nvml_library;
pub(crate) mod nvml_thread;
pub(crate) mod xid_events;
