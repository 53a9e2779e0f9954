//! Writes the programs and libraries that are embedded in this binary to a temporary folder, where they can run.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{env, fs, io};

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use tempfile::TempDir;

/// Used where there is no `/tmp`, as in a container without files.
const OTHER_PLACES: [&str; 2] = ["/dev/shm", "/"];

/// A temporary folder, removed when it is dropped.
pub(crate) fn folder(command: &str) -> Result<TempDir> {
    let prefix = format!("gpuprobe-{command}-");
    let made_in = |place: &Path| tempfile::Builder::new().prefix(&prefix).tempdir_in(place);
    let usual = env::temp_dir();
    let mut made = made_in(&usual);
    if !usual.exists() {
        let others = OTHER_PLACES.iter().map(|place| made_in(Path::new(place)));
        made = others.fold(made, io::Result::or);
    }
    made.with_context(|| format!("cannot create a folder for the {command}: set TMPDIR to a writable one"))
}

/// Writes an executable file, which is embedded compressed.
pub(crate) fn write(path: &Path, compressed: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}: set TMPDIR to another folder", path.display());
    let mut bytes = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut bytes)?;
    fs::write(path, bytes).with_context(cannot)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(cannot)
}
