//! Reads the state of AMD's GPUs from ROCm SMI, AMD's management library.

mod amd_gpu_reader;
mod raw_state;
mod rocm_smi_library;
mod rocm_smi_version;

pub(crate) use amd_gpu_reader::AmdGpuReader;
pub(crate) use rocm_smi_version::has_amdgpu;
pub use rocm_smi_version::{RocmSmiVersion, rocm_smi_version};
