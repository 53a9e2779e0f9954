//! A small disk that is filled and freed while recordings are written to it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount, umount};

/// A tmpfs of a megabyte, unmounted at the end.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts one on a folder; nothing where that is not allowed.
    pub fn mount(folder: PathBuf) -> Option<Self> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("none"), &folder, Some("tmpfs"), flags, Some("size=1m,mode=0700")).ok()?;
        Some(Self { folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Leaves no room.
    pub fn fill(&self) {
        let Ok(mut filler) = File::create(self.folder.join("filler")) else { return };
        // it ends by an error: there is no more room
        while filler.write_all(&[7; 4096]).is_ok() {}
    }

    /// Removes everything.
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
