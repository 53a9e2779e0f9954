//! Finds or builds what tests need: the binary under test and the stand-ins, all in the target folder of these tests.

use std::fs;
use std::path::{Path, PathBuf};

use gpuprobe_standin::{BuildOptions, Built, Cuda, Parts, Prologue, build_or_copy};

/// The folder of the build profile. Test programs are in its subfolder `deps`.
fn profile() -> PathBuf {
    let program =
        std::env::current_exe().unwrap_or_else(|e| panic!("cannot find the path of this test: {e}"));
    let folder = program.ancestors().nth(2);
    folder.unwrap_or_else(|| panic!("{} is in no target folder", program.display())).to_owned()
}

/// A folder whose content is made once and reused by later runs.
pub fn cached(name: &str) -> PathBuf {
    let folder = profile().join("e2e").join(name);
    fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    folder
}

/// The binary under test: `GPUPROBE_BIN`, or the one built in the same profile as these tests, or in the other
/// profile.
pub fn gpuprobe() -> PathBuf {
    if let Some(path) = std::env::var_os("GPUPROBE_BIN") {
        return PathBuf::from(path);
    }
    let here = profile();
    let mut folders = vec![here.clone()];
    folders.extend(["release", "debug"].map(|other| here.with_file_name(other)));
    let found = folders.iter().map(|f| f.join("gpuprobe")).find(|f| f.is_file());
    found.unwrap_or_else(|| panic!("no gpuprobe in {}: build it first", here.display()))
}

/// All stand-ins of a CUDA version, with the default function prologue.
pub fn standins(cuda: Cuda) -> Built {
    built(BuildOptions::new(Prologue::Push, cuda))
}

/// The ledger workload on libraries whose functions begin with this prologue.
pub fn ledger(prologue: Prologue) -> Built {
    built(BuildOptions { prologue, cuda: Cuda::Cuda12, parts: Parts::Ledger })
}

/// The stand-in of HIP and its workloads, with the default function prologue.
pub fn hip() -> Built {
    built(BuildOptions::hip(Prologue::Push))
}

fn built(options: BuildOptions) -> Built {
    let name = format!("standin-{:?}-{:?}-{:?}", options.prologue, options.cuda, options.parts);
    // The stand-ins' own tests may have built the same. These tests run as root and must leave no files there.
    let made = profile().with_file_name("tmp").join(&name);
    build_or_copy(&cached(&name), &options, Some(&made)).unwrap_or_else(|e| panic!("{e}"))
}

/// A temporary folder, removed when it is dropped.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|e| panic!("cannot make a folder: {e}"))
}

/// Copies some of the stand-ins' files, so that no other test uses them: the Linux kernel sees other inodes.
pub fn copies(from: &Built, to: &Path, names: &[&str]) {
    for name in names {
        fs::copy(from.dir.join(name), to.join(name)).unwrap_or_else(|e| panic!("cannot copy {name}: {e}"));
    }
}

/// A program for `python3 -c`: maps every file of its arguments as code, prints a line and waits for one.
pub const MAP_ALL: &str = "
import mmap, sys
maps = []
for path in sys.argv[1:]:
    with open(path, 'rb') as f:
        maps.append(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE))
print('mapped', flush=True)
sys.stdin.readline()
";
