//! A small disk that is filled and freed while recordings are written to it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};

/// A tmpfs of one megabyte, unmounted when dropped.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts one on a folder; `None` if that is not allowed.
    pub fn mount(folder: PathBuf) -> Option<Self> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("none"), &folder, Some("tmpfs"), flags, Some("size=1m,mode=0700")).ok()?;
        Some(Self { folder })
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Writes a file until the disk is full.
    pub fn fill(&self) {
        let Ok(mut filler) = File::create(self.folder.join("filler")) else { return };
        // ends with the error that the disk is full
        while filler.write_all(&[7; 4096]).is_ok() {}
    }

    pub fn free(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            fs::remove_file(entry.path()).ok();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = umount(&self.folder) {
            eprintln!("chaos: {} stays mounted: {error}", self.folder.display());
        }
    }
}
