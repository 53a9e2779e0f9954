//! The settings of a capture that measures.

use crate::load::config::CaptureConfig;

/// The same settings, with probes for the calls of the measurement and nothing else.
pub fn measure_config(config: &CaptureConfig) -> CaptureConfig {
    CaptureConfig {
        // as if one program is observed and others are not
        only_targets: true,
        pause_targets: false,
        device_syscalls: false,
        hooks: Vec::new(),
        ..config.clone()
    }
}
