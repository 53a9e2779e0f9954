//! Whether a test can run here. One that cannot says why and passes, unless `GPUPROBE_REQUIRE` names what it needs.

use std::process::Command;
use std::sync::LazyLock;

use crate::places;

/// Whether probes can be attached; `false` after telling why not. Panics where BPF is required.
pub fn bpf() -> bool {
    static LACKING: LazyLock<Option<String>> = LazyLock::new(lacking);
    match &*LACKING {
        None => true,
        Some(reason) => missing("bpf", reason),
    }
}

/// Tells that something is not there; `false`, so that a test can return. Panics where it is required.
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
    let doctor = Command::new(places::gpuprobe()).arg("doctor").output();
    let doctor = doctor.unwrap_or_else(|e| panic!("cannot run gpuprobe doctor: {e}"));
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    (!doctor.status.success()).then(|| format!("gpuprobe doctor says:\n{said}"))
}
