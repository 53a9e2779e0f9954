//! Opening and reading files that somebody else chose: never blocks, never reads beyond what was measured.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, fstatfs};

use crate::error::{Defect, DiscoverError};

/// The most that is read of one table. libcuda's largest is under 1 MiB, an executable's with debug symbols
/// a few MiB.
pub(crate) const TABLE_LIMIT: u64 = 64 << 20;

/// One file, however it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    pub dev: u64,
    pub inode: u64,
}

/// Tells whether a file is still the one that was read. The change time is in it because, unlike the
/// modification time, a user cannot set it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    owner: u32,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

#[derive(Debug)]
pub(crate) struct RegularFile {
    file: File,
    pub(crate) id: FileId,
    pub(crate) stamp: Stamp,
    /// On overlayfs the kernel probes the file below, which two containers may share under two device numbers.
    pub(crate) overlay: bool,
    bytes_read: Cell<u64>,
}

impl RegularFile {
    pub(crate) fn open(path: &Path) -> Result<Self, DiscoverError> {
        let failed = |source| DiscoverError::Open { path: path.to_owned(), source };
        // Looked at before it is opened, for opening a device can have effects; and again afterwards, for the
        // name may have been given to something else. Without O_NONBLOCK a FIFO would wait for a writer.
        require_regular(path, &fs::metadata(path).map_err(failed)?)?;
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        require_regular(path, &meta)?;
        let overlay = fstatfs(&file).is_ok_and(|fs| fs.filesystem_type() == OVERLAYFS_SUPER_MAGIC);
        let stamp = Stamp {
            size: meta.len(),
            owner: meta.uid(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        };
        Ok(Self {
            file,
            id: FileId { dev: meta.dev(), inode: meta.ino() },
            stamp,
            overlay,
            bytes_read: Cell::new(0),
        })
    }

    /// What this file has cost so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.get()
    }

    /// Exactly `size` bytes at `offset`; refused unless the file has them and they are few enough to hold.
    pub(crate) fn read(&self, offset: u64, size: u64, what: &'static str) -> Result<Vec<u8>, Defect> {
        let end = offset.checked_add(size).filter(|&end| end <= self.stamp.size);
        if end.is_none() {
            return Err(Defect::malformed(format!(
                "{what} ({size} bytes at {offset}) ends beyond the file's {} bytes",
                self.stamp.size
            )));
        }
        if size > TABLE_LIMIT {
            return Err(Defect::TooLarge { what, size, limit: TABLE_LIMIT });
        }
        self.bytes_read.set(self.bytes_read.get() + size);
        // Fits: the limit is far below what a usize holds.
        let mut bytes = vec![0; size as usize];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Defect::malformed(format!("{what} was cut off while it was read")))
            }
            Err(error) => Err(Defect::Read { what, source: Arc::new(error) }),
        }
    }

    /// At most `size` bytes at `offset`, fewer at the end of the file.
    pub(crate) fn read_some(&self, offset: u64, size: u64, what: &'static str) -> Result<Vec<u8>, Defect> {
        self.read(offset, size.min(self.stamp.size.saturating_sub(offset)), what)
    }
}

fn require_regular(path: &Path, meta: &fs::Metadata) -> Result<(), DiscoverError> {
    let kind = meta.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(DiscoverError::NotRegular { path: path.to_owned(), what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("libcuda.so.1");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let text = RegularFile::open(&fifo).unwrap_err().to_string();
        assert!(text.ends_with("is a pipe, not a regular file"), "{text}");
        let text = RegularFile::open(dir.path()).unwrap_err().to_string();
        assert!(text.ends_with("is a folder, not a regular file"), "{text}");
        let text = RegularFile::open(Path::new("/dev/null")).unwrap_err().to_string();
        assert_eq!(text, "\"/dev/null\" is a device, not a regular file");
    }

    #[test]
    fn a_symlink_loop_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("libcuda.so");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        assert!(matches!(RegularFile::open(&link), Err(DiscoverError::Open { .. })));
    }

    #[test]
    fn reads_are_bounded_by_the_file_and_by_the_limit() {
        let sparse = tempfile::NamedTempFile::new().unwrap();
        sparse.as_file().set_len(10 << 30).unwrap();
        let file = RegularFile::open(sparse.path()).unwrap();
        assert!(matches!(file.read(0, TABLE_LIMIT + 1, "t"), Err(Defect::TooLarge { .. })));
        assert!(matches!(file.read(u64::MAX, 2, "t"), Err(Defect::Malformed(_))));
        assert!(matches!(file.read((10 << 30) - 1, 2, "t"), Err(Defect::Malformed(_))));
        assert_eq!(file.read_some((10 << 30) - 1, 100, "t").unwrap(), [0]);
    }
}
