//! The GPUs of the stand-in CUDA driver, listed in files as the NVIDIA kernel module lists them in /proc.

use std::fs;
use std::path::Path;

use crate::process::shown;

pub const GPUS: u8 = 4;

/// As the stand-in CUDA driver reports it.
pub fn uuid(gpu: u8) -> String {
    let bytes: Vec<String> =
        (0..16_u8).map(|i| format!("{:02x}", (0x11 * (i % 15 + 1)).wrapping_add(gpu))).collect();
    let group = |from: usize, to: usize| bytes[from..to].concat();
    format!("GPU-{}-{}-{}-{}-{}", group(0, 4), group(4, 6), group(6, 8), group(8, 10), group(10, 16))
}

/// As the stand-in CUDA driver reports it.
pub fn pci(gpu: u8) -> String {
    format!("0000:{:02x}:00.0", gpu + 1)
}

/// Lists all GPUs of the stand-in CUDA driver. Returns the folder.
pub fn driver_folder(root: &Path) -> String {
    for gpu in 0..GPUS {
        list(root, &pci(gpu), &uuid(gpu), GPUS - gpu);
    }
    shown(root.join("driver"))
}

pub fn list(root: &Path, pci: &str, uuid: &str, minor: u8) {
    let folder = root.join("driver/gpus").join(pci);
    fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let text = format!("GPU UUID: \t {uuid}\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n");
    fs::write(folder.join("information"), text).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
}
