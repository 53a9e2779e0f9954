//! Files that get the inode number of a deleted file, which file systems reuse at once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, bpf_test, fixtures};
use gpuprobe_standin::Cuda;

/// Another process may get the number first.
const TRIES: usize = 20;

/// Creates a library with the inode number of a program that ran before. Returns whether that worked.
fn put_in_place_of_a_program(library: &Path, to: &Path) -> bool {
    (0..TRIES).any(|_| {
        let program = to.with_file_name("program");
        fs::copy("/bin/sleep", &program).unwrap();
        // longer than a daemon takes to look at a mapped file
        assert_eq!(finish(Command::new(&program).arg("1")).status, 0);
        let inode = fs::metadata(&program).unwrap().ino();
        fs::remove_file(&program).unwrap();
        fs::copy(library, to).unwrap();
        let is_same = fs::metadata(to).unwrap().ino() == inode;
        if !is_same {
            fs::remove_file(to).unwrap();
        }
        is_same
    })
}

#[bpf_test(alone)]
fn a_library_with_the_inode_number_of_a_deleted_file_is_probed_at_once() {
    let (built, folder) = (fixtures::standins(Cuda::Cuda12), fixtures::folder());
    fixtures::copies(&built, folder.path(), &["libcuda.so.1", "libcudart.so.12", "ledger"]);
    let (library, new) = (folder.path().join("libcuda.so.1"), folder.path().join("new.so"));
    // it never rescans
    let daemon = Daemon::with(&["--rescan", "3600"]);
    // all other files that a program maps are known
    let (_first, _) = paused(folder.path());
    let before = daemon.until(PATIENCE, "a program before", |metrics| probed(metrics, &library) > 0);
    let before = probed(&before, &library);
    if !put_in_place_of_a_program(&built.dir.join("libcuda.so.1"), &new) {
        eprintln!("not tested: this file system does not give an inode number again");
        return;
    }
    fs::rename(&new, &library).unwrap();
    let (mut ledger, pid) = paused(folder.path());
    daemon.until(PATIENCE, "its library is probed", |metrics| probed(metrics, &library) > before);
    let (status, last) = ledger.finish();
    assert_eq!((status, number(&last["total_calls"])), (0, 2000));
    daemon.until(PATIENCE, "its calls after the pause", |metrics| {
        metrics.by("gpuprobe_calls_total", pid, "function").values().sum::<u64>() > 100
    });
}

fn paused(folder: &Path) -> (Talk, u32) {
    let mut command = Command::new(folder.join("ledger"));
    let mut ledger = Talk::start(command.args(["--calls", "2000", "--pauses", "1"]));
    let pid = pid_of(&ledger.json());
    (ledger, pid)
}

/// The number of probed functions in files of this name.
fn probed(metrics: &Metrics, library: &Path) -> u64 {
    let is_it = |labels: &BTreeMap<String, String>| labels["library"] == shown(library);
    metrics.samples("gpuprobe_probes").filter(|(labels, _)| is_it(labels)).map(|(_, n)| n).sum()
}
