//! Writes the programs and libraries that are embedded in this binary to a temporary folder, where they can run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A temporary folder, removed when it is dropped.
pub(crate) fn folder(command: &str) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix(&format!("gpuprobe-{command}-")).tempdir();
    made.with_context(|| format!("cannot create a folder for the {command}: set TMPDIR to a writable one"))
}

/// Writes an executable file.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let cannot = || format!("cannot write {}: set TMPDIR to another folder", path.display());
    fs::write(path, bytes).with_context(cannot)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(cannot)
}
