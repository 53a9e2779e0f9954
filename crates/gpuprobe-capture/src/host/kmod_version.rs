//! The version of the loaded NVIDIA kernel module.

use gpuprobe_event::driver::Version;

/// The version of the driver that is loaded; its commands have the newest names where none is.
pub(crate) fn loaded_version() -> Version {
    Version::parse(driver_version().unwrap_or_default().trim())
}

/// What the driver that is loaded says of its version.
pub fn driver_version() -> Option<String> {
    let version = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(version.trim().to_owned())
}
