//! Files that are given the inode number of another that was deleted, as file systems do at once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use gpuprobe_e2e::metrics::{Daemon, Metrics};
use gpuprobe_e2e::process::{PATIENCE, finish, shown};
use gpuprobe_e2e::recording::{number, pid_of};
use gpuprobe_e2e::{Talk, alone, needs, places};
use gpuprobe_standin::Cuda;

/// Others may get the number first.
const TRIES: usize = 200;

/// Puts a library into a folder under the inode number of a program that ran before; whether that could be done.
fn put_in_place_of_a_program(library: &Path, to: &Path) -> bool {
    (0..TRIES).any(|_| {
        let program = to.with_file_name("program");
        fs::copy("/bin/true", &program).unwrap();
        assert_eq!(finish(&mut Command::new(&program)).status, 0);
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

#[test]
fn a_library_with_the_inode_number_of_a_deleted_file_is_probed_at_once() {
    if !needs::bpf() {
        return;
    }
    let _alone = alone();
    let (built, folder) = (places::standins(Cuda::Cuda12), places::folder());
    places::copies(&built, folder.path(), &["libcudart.so.12", "ledger"]);
    // it never looks at everything again
    let daemon = Daemon::with(&["--rescan", "3600"]);
    let library = folder.path().join("libcuda.so.1");
    if !put_in_place_of_a_program(&built.dir.join("libcuda.so.1"), &library) {
        eprintln!("not tested: this file system does not give an inode number again");
        return;
    }
    let mut command = Command::new(folder.path().join("ledger"));
    let mut ledger = Talk::start(command.args(["--calls", "2000", "--pauses", "1"]));
    let pid = pid_of(&ledger.json());
    let is_probed = |metrics: &Metrics| {
        metrics.samples("gpuprobe_probes").any(|(labels, n)| n > 0 && labels["library"] == shown(&library))
    };
    let metrics = daemon.until(PATIENCE, "its library is probed", is_probed);
    assert!(metrics.lost("late_attach") > 0, "it ran before");
    let (status, last) = ledger.finish();
    assert_eq!((status, number(&last["total_calls"])), (0, 2000));
    daemon.until(PATIENCE, "its calls after the pause", |metrics| {
        metrics.by("gpuprobe_calls_total", pid, "function").values().sum::<u64>() > 100
    });
}
