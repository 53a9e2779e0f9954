//! A lock that allows one builder per folder at a time, across processes.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::Error;

/// The lock of a folder, taken while it is built. The lock file next to the folder contains the pid of the owner, so that
/// the lock of a killed process can be recognized and removed.
#[derive(Debug)]
pub(crate) struct FolderLock {
    path: PathBuf,
}

impl FolderLock {
    pub(crate) fn take(folder: &Path) -> Result<Self, Error> {
        let mut name = folder.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    write!(file, "{}", std::process::id()).map_err(Error::io(&path))?;
                    return Ok(Self { path });
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists => wait_or_remove_stale(&path),
                Err(e) => return Err(Error::io(path)(e)),
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // if the file cannot be removed, the next builder removes it once this process has exited
        drop(fs::remove_file(&self.path));
    }
}

fn wait_or_remove_stale(path: &Path) {
    thread::sleep(Duration::from_millis(50));
    let owner = fs::read_to_string(path).unwrap_or_default();
    if !owner.is_empty() && !Path::new("/proc").join(&owner).exists() {
        drop(fs::remove_file(path));
    }
}
