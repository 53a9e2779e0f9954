//! Finds every CUDA library of the host: in the loader's cache, in the usual directories and in running processes.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::inspect::Inspector;
use super::of_process::Collector;
use super::scan::Scan;
use crate::access::{self, RegularFile};
use crate::elf::parse_loader_cache;
use crate::error::DiscoverError;
use crate::skipped::{SkipCause, why};

/// Directories of libraries that no process may have mapped yet. A `*` matches any part of one name.
const FOLDERS: [&str; 14] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib/wsl/lib",
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/*/lib",
    "usr/local/nvidia/lib64",
    "run/nvidia/driver/usr/lib/*",
    "run/nvidia/driver/usr/lib64",
    "usr/lib/python3*/*-packages/nvidia/*/lib",
    "usr/local/lib/python3*/*-packages/nvidia/*/lib",
    "opt/*/lib",
    "opt/*/lib/python3*/site-packages/nvidia/*/lib",
    "opt/*/lib/python3*/site-packages/torch/lib",
];
/// Limits of the entries read of one directory, and of the directories that match one pattern.
const NAMES_LIMIT: usize = 65536;
const FOLDERS_LIMIT: usize = 1024;

/// The root of the host's file system: `/`, or another path if the host is mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    pub root: PathBuf,
}

impl Default for HostPaths {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

/// The CUDA libraries of the host. To scan more than once, keep an [`Inspector`].
pub fn of_host(proc_root: &Path, host: &HostPaths) -> Scan {
    Inspector::new().of_host(proc_root, host)
}

impl Inspector {
    /// The libraries that processes have mapped. Cached files that were not found since the last call are dropped.
    pub fn of_processes(&mut self, proc_root: &Path) -> Scan {
        let mut collector = Collector::new(self);
        processes(&mut collector, proc_root);
        let scan = collector.finish();
        if !scan.is_incomplete {
            self.forget_unused();
        }
        scan
    }

    /// The libraries in the loader's cache and the usual directories, mapped by a process or not.
    pub fn of_installed(&mut self, host: &HostPaths) -> Scan {
        let mut collector = Collector::new(self);
        installed(&mut collector, host);
        collector.finish()
    }

