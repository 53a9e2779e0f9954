//! Finds the processes that use GPUs: those that have a device file of a GPU open or a GPU library mapped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gpuprobe_event::Api;

use crate::access;
use crate::library::Names;
use crate::process::{environment_at_start, executable_files, read_maps};

/// The major number of the device files of GPUs.
pub(super) const NVIDIA_MAJOR: u64 = 195;
/// From this minor number on they are no GPUs: `nvidiactl`, `nvidia-modeset`.
const CONTROL_MINOR: u32 = 254;
/// The most open files of a process that are examined.
const FILES_LIMIT: usize = 1 << 16;
/// The environment variables that have the number of a process in its job; the first that is set counts. With how
/// their assignments begin.
const RANKS: [(&str, &[u8]); 4] = [
    ("RANK", b"RANK="),
    ("OMPI_COMM_WORLD_RANK", b"OMPI_COMM_WORLD_RANK="),
    ("SLURM_PROCID", b"SLURM_PROCID="),
    ("LOCAL_RANK", b"LOCAL_RANK="),
];

/// The processes that use GPUs, in ascending order. Those that may not be examined are omitted.
pub fn gpu_processes(proc_root: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut pids: Vec<u32> = entries.filter_map(number).collect();
    pids.sort_unstable();
    pids.retain(|pid| {
        let folder = proc_root.join(pid.to_string());
        maps_gpu_library(&folder, *pid) || !device_minors(&folder).is_empty()
    });
    pids
}

fn maps_gpu_library(folder: &Path, pid: u32) -> bool {
    // a monitor that asks NVML uses no GPU
    maps_any(folder, pid, &|api| api.is_gpu_library() && api != Api::Nvml)
}

/// Whether a process has NCCL mapped.
pub fn maps_nccl(proc_root: &Path, pid: u32) -> bool {
    maps_any(&proc_root.join(pid.to_string()), pid, &|api| api == Api::Nccl)
}

fn maps_any(folder: &Path, pid: u32, is_wanted: &dyn Fn(Api) -> bool) -> bool {
    let Ok(text) = read_maps(folder, pid) else { return false };
    let is_one = |path: &Path| Api::of_name(path).is_some_and(is_wanted);
    executable_files(&text).iter().any(|mapping| is_one(&mapping.file.path))
}

/// The GPUs whose device files a process has open, by the numbers of the files.
pub fn open_gpus(proc_root: &Path, pid: u32) -> Vec<u32> {
    let minors = device_minors(&proc_root.join(pid.to_string()));
    minors.into_iter().filter(|minor| *minor < CONTROL_MINOR).collect()
}

fn device_minors(folder: &Path) -> BTreeSet<u32> {
    let found = access::device_numbers(&folder.join("fd"), NVIDIA_MAJOR, FILES_LIMIT);
    found.ok().flatten().unwrap_or_default().into_iter().collect()
}

/// The number of a process in its job, with the name of the environment variable that has it.
pub fn rank_of(proc_root: &Path, pid: u32) -> Option<(&'static str, u32)> {
    let path = proc_root.join(pid.to_string()).join("environ");
    let values = environment_at_start(&path, RANKS.map(|(_, assignment)| assignment))?;
    let number = |value: Option<Vec<u8>>| str::from_utf8(&value?).ok()?.parse().ok();
    RANKS.into_iter().zip(values).find_map(|((name, _), value)| Some((name, number(value)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeProc;

    #[test]
    fn a_process_with_a_library_of_cuda_uses_gpus() {
        let proc = FakeProc::new();
        let shell = Path::new("/bin/sh");
        proc.process(7, &[("/bin/sh", shell)]);
        proc.process(8, &[("/bin/sh", shell), ("/opt/lib/libcuda.so.580.1", shell)]);
        proc.process(9, &[("/x/libcudart-9df6d2b8.so.12", shell)]);
        assert_eq!(gpu_processes(proc.path()), [8, 9]);
        proc.process(10, &[("/x/libnccl.so.2", shell)]);
        assert_eq!([8, 9, 10].map(|pid| maps_nccl(proc.path(), pid)), [false, false, true]);
        assert!(open_gpus(proc.path(), 8).is_empty());
        assert!(gpu_processes(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn a_rank_is_read_from_the_environment() {
        let proc = FakeProc::new();
        let folder = proc.process(7, &[("/bin/sh", Path::new("/bin/sh"))]);
        let rank = |environment: &[u8]| {
            fs::write(folder.join("environ"), environment).unwrap();
            rank_of(proc.path(), 7)
        };
        assert_eq!(rank(b"A=1\0LOCAL_RANK=3\0RANK=11\0"), Some(("RANK", 11)));
        assert_eq!(rank(b"LOCAL_RANK=3\0WORLD_RANK=9\0"), Some(("LOCAL_RANK", 3)));
        assert_eq!(rank(b"RANK=many\0RANKS=4\0"), None);
        assert_eq!(rank_of(proc.path(), 8), None);
    }
}
