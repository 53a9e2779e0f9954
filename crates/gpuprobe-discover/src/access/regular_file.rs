//! Opens and reads files that other processes chose. It never blocks on a special file and never reads beyond a
//! limit.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::client::{self, Handle};
use super::meta::{Kind, TABLE_LIMIT};
use super::stall_domain::StallDomain;
use crate::error::{Defect, DiscoverError};

/// Identifies a file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    pub dev: u64,
    pub inode: u64,
}

impl FileId {
    pub(crate) fn device(self) -> (u64, u64) {
        (nix::sys::stat::major(self.dev), nix::sys::stat::minor(self.dev))
    }
}

/// Metadata of a file when it was opened. Tells it apart from another file put in its place later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFile {
    pub dev: u64,
    pub inode: u64,
    pub size: u64,
    /// The uid of its owner.
    pub owner: u32,
}

/// Tells whether a file is still the one that was read. It includes the change time because, unlike the modification
/// time, a user cannot set it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    owner: u32,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

/// Identifies a file and its version: a file that was written to has another key.
pub(crate) type FileKey = (FileId, Stamp);

#[derive(Debug)]
pub(crate) struct RegularFile {
    file: Handle,
    pub(crate) id: FileId,
    pub(crate) stamp: Stamp,
    /// On overlayfs the Linux kernel probes the file of the lower layer, which two containers may share under two
    /// device numbers.
    pub(crate) overlay: bool,
    /// On a FUSE file system.
    pub(crate) is_served: bool,
    /// Reading it may hang.
    pub(crate) may_stall: bool,
    bytes_read: Cell<u64>,
    blocks: RefCell<HashMap<u64, Rc<[u8]>>>,
}

/// Bytes read at once if each read is a message to another process. Most reads are of a few bytes.
const BLOCK: u64 = 64 << 10;
/// Blocks that are cached.
const BLOCK_LIMIT: usize = 64;

impl RegularFile {
    pub(crate) fn open(path: &Path) -> Result<Self, DiscoverError> {
        Self::open_at(path, None)
    }

    /// Opens a file whose stall domain and shown name are known.
    pub(crate) fn open_at(path: &Path, known: Option<(StallDomain, &Path)>) -> Result<Self, DiscoverError> {
        let opened = client::open(path, known)
            .map_err(|source| DiscoverError::Open { path: path.to_owned(), source })?;
        let (file, meta) = opened.map_err(|kind| not_regular(path, kind))?;
        Ok(Self {
            file,
            id: FileId { dev: meta.dev, inode: meta.inode },
            stamp: Stamp { size: meta.size, owner: meta.owner, mtime: meta.mtime, ctime: meta.ctime },
            overlay: meta.is_overlay,
            is_served: meta.is_served,
            may_stall: meta.may_stall,
            bytes_read: Cell::new(0),
            blocks: RefCell::default(),
        })
    }

    pub(crate) fn opened(&self) -> OpenedFile {
        let (FileId { dev, inode }, Stamp { size, owner, .. }) = (self.id, self.stamp);
        OpenedFile { dev, inode, size, owner }
    }

    /// Bytes read of this file so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.get()
    }

    /// Exactly `size` bytes at `offset`. An error if the file has fewer, or if `size` exceeds the limit.
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
        match self.bytes(offset, size) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Defect::malformed(format!("{what} was cut off while it was read")))
            }
            Err(error) => Err(Defect::Read { what, source: Arc::new(error) }),
        }
    }

    /// Reads bytes that are within the size at opening.
    fn bytes(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let (first, last) = (offset / BLOCK, (offset + size.saturating_sub(1)) / BLOCK);
        // Fits: the limit is far below what a usize holds.
        if !self.file.is_remote() || last - first > 1 {
            return self.file.read(offset, size as usize);
        }
        let mut bytes = Vec::with_capacity(size as usize);
        for number in first..=last {
            let block = self.block(number)?;
            let begin = offset.max(number * BLOCK) - number * BLOCK;
            let end = (offset + size).min((number + 1) * BLOCK) - number * BLOCK;
            bytes.extend_from_slice(block.get(begin as usize..end as usize).unwrap_or_default());
        }
        Ok(bytes)
    }

    fn block(&self, number: u64) -> io::Result<Rc<[u8]>> {
        if let Some(block) = self.blocks.borrow().get(&number) {
            return Ok(Rc::clone(block));
        }
        let offset = number * BLOCK;
        let size = BLOCK.min(self.stamp.size.saturating_sub(offset));
        let block: Rc<[u8]> = self.file.read(offset, size as usize)?.into();
        let mut blocks = self.blocks.borrow_mut();
        if blocks.len() >= BLOCK_LIMIT {
            blocks.clear();
        }
        blocks.insert(number, Rc::clone(&block));
        Ok(block)
    }

    /// At most `size` bytes at `offset`, fewer at the end of the file.
    pub(crate) fn read_some(&self, offset: u64, size: u64, what: &'static str) -> Result<Vec<u8>, Defect> {
        self.read(offset, size.min(self.stamp.size.saturating_sub(offset)), what)
    }
}

fn not_regular(path: &Path, kind: Kind) -> DiscoverError {
    let what = match kind {
        Kind::Regular => "a regular file",
        Kind::Folder => "a folder",
        Kind::Pipe => "a pipe",
        Kind::Socket => "a socket",
        Kind::Device => "a device",
    };
    DiscoverError::NotRegular { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_files_are_refused_without_blocking() {
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
