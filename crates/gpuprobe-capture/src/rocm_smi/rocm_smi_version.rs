//! Whether there is ROCm SMI, and whether it can read GPUs: for `doctor`.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::amd_gpu_reader::AmdGpuReader;
use super::rocm_smi_library::{RocmSmi, Version, rocm_smi_file};

/// How long the library may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocmSmiVersion {
    pub file: PathBuf,
    /// Its release; `None` in a statically linked gpuprobe, which cannot load it in this process.
    pub release: Option<String>,
    /// How many GPUs it reads, or why it reads none.
    pub gpus: Result<usize, String>,
}

/// Whether the Linux kernel drives a GPU of AMD's. Without one the library is not asked for GPUs: it writes about it to the
/// terminal.
pub(crate) fn has_amdgpu() -> bool {
    Path::new("/sys/module/amdgpu").exists()
}

/// What the library says, or why there is none. Gives up after some seconds.
pub fn rocm_smi_version() -> Result<RocmSmiVersion, String> {
    let file = rocm_smi_file()?;
    let (sender, receiver) = channel();
    let asked = file.clone();
    let ask = move || {
        let release = if cfg!(target_feature = "crt-static") { Ok(None) } else { release(&asked).map(Some) };
        let gpus = if !has_amdgpu() {
            Err("no AMD GPU: the kernel module amdgpu is not loaded".to_owned())
        } else if cfg!(target_feature = "crt-static") {
            Err("a helper process reads them".to_owned())
        } else {
            AmdGpuReader::open().map(|reader| reader.count())
        };
        // the receiver is gone if it took too long
        sender.send(release.map(|release| (release, gpus))).ok();
    };
    thread::Builder::new().spawn(ask).map_err(|e| format!("cannot start a thread: {e}"))?;
    let answer = receiver.recv_timeout(PATIENCE);
    let (release, gpus) =
        answer.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))?;
    Ok(RocmSmiVersion { file, release, gpus })
}

/// The release of a library, which is loaded for it.
fn release(file: &Path) -> Result<String, String> {
    let library = RocmSmi::load(file)?;
    let mut version = Version { major: 0, minor: 0, patch: 0, build: std::ptr::null() };
    let function = library.version.ok_or_else(|| format!("{} has no rsmi_version_get", file.display()))?;
    // SAFETY: the function fills in the struct.
    match unsafe { function(&mut version) } {
        0 => Ok(format!("{}.{}.{}", version.major, version.minor, version.patch)),
        status => Err(super::rocm_smi_library::status_name(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_the_real_library_is_read_without_a_gpu() {
        // Debian's package has it; without it there is a reason
        match rocm_smi_version() {
            Ok(found) => {
                let release = found.release.unwrap_or_default();
                assert!(release.split('.').count() == 3 && release != "0.0.0", "{release}");
                assert!(found.gpus.is_ok() == has_amdgpu(), "{:?}", found.gpus);
            }
            Err(why) => assert!(why.contains("librocm_smi64"), "{why}"),
        }
    }
}
