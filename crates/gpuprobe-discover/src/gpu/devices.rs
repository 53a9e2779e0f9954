//! Lists the device files of NVIDIA's kernel modules by their device numbers.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use gpuprobe_event::driver::DeviceKind;

/// The fixed major number of the NVIDIA kernel module, whether it is loaded or not.
const MAJOR: u32 = 195;
const CONTROL_MINOR: u32 = 255;
const MODESET_MINOR: u32 = 254;

/// A device number, or all devices with one major number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    pub major: u32,
    /// `None` for all devices with this major number.
    pub minor: Option<u32>,
    pub kind: DeviceKind,
}

/// All NVIDIA devices: those that the Linux kernel lists, and device files with NVIDIA names. The device files of
/// containers have the same numbers.
pub fn devices(proc_root: &Path, dev_root: &Path) -> Vec<Device> {
    let of = |minor, kind| Device { major: MAJOR, minor, kind };
    let mut all = vec![
        of(None, DeviceKind::Gpu),
        of(Some(CONTROL_MINOR), DeviceKind::Control),
        of(Some(MODESET_MINOR), DeviceKind::Modeset),
    ];
    let listed = fs::read_to_string(proc_root.join("devices")).unwrap_or_default();
    all.extend(listed.lines().take_while(|line| !line.starts_with("Block")).filter_map(listed_device));
    for entry in fs::read_dir(dev_root).into_iter().flatten().flatten() {
        let Some(kind) = entry.file_name().to_str().and_then(kind_of) else { continue };
        if let Ok(meta) = entry.metadata()
            && meta.file_type().is_char_device()
        {
            let (major, minor) = (nix::sys::stat::major(meta.rdev()), nix::sys::stat::minor(meta.rdev()));
            all.extend(
                u32::try_from(major).ok().zip(u32::try_from(minor).ok()).map(|(major, minor)| Device {
                    major,
                    minor: Some(minor),
                    kind,
                }),
            );
        }
    }
    all.sort_unstable();
    all.dedup_by_key(|device| (device.major, device.minor));
    all
}

/// `234 nvidia-uvm`
fn listed_device(line: &str) -> Option<Device> {
    let (major, name) = line.trim_start().split_once(' ')?;
    let major = major.parse().ok().filter(|major| *major != MAJOR)?;
    Some(Device { major, minor: None, kind: kind_of(name)? })
}

/// The kind of a device by its name.
fn kind_of(name: &str) -> Option<DeviceKind> {
    let rest = name.strip_prefix("nvidia")?;
    Some(match rest {
        "ctl" => DeviceKind::Control,
        "-uvm" | "-uvm-tools" => DeviceKind::Uvm,
        "-modeset" => DeviceKind::Modeset,
        _ if rest.starts_with("-caps") => DeviceKind::Caps,
        _ if rest.starts_with("-nvswitch") => DeviceKind::Nvswitch,
        _ if !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()) => DeviceKind::Gpu,
        _ => DeviceKind::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_their_names() {
        assert_eq!(kind_of("nvidia0"), Some(DeviceKind::Gpu));
        assert_eq!(kind_of("nvidiactl"), Some(DeviceKind::Control));
        assert_eq!(kind_of("nvidia-uvm-tools"), Some(DeviceKind::Uvm));
        assert_eq!(kind_of("nvidia-caps-imex-channels"), Some(DeviceKind::Caps));
        assert_eq!(kind_of("nvidia-frontend"), Some(DeviceKind::Other));
        assert_eq!(kind_of("null"), None);
    }

    #[test]
    fn listed_major_numbers_are_added_to_the_fixed_one() {
        let folder = std::env::temp_dir().join(format!("gpuprobe-devices-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let text =
            "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-uvm\n\nBlock devices:\n  7 nvidia-loop\n";
        fs::write(folder.join("devices"), text).unwrap();
        let found = devices(&folder, &folder);
        fs::remove_dir_all(&folder).unwrap();
        let of = |major, minor, kind| Device { major, minor, kind };
        assert_eq!(
            found,
            [
                of(195, None, DeviceKind::Gpu),
                of(195, Some(254), DeviceKind::Modeset),
                of(195, Some(255), DeviceKind::Control),
                of(234, None, DeviceKind::Uvm),
            ]
        );
    }
}
