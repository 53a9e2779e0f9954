//! Where the libcupti of a process may be, from the files that it has mapped.

use std::path::{Path, PathBuf};

/// The first driver branch that CUDA 13 runs on.
const FIRST_DRIVER_OF_13: u32 = 580;

/// The files of `/proc/PID/maps`, each once.
pub(super) fn mapped_files(maps: &str) -> Vec<&str> {
    let mut files: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.find('/').and_then(|at| line.get(at..)))
        .filter(|file| !file.ends_with(" (deleted)"))
        .collect();
    files.sort_unstable();
    files.dedup();
    files
}

/// The version in a file name such as `libcudart-5ca1ab1e.so.12.9`, up to its first dot.
fn major(file: &str, library: &str) -> Option<u32> {
    let name = file.rsplit('/').next()?.strip_prefix(library)?;
    let (_, version) = name.split_once(".so.")?;
    version.split('.').next()?.parse().ok()
}

/// The major versions of CUDA to look for, the best one first: that of the CUDA runtime, or those that the driver runs.
pub(super) fn majors(files: &[&str]) -> Vec<u32> {
    let mut of_runtime: Vec<u32> = files.iter().filter_map(|file| major(file, "libcudart")).collect();
    of_runtime.sort_unstable();
    of_runtime.dedup();
    of_runtime.reverse();
    if !of_runtime.is_empty() {
        return of_runtime;
    }
    let branch = files.iter().find_map(|file| major(file, "libcuda"));
    // `libcuda.so.1` is a name without the version
    let is_older = branch.is_some_and(|branch| (100..FIRST_DRIVER_OF_13).contains(&branch));
    if is_older { vec![12] } else { vec![13, 12] }
}

/// Files next to the CUDA runtime: in a wheel of one library, in a wheel of all, and in a toolkit.
pub(super) fn beside_runtime(files: &[&str], major: u32) -> Vec<PathBuf> {
    let soname = format!("libcupti.so.{major}");
    let folders = files.iter().filter(|file| self::major(file, "libcudart") == Some(major));
    let folders = folders.filter_map(|file| Path::new(file).parent());
    folders
        .flat_map(|folder| {
            let above = folder.parent().unwrap_or(folder);
            let wheels = above.parent().unwrap_or(above);
            [folder.to_owned(), wheels.join("cuda_cupti/lib"), above.join("extras/CUPTI/lib64")]
        })
        .map(|folder| folder.join(&soname))
        .collect()
}

/// Files in the toolkits of a folder such as `/usr/local`, the one that is the default first.
pub(super) fn in_toolkits(folder: &Path, major: u32) -> Vec<PathBuf> {
    let soname = format!("libcupti.so.{major}");
    let mut toolkits = vec![folder.join("cuda"), folder.join(format!("cuda-{major}"))];
    let version = format!("cuda-{major}.");
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut others: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&version))
        .map(|entry| entry.path())
        .collect();
    others.sort_unstable();
    toolkits.extend(others.into_iter().rev());
    let target = if cfg!(target_arch = "aarch64") { "sbsa-linux" } else { "x86_64-linux" };
    let inside = |toolkit: PathBuf| {
        let target = toolkit.join("targets").join(target).join("lib");
        [toolkit.join("extras/CUPTI/lib64"), target, toolkit.join("lib64")]
    };
    toolkits.into_iter().flat_map(inside).map(|folder| folder.join(&soname)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55e0a0000000-55e0a0001000 r--p 00000000 fe:01 1 /usr/bin/python3.12
7f0000000000-7f0000001000 r--p 00000000 fe:01 2 /venv/lib/nvidia/cu13/lib/libcudart.so.13
7f0000001000-7f0000002000 r-xp 00001000 fe:01 2 /venv/lib/nvidia/cu13/lib/libcudart.so.13
7f0000002000-7f0000003000 r-xp 00000000 fe:01 3 /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
7f0000003000-7f0000004000 r-xp 00000000 fe:01 4 /tmp/libcudart.so.11 (deleted)
7f0000004000-7f0000005000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn the_version_of_the_runtime_decides() {
        let files = mapped_files(MAPS);
        assert_eq!(files.len(), 3);
        assert_eq!(majors(&files), [13]);
        assert_eq!(majors(&["/a/libcudart-5ca1ab1e.so.12.9"]), [12]);
        assert_eq!(majors(&["/a/libcuda.so.580.95.05"]), [13, 12]);
        assert_eq!(majors(&["/a/libcuda.so.550.54.15"]), [12]);
        assert_eq!(majors(&["/a/libcuda.so.1"]), [13, 12]);
        assert_eq!(majors(&["/a/libcudart.so", "/a/libcudart.so.x"]), [13, 12]);
    }

    #[test]
    fn files_next_to_the_runtime_are_those_of_wheels_and_toolkits() {
        let text = |files: Vec<PathBuf>| -> Vec<String> {
            files.iter().map(|file| file.display().to_string()).collect()
        };
        let found = text(beside_runtime(&["/w/nvidia/cuda_runtime/lib/libcudart.so.12"], 12));
        assert!(found.contains(&"/w/nvidia/cuda_cupti/lib/libcupti.so.12".to_owned()), "{found:?}");
        let found = text(beside_runtime(&mapped_files(MAPS), 13));
        assert_eq!(found[0], "/venv/lib/nvidia/cu13/lib/libcupti.so.13");
        let found = text(beside_runtime(&["/usr/local/cuda/lib64/libcudart.so.13"], 13));
        assert!(found.contains(&"/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13".to_owned()), "{found:?}");
        assert!(beside_runtime(&mapped_files(MAPS), 12).is_empty());
    }
}
