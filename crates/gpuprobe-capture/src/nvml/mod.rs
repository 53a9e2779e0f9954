//! Reads the state of the GPUs from NVML, NVIDIA's management library.

pub(crate) mod gpu_activity_reader;
mod gpu_health_reader;
mod gpu_processes;
pub(crate) mod gpu_reader;
mod helper_message;
mod mig_reader;
pub(crate) mod nvml_helper;
pub(crate) mod nvml_library;
pub(crate) mod nvml_thread;
mod raw_values;
mod seldom;
pub(crate) mod xid_events;
