//! Where this gpuprobe loads NVML: a statically linked one cannot load libraries and carries a program that can.

use gpuprobe_capture::NvmlLoader;

#[cfg(target_feature = "crt-static")]
const PROGRAM: Option<&[u8]> = Some(include_bytes!(env!(
    "GPUPROBE_NVML_HELPER",
    "a statically linked gpuprobe contains gpuprobe-nvml: build it with `make static`"
)));
#[cfg(not(target_feature = "crt-static"))]
const PROGRAM: Option<&[u8]> = None;

pub(crate) fn nvml_loader() -> NvmlLoader {
    PROGRAM.map_or(NvmlLoader::ThisProcess, NvmlLoader::Program)
}
