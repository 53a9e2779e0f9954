//! The version of the loaded NVIDIA kernel module.

use gpuprobe_event::driver::Version;

/// The version of the loaded NVIDIA kernel module, which names its commands; the newest names are used if none is
/// loaded.
pub(crate) fn loaded_version() -> Version {
    Version::parse(kmod_version().unwrap_or_default().trim())
}

/// The version of the loaded NVIDIA kernel module.
pub fn kmod_version() -> Option<String> {
    let version = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(version.trim().to_owned())
}
