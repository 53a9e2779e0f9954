//! Helpers of the fuzz targets: files and processes that exist only in memory.
#![forbid(unsafe_code)]

pub mod elf_builder;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};
use tempfile::TempDir;

/// The pid of the only process in [`FakeProc`].
pub const PID: u32 = 7;
/// The address at which that process maps its file, from offset 0 on.
pub const BASE: u64 = 0x7f00_0000_0000;

/// A regular file in memory whose contents are replaced for each input.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    pub fn new() -> io::Result<Self> {
        Ok(Self(memfd_create("input", MFdFlags::MFD_CLOEXEC)?.into()))
    }

    pub fn set(&self, bytes: &[u8]) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(bytes, 0)
    }

    /// A path under which this process can open the file.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// A /proc with one process that has one file mapped as code.
#[derive(Debug)]
pub struct FakeProc {
    root: TempDir,
    file: MemoryFile,
}

impl FakeProc {
    pub fn new() -> io::Result<Self> {
        let (root, file) = (TempDir::new()?, MemoryFile::new()?);
        let folder = root.path().join(PID.to_string());
        let range = format!("{BASE:x}-{:x}", BASE + elf_builder::LOADED_BYTES);
        let inode = fs::metadata(file.path())?.ino();
        fs::create_dir_all(folder.join("map_files"))?;
        symlink(file.path(), folder.join("map_files").join(&range))?;
        fs::write(folder.join("maps"), format!("{range} r-xp 00000000 00:01 {inode} /fuzz/lib.so\n"))?;
        Ok(Self { root, file })
    }

    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The file that the process maps.
    pub fn file(&self) -> &MemoryFile {
        &self.file
    }
}