    /// All libraries that can be found now: the loader's cache, the usual directories and the running processes.
    pub fn of_host(&mut self, proc_root: &Path, host: &HostPaths) -> Scan {
        let mut collector = Collector::new(self);
        installed(&mut collector, host);
        processes(&mut collector, proc_root);
        collector.finish()
    }
}

fn installed(collector: &mut Collector<'_>, host: &HostPaths) {
    cached(collector, host);
    for folder in FOLDERS.iter().flat_map(|pattern| expand(&host.root, pattern)) {
        for name in names(&folder) {
            candidate(collector, &host.root, &folder.join(name));
        }
    }
}

/// The libraries in the loader's cache below a root; none if there is no cache, or it cannot be read.
pub fn loader_cache(root: &Path) -> Vec<PathBuf> {
    let read = |file: RegularFile| {
        file.read(0, file.stamp.size, "the cache").and_then(|bytes| parse_loader_cache(&bytes)).ok()
    };
    RegularFile::open(&root.join("etc/ld.so.cache")).ok().and_then(read).unwrap_or_default()
}

fn cached(collector: &mut Collector<'_>, host: &HostPaths) {
    let path = host.root.join("etc/ld.so.cache");
    // musl and some containers have no cache.
    let Ok(file) = RegularFile::open(&path) else { return };
    match file.read(0, file.stamp.size, "the cache").and_then(|bytes| parse_loader_cache(&bytes)) {
        Ok(paths) => {
            for path in paths {
                let relative = path.strip_prefix("/").unwrap_or(&path);
                candidate(collector, &host.root, &host.root.join(relative));
            }
        }
        Err(defect) => collector.skip(&path, Some(file.id), why(&defect.of(&path))),
    }
}

/// Adds a file below the root, if its name and its contents are those of a library.
fn candidate(collector: &mut Collector<'_>, root: &Path, open_path: &Path) {
    if !collector.may_have_targets(open_path) || is_stub(open_path) {
        return;
    }
    let real = access::canonical(open_path).ok();
    // An absolute link below another root leads to a file that does not belong to the host.
    if real.as_ref().is_some_and(|real| !real.starts_with(root)) {
        return;
    }
    // The real name contains the version, and is what processes show once they map the file.
    let real = real.filter(|real| collector.may_have_targets(real));
    let open_path = real.as_deref().unwrap_or(open_path);
    let path = open_path.strip_prefix(root).map_or_else(|_| open_path.to_owned(), |p| Path::new("/").join(p));
    collector.path(&path, open_path);
}

/// The toolkit has stub libraries to link against on machines without a driver; no process runs them.
fn is_stub(path: &Path) -> bool {
    path.components().any(|part| part == Component::Normal("stubs".as_ref()))
}

fn processes(collector: &mut Collector<'_>, proc_root: &Path) {
    let names = match sorted_names(proc_root) {
        Ok(names) => names,
        Err(error) => {
            let cause = if access::is_stall(&error) { SkipCause::Stalled } else { SkipCause::Unreadable };
            return collector
                .skip_processes(proc_root, (cause, format!("processes cannot be listed: {error}")));
        }
    };
    if names.len() >= NAMES_LIMIT {
        let text = format!("has more than {NAMES_LIMIT} entries; the rest is not read");
        collector.skip_processes(proc_root, (SkipCause::TooMany, text));
    }
    let (mut denied, mut missed) = (0, 0);
    for pid in names.iter().filter_map(|name| name.to_str()?.parse().ok()) {
        match collector.process(proc_root, pid) {
            Ok(()) | Err(DiscoverError::NoSuchProcess { .. }) => {}
            Err(DiscoverError::ProcessDenied { .. }) => denied += 1,
            Err(_) => missed += 1,
        }
    }
    if denied > 0 {
        let text = format!("the mappings of {denied} processes may not be read; CAP_SYS_PTRACE is needed");
        collector.skip(proc_root, None, (SkipCause::Unreadable, text));
    }
    if missed > 0 {
        collector.skip_processes(
            proc_root,
            (SkipCause::Stalled, format!("the mappings of {missed} processes could not be read")),
        );
    }
}

/// The existing directories that match a pattern, sorted.
fn expand(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    for part in pattern.split('/') {
        let Some((before, after)) = part.split_once('*') else {
            found.iter_mut().for_each(|folder| folder.push(part));
            continue;
        };
        let fits = |name: &[u8]| {
            name.len() >= before.len() + after.len()
                && name.starts_with(before.as_bytes())
                && name.ends_with(after.as_bytes())
        };
        let below = |folder: PathBuf| {
            let names = names(&folder).into_iter().filter(|name| fits(name.as_os_str().as_bytes()));
            names.map(move |name| folder.join(name)).collect::<Vec<_>>()
        };
        found = found.into_iter().flat_map(below).take(FOLDERS_LIMIT).collect();
    }
    found
}

/// The names in a directory, sorted; none if it cannot be read.
fn names(folder: &Path) -> Vec<PathBuf> {
    sorted_names(folder).unwrap_or_default()
}

fn sorted_names(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = access::names(folder, NAMES_LIMIT)?;
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{ElfBuilder, FakeProc};

    fn library(export: &str) -> ElfBuilder {
        ElfBuilder::new().export(export, &[0x55, 0xc3])
    }

    fn paths(scan: &Scan) -> Vec<&str> {
        scan.libraries.iter().map(|library| library.path.to_str().unwrap()).collect()
    }

    #[test]
    fn each_file_of_cache_directories_and_processes_is_found_once() {
        let (root, proc) = (tempfile::tempdir().unwrap(), FakeProc::new());
        let at = |path: &str| root.path().canonicalize().unwrap().join(path);
        let real = at("usr/lib/x86_64-linux-gnu/libcuda.so.550.1");
        library("cuInit").write(&real);
        symlink("libcuda.so.550.1", at("usr/lib/x86_64-linux-gnu/libcuda.so.1")).unwrap();
        library("cuInit").write(&at("usr/local/cuda-12.4/lib64/stubs/libcuda.so"));
        library("cudaMalloc").write(&at("usr/local/cuda-12.4/lib64/libcudart.so.12"));
        library("nvmlInit").write(&at("elsewhere/libnvidia-ml.so.1"));
        library("ncclGetVersion")
            .write(&at("opt/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"));
        fs::create_dir_all(at("etc")).unwrap();
        let cache = crate::elf::test_cache(&[
            (0x0303, "/elsewhere/libnvidia-ml.so.1"),
            (0x0303, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
            (0x0303, "/usr/local/cuda-12.4/lib64/stubs/libcuda.so"),
            (0x0303, "/gone/libcuda.so.1"),
        ]);
        fs::write(at("etc/ld.so.cache"), cache).unwrap();
        let wheel = at("venv/libcudart-0123abcd.so.11.0");
        library("cudaMalloc").write(&wheel);
        let shown = wheel.to_str().unwrap();
        proc.process(1, &[(real.to_str().unwrap(), &real), (shown, &wheel)]);
        proc.process(2, &[(shown, &wheel)]);

        let host = HostPaths { root: at("") };
        let scan = Inspector::new().of_host(proc.path(), &host);
        assert_eq!(
            paths(&scan),
            [
                "/elsewhere/libnvidia-ml.so.1",
                "/usr/lib/x86_64-linux-gnu/libcuda.so.550.1",
                "/usr/local/cuda-12.4/lib64/libcudart.so.12",
                "/opt/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
                shown
            ]
        );
        assert_eq!(scan.libraries[1].open_path, real);
        assert_eq!(scan.skipped, []);
    }

    #[test]
    fn files_that_are_not_libraries_are_listed_as_skipped() {
        let (root, proc) = (tempfile::tempdir().unwrap(), FakeProc::new());
        let folder = root.path().join("usr/lib64");
        fs::create_dir_all(folder.join("libcuda.so.2")).unwrap();
        fs::write(folder.join("libcuda.so.1"), "INPUT(libcuda.so)").unwrap();
        library("other").write(&folder.join("libnccl.so.2"));
        symlink("/nowhere", folder.join("libcudart.so")).unwrap();
        let scan = of_host(proc.path(), &HostPaths { root: root.path().to_owned() });
        assert!(scan.libraries.is_empty());
        let reasons: Vec<_> = scan.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "not an ELF file",
                "a folder, not a regular file",
                "has the name of a GPU library but none of its functions"
            ]
        );
    }

