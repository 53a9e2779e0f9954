//! The kind and metadata of files, and the size limit of one read.

/// The most that is read of one table. libcuda's largest is under 1 MiB, an executable's with debug symbols
/// a few MiB.
pub(crate) const TABLE_LIMIT: u64 = 64 << 20;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Folder,
    Pipe,
    Socket,
    Device,
}

/// Metadata of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) dev: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) owner: u32,
    pub(crate) mtime: (i64, i64),
    pub(crate) ctime: (i64, i64),
    pub(crate) is_overlay: bool,
    /// On a FUSE file system.
    pub(crate) is_served: bool,
    /// Its file system is not one of the local ones, which depend on nothing but a disk or memory.
    pub(crate) may_stall: bool,
}
