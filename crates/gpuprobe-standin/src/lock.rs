//! One builder per folder at a time, across processes.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::error::Error;

/// Held while a folder is built; the file beside the folder names the holder, so that one left by a killed process
/// is seen as such.
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
                Err(e) if e.kind() == ErrorKind::AlreadyExists => wait_or_break(&path),
                Err(e) => return Err(Error::io(path)(e)),
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // a lock that cannot be removed is broken by the next builder, once this process has ended
        drop(fs::remove_file(&self.path));
    }
}

fn wait_or_break(path: &Path) {
    thread::sleep(Duration::from_millis(50));
    let holder = fs::read_to_string(path).unwrap_or_default();
    if !holder.is_empty() && !Path::new("/proc").join(&holder).exists() {
        drop(fs::remove_file(path));
    }
}
