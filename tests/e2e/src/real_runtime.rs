//! NVIDIA's own runtime libraries, from PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::finish;
use crate::{fixtures, needs};

pub const CUDA_12: &str = "nvidia-cuda-runtime-cu12==12.9.79";
pub const CUDA_13: &str = "nvidia-cuda-runtime==13.4.92";

/// The runtime library of a package, downloaded once. Prints why and returns `None` if it cannot be downloaded.
pub fn fetched(package: &str, soname: &str) -> Option<PathBuf> {
    let folder = fixtures::cached(&format!("pypi-{package}"));
    let library = folder.join(soname);
    if library.exists() {
        return Some(library);
    }
    let temporary = tempfile::tempdir_in(&folder).unwrap_or_else(|e| panic!("cannot make a folder: {e}"));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", package, "-d"]);
    let pip = finish(pip.arg(temporary.path()));
    if pip.status != 0 {
        needs::missing("bpf", &format!("{package} cannot be fetched: {}", pip.stderr.trim()));
        return None;
    }
    // a wheel is a zip archive
    let unpack = "import sys, glob, zipfile; zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0]).extractall(sys.argv[1])";
    let unpacked = finish(Command::new("python3").args(["-c", unpack]).arg(temporary.path()));
    assert_eq!(unpacked.status, 0, "{}", unpacked.stderr);
    let found = find(temporary.path(), soname).unwrap_or_else(|| panic!("{package} has no {soname}"));
    fs::rename(found, &library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    Some(library)
}

/// Finds a file by name in a folder and its subfolders.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let entries = entries.map_while(Result::ok).map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|p| p.is_dir());
    let here = files.into_iter().find(|p| p.file_name().is_some_and(|n| n == name));
    here.or_else(|| folders.iter().find_map(|f| find(f, name)))
}
