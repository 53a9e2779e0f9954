//! Lists the GPUs of the host from the NVIDIA kernel module's directory in /proc.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use gpuprobe_event::{HostGpu, PciAddress, Uuid};

/// The directory of the NVIDIA kernel module in /proc.
pub const NVIDIA_PROC_FOLDER: &str = "/proc/driver/nvidia";
/// More than any machine has; an index must fit into a byte.
const GPU_LIMIT: usize = 128;
/// The most bytes read about one GPU; the text has some 400.
const TEXT_LIMIT: u64 = 1 << 16;

/// The GPUs of the host, numbered in the order of their PCI addresses; none if the NVIDIA kernel module is not
/// loaded.
pub fn host_gpus(driver_folder: &Path) -> Vec<HostGpu> {
    let Ok(entries) = fs::read_dir(driver_folder.join("gpus")) else { return Vec::new() };
    let read = |folder: &Path| {
        let mut text = Vec::new();
        File::open(folder.join("information")).ok()?.take(TEXT_LIMIT).read_to_end(&mut text).ok()?;
        gpu(&String::from_utf8_lossy(&text), folder)
    };
    let entries = entries.take(GPU_LIMIT).filter_map(|entry| read(&entry.ok()?.path()));
    let mut gpus: Vec<HostGpu> = entries.collect();
    gpus.sort_unstable_by_key(|gpu| gpu.pci);
    for (index, gpu) in (0..).zip(&mut gpus) {
        gpu.index = index;
        gpu.is_parted = gpu.minor.is_some_and(|minor| is_parted(driver_folder, minor));
    }
    gpus
}

/// Whether a GPU is in MIG mode: there is a directory `giN` for each GPU instance.
fn is_parted(driver_folder: &Path, minor: u32) -> bool {
    let instances = driver_folder.join(format!("capabilities/gpu{minor}/mig"));
    let is_one = |entry: fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"gi");
    fs::read_dir(instances).is_ok_and(|entries| entries.flatten().any(is_one))
}

/// Parses the text about one GPU; `None` for one that is excluded, which neither CUDA nor NVML counts.
fn gpu(text: &str, folder: &Path) -> Option<HostGpu> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.map(str::trim)
    };
    if value("GPU Excluded") == Some("Yes") {
        return None;
    }
    // the directory is named by the address in all versions
    let address = value("Bus Location").and_then(PciAddress::parse);
    let pci = address.or_else(|| PciAddress::parse(folder.file_name()?.to_str()?))?;
    let uuid = value("GPU UUID").and_then(Uuid::parse);
    let minor = value("Device Minor").and_then(|minor| minor.parse().ok());
    Some(HostGpu { index: 0, uuid, pci, minor, is_parted: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As version 580 writes it.
    fn information(uuid: &str, pci: &str, minor: u32) -> String {
        format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.a5.00.1a\n\
             Bus Type: \t PCIe\nBus Location: \t {pci}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    }

    fn write(root: &Path, name: &str, text: &str) {
        let folder = root.join("gpus").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("information"), text).unwrap();
    }

    #[test]
    fn gpus_are_numbered_by_pci_address_not_by_device_file() {
        let root = tempfile::tempdir().unwrap();
        let uuid = |n: u8| Uuid([n; 16]);
        for (minor, pci) in [(0, "0000:c1:00.0"), (1, "0000:1b:00.0"), (2, "0001:00:00.0")] {
            write(root.path(), pci, &information(&uuid(minor as u8).to_string(), pci, minor));
        }
        fs::create_dir_all(root.path().join("capabilities/gpu1/mig/gi3")).unwrap();
        fs::create_dir_all(root.path().join("capabilities/gpu0/mig")).unwrap();
        let gpus = host_gpus(root.path());
        assert_eq!(gpus.iter().map(|g| g.is_parted).collect::<Vec<_>>(), [true, false, false]);
        let found: Vec<_> = gpus.iter().map(|g| (g.index, g.uuid, g.pci.to_string(), g.minor)).collect();
        let expected = [
            (0, Some(uuid(1)), "0000:1b:00.0".to_owned(), Some(1)),
            (1, Some(uuid(0)), "0000:c1:00.0".to_owned(), Some(0)),
            (2, Some(uuid(2)), "0001:00:00.0".to_owned(), Some(2)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn missing_fields_are_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(host_gpus(root.path()), []);
        let unknown = "GPU-????????-????-????-????-????????????";
        write(root.path(), "0000:02:00.0", &information(unknown, "0000:02:00.0", 7));
        write(root.path(), "0000:01:00.0", "");
        let excluded = information(unknown, "0000:00:00.0", 0).replace(" No", " Yes");
        write(root.path(), "0000:00:00.0", &excluded);
        write(root.path(), "nonsense", "\u{0}");
        fs::create_dir_all(root.path().join("gpus/0000:03:00.0/information")).unwrap();
        let found: Vec<_> =
            host_gpus(root.path()).into_iter().map(|g| (g.pci.bus, g.uuid, g.minor)).collect();
        assert_eq!(found, [(1, None, None), (2, None, Some(7))]);
    }
}
