//! Checks whether a test can run on this host. A test that cannot run prints why and passes, unless `GPUPROBE_REQUIRE`
//! names what it lacks. `#[bpf_test(needs(...))]` calls these functions.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use crate::process::finish;
use crate::{fixtures, tiers};

/// Whether probes can be attached.
pub fn bpf() -> bool {
    static LACKING: LazyLock<Option<String>> = LazyLock::new(lacking);
    match &*LACKING {
        None => true,
        Some(reason) => missing("bpf", reason),
    }
}

/// Whether the kernel has this tier.
pub fn tier(name: &str) -> bool {
    tiers::here().contains(&name) || missing(name, &format!("there is no tier {name} on this kernel"))
}

/// Whether a program is in the path.
pub fn program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
        || missing(name, &format!("there is no {name}"))
}

/// Whether file systems in user space can be mounted.
pub fn fuse() -> bool {
    Path::new("/dev/fuse").exists() || missing("fuse", "there is no /dev/fuse")
}

/// Whether messages can be written to the kernel log and read from it.
pub fn kernel_log() -> bool {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kmsg");
    opened.map_or_else(|e| missing("kernel_log", &format!("/dev/kmsg cannot be used: {e}")), |_| true)
}

/// Whether an overlay can be mounted. It mounts one, which loads the kernel module where overlayfs is a module.
pub fn overlay() -> bool {
    let folder = fixtures::folder();
    let mount = ["-m", "mount", "-t", "overlay", "overlay", "-o", "lowerdir=/usr:/etc"];
    let mounted = finish(Command::new("unshare").args(mount).arg(folder.path()));
    mounted.status == 0 || missing("bpf", &format!("no overlay can be mounted: {}", mounted.stderr))
}

/// Prints what the host lacks and returns `false`, so that a test can return. Panics if `GPUPROBE_REQUIRE` names it.
pub fn missing(what: &str, reason: &str) -> bool {
    let required = std::env::var("GPUPROBE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == what), "{what} is required, but {reason}");
    eprintln!("not tested: {reason}");
    false
}

fn lacking() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("probes need root".to_owned());
    }
    let doctor = Command::new(fixtures::gpuprobe()).arg("doctor").output();
    let doctor = doctor.unwrap_or_else(|e| panic!("cannot run gpuprobe doctor: {e}"));
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    (!doctor.status.success()).then(|| format!("gpuprobe doctor says:\n{said}"))
}