    #[test]
    fn a_scan_is_incomplete_if_a_live_process_cannot_be_read() {
        let (proc, folder) = (FakeProc::new(), tempfile::tempdir().unwrap());
        let real = folder.path().join("libcuda.so.1");
        library("cuInit").write(&real);
        proc.process(7, &[(real.to_str().unwrap(), &real)]);
        fs::create_dir(proc.path().join("8")).unwrap();
        let mut inspector = Inspector::new();
        let scan = inspector.of_processes(proc.path());
        assert!(!scan.is_incomplete && scan.skipped.is_empty(), "{scan:?}");

        // it can be opened but not read
        fs::create_dir(proc.path().join("8/maps")).unwrap();
        let scan = inspector.of_processes(proc.path());
        assert_eq!((scan.is_incomplete, scan.libraries.len()), (true, 1));
        assert_eq!(scan.skipped[0].reason, "the mappings of 1 processes could not be read");

        for no_folder in [real, proc.path().join("nowhere")] {
            let scan = inspector.of_host(&no_folder, &HostPaths { root: folder.path().to_owned() });
            assert!(scan.is_incomplete);
            assert!(scan.skipped[0].reason.starts_with("processes cannot be listed: "), "{scan:?}");
        }
    }

    #[test]
    fn this_host_is_searched_without_error() {
        of_host(Path::new("/proc"), &HostPaths::default());
    }
}
