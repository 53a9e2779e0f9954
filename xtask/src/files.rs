//! The files of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What the walk leaves out, since it has no git to ask: the entries of `.gitignore`.
const NOT_OURS: &[&str] = &["target", "traces", ".cache", "__pycache__"];

pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Every tracked file that is there, by its path from the root; in an unpacked archive, every file.
pub(crate) fn tracked() -> Result<Vec<String>> {
    if !root().join(".git").exists() {
        let mut names = Vec::new();
        walk(root(), &mut names)?;
        return Ok(names);
    }
    let output = Command::new("git")
        // root may check what a user has cloned; git refuses that by default
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root())
        .output()
        .context("git did not start; it is needed to tell which files are tracked")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a tracked file has a name that is not UTF-8")?;
    // a file deleted but not yet committed is still listed
    Ok(names.split_terminator('\0').filter(|name| path(name).is_file()).map(str::to_owned).collect())
}

fn walk(folder: &Path, names: &mut Vec<String>) -> Result<()> {
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let ours = entry.file_name().to_str().is_some_and(|name| !NOT_OURS.contains(&name));
        if kind.is_dir() && ours {
            walk(&entry.path(), names)?;
        } else if kind.is_file() {
            names.push(entry.path().strip_prefix(root())?.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// The content; bytes that are not UTF-8 are replaced, since no check depends on them.
pub(crate) fn read(name: &str) -> Result<String> {
    let bytes = std::fs::read(path(name)).with_context(|| format!("cannot read {name}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether there is a file or folder of this name.
pub(crate) fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Whether it is a symbolic link.
pub(crate) fn is_link(name: &str) -> bool {
    path(name).is_symlink()
}

fn path(name: &str) -> PathBuf {
    root().join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_finds_sources_and_leaves_out_what_is_built() {
        let mut names = Vec::new();
        walk(root(), &mut names).unwrap();
        assert!(names.iter().any(|name| name == "xtask/src/files.rs"));
        assert!(!names.iter().any(|name| name.starts_with("target/")));
    }
}
