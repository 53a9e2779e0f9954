//! Every CUDA library of the host: what the loader knows, what lies in the usual folders, what runs now.

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

/// Where libraries lie that no process may have mapped yet. A `*` stands for any part of one name.
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
/// A folder with more names, and a pattern with more folders, is not read to its end.
const NAMES_LIMIT: usize = 65536;
const FOLDERS_LIMIT: usize = 1024;

/// Where the host's files are seen: `/`, or elsewhere when the host is mounted into a container.
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
    /// The libraries that processes have mapped. Files that were not found since the last call are forgotten.
    pub fn of_processes(&mut self, proc_root: &Path) -> Scan {
        let mut collector = Collector::new(self);
        processes(&mut collector, proc_root);
        let scan = collector.finish();
        if !scan.is_incomplete {
            self.forget_unused();
        }
        scan
    }

    /// The libraries that lie where the loader and others look for them, whether somebody maps them or not.
    pub fn of_places(&mut self, host: &HostPaths) -> Scan {
        let mut collector = Collector::new(self);
        places(&mut collector, host);
        collector.finish()
    }

    /// All that can be found now, by the loader's cache, the usual folders and the running processes.
    pub fn of_host(&mut self, proc_root: &Path, host: &HostPaths) -> Scan {
        let mut collector = Collector::new(self);
        places(&mut collector, host);
        processes(&mut collector, proc_root);
        collector.finish()
    }
}

fn places(collector: &mut Collector<'_>, host: &HostPaths) {
    cached(collector, host);
    for folder in FOLDERS.iter().flat_map(|pattern| expand(&host.root, pattern)) {
        for name in names(&folder) {
            candidate(collector, &host.root, &folder.join(name));
        }
    }
}

/// The libraries in the loader's cache below a root; none where there is no cache, or it cannot be read.
pub fn loader_cache(root: &Path) -> Vec<PathBuf> {
    let read = |file: RegularFile| {
        file.read(0, file.stamp.size, "the cache").and_then(|bytes| parse_loader_cache(&bytes)).ok()
    };
    RegularFile::open(&root.join("etc/ld.so.cache")).ok().and_then(read).unwrap_or_default()
}

fn cached(collector: &mut Collector<'_>, host: &HostPaths) {
    let path = host.root.join("etc/ld.so.cache");
    // musl and some containers have none.
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

/// A file below the root that is a library if its name and its contents say so.
fn candidate(collector: &mut Collector<'_>, root: &Path, open_path: &Path) {
    if !collector.is_telling(open_path) || is_stub(open_path) {
        return;
    }
    let real = access::canonical(open_path).ok();
    // An absolute link below another root leads to a file that is not the host's.
    if real.as_ref().is_some_and(|real| !real.starts_with(root)) {
        return;
    }
    // The real name has the version in it, and is what processes show once they map the file.
    let real = real.filter(|real| collector.is_telling(real));
    let open_path = real.as_deref().unwrap_or(open_path);
    let path = open_path.strip_prefix(root).map_or_else(|_| open_path.to_owned(), |p| Path::new("/").join(p));
    collector.path(&path, open_path);
}

/// The toolkit has libraries to link against on machines without a driver; nothing runs them.
fn is_stub(path: &Path) -> bool {
    path.components().any(|part| part == Component::Normal("stubs".as_ref()))
}

fn processes(collector: &mut Collector<'_>, proc_root: &Path) {
    let names = match sorted_names(proc_root) {
        Ok(names) => names,
        Err(error) => {
            let cause = if access::is_stall(&error) { SkipCause::Stalled } else { SkipCause::Unreadable };
            return collector.miss(proc_root, (cause, format!("processes cannot be listed: {error}")));
        }
    };
    if names.len() >= NAMES_LIMIT {
        let text = format!("has more than the {NAMES_LIMIT} names that are read");
        collector.miss(proc_root, (SkipCause::TooMany, text));
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
        let text = format!("mappings that may not be read: {denied}; CAP_SYS_PTRACE is needed");
        collector.skip(proc_root, None, (SkipCause::Unreadable, text));
    }
    if missed > 0 {
        collector.miss(proc_root, (SkipCause::Stalled, format!("mappings that could not be read: {missed}")));
    }
}

/// The existing folders that fit a pattern, in order of their names.
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

/// The names in a folder, sorted; none when it cannot be read.
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
    fn cache_folders_and_processes_are_searched_once_for_each_file() {
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
    fn a_false_library_is_listed() {
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
                "has the name of a CUDA library but none of its functions"
            ]
        );
    }

    #[test]
    fn a_look_that_misses_processes_says_so_and_one_at_processes_that_ended_does_not() {
        let (proc, folder) = (FakeProc::new(), tempfile::tempdir().unwrap());
        let real = folder.path().join("libcuda.so.1");
        library("cuInit").write(&real);
        proc.process(7, &[(real.to_str().unwrap(), &real)]);
        fs::create_dir(proc.path().join("8")).unwrap();
        let mut inspector = Inspector::new();
        let scan = inspector.of_processes(proc.path());
        assert!(!scan.is_incomplete && scan.skipped.is_empty(), "{scan:?}");

        // what can be opened and not be read
        fs::create_dir(proc.path().join("8/maps")).unwrap();
        let scan = inspector.of_processes(proc.path());
        assert_eq!((scan.is_incomplete, scan.libraries.len()), (true, 1));
        assert_eq!(scan.skipped[0].reason, "mappings that could not be read: 1");

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
