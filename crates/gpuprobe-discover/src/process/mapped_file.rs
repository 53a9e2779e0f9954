//! Reads the mappings of a process and opens the files that it has mapped.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::maps::{CodeRange, MappedFile, Mapping, range_of};
use crate::access::{self, RegularFile, StallDomain, TABLE_LIMIT};
use crate::elf::Elf;
use crate::error::DiscoverError;
use crate::skipped::{SkipCause, why};

/// The mappings of a process at one moment. A paused process waits while they are read, so they are read once for all
/// who need them.
#[derive(Debug)]
pub struct ProcessMaps {
    pub(crate) pid: u32,
    /// Its folder in /proc.
    pub(crate) folder: PathBuf,
    pub(crate) text: Vec<u8>,
    /// How long it took to read them.
    pub(crate) took: Duration,
}

impl ProcessMaps {
    pub fn read(proc_root: &Path, pid: u32) -> Result<Self, DiscoverError> {
        Self::of(&proc_root.join(pid.to_string()), pid)
    }

    /// `folder` is that of the process in /proc.
    pub(crate) fn of(folder: &Path, pid: u32) -> Result<Self, DiscoverError> {
        let begun = Instant::now();
        let text = read_maps(folder, pid)?;
        Ok(Self { pid, folder: folder.to_owned(), text, took: begun.elapsed() })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }
}

pub(crate) fn read_maps(folder: &Path, pid: u32) -> Result<Vec<u8>, DiscoverError> {
    let read = || {
        let text = access::contents(&folder.join("maps"), TABLE_LIMIT)?;
        // a zombie has no memory any more
        if text.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(text) }
    };
    read().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => DiscoverError::NoSuchProcess { pid },
        _ if source.raw_os_error() == Some(Errno::ESRCH as i32) => DiscoverError::NoSuchProcess { pid },
        io::ErrorKind::PermissionDenied => DiscoverError::ProcessDenied { pid, source },
        _ => DiscoverError::Process { pid, source },
    })
}

/// The mapping of a process that contains an address.
pub fn mapped_range(proc_root: &Path, pid: u32, address: u64) -> Option<Range<u64>> {
    range_of(&read_maps(&proc_root.join(pid.to_string()), pid).ok()?, address)
}

/// The mapped file and the path it was opened by, or why it cannot be opened. See [`lasting_path`].
pub(crate) fn open_mapped(
    folder: &Path,
    mapping: &Mapping,
) -> Result<(RegularFile, PathBuf), (SkipCause, String)> {
    let MappedFile { path, deleted, inode, .. } = &mapping.file;
    let map_file = folder.join("map_files").join(&mapping.range);
    // The only path that is certain to be the mapped file, also if it was deleted or is in another mount namespace.
    // Older Linux kernels restrict it to root.
    let known =
        || mapping.file.device().map(|(major, minor)| (StallDomain::Device(major, minor), path.as_path()));
    let first = match RegularFile::open_at(&map_file, known()) {
        Ok(file) => return Ok((file, map_file)),
        Err(error) => why(&error),
    };
    // it may work the next time
    if first.0 == SkipCause::Stalled {
        return Err(first);
    }
    if *deleted {
        let reason = format!("deleted since it was mapped, and {}", first.1);
        return Err((SkipCause::Replaced, reason));
    }
    let in_namespace = folder.join("root").join(path.strip_prefix("/").unwrap_or(path));
    for name in [in_namespace, path.clone()] {
        match RegularFile::open_at(&name, known()) {
            // On overlayfs the two numbers may differ for the same file.
            Ok(file) if file.id.inode == *inode || file.overlay => return Ok((file, name)),
            Ok(_) => {
                let reason = "replaced by another file since it was mapped; run as root to reach it";
                return Err((SkipCause::Replaced, reason.into()));
            }
            Err(DiscoverError::Open { source, .. }) if !access::is_stall(&source) => {}
            Err(error) => return Err(why(&error)),
        }
    }
    Err(first)
}

/// The path by which to open a mapped file again. The plain path is better if it is the same file, because it outlives
/// the process. Most mapped files are not opened again, so that is found out only when it is needed.
pub(crate) fn lasting_path(mapping: &Mapping, file: &RegularFile, opened_by: PathBuf) -> PathBuf {
    let path = &mapping.file.path;
    let is_same = || access::identity(path).is_ok_and(|id| id == (file.id.dev, file.id.inode));
    if opened_by != *path && is_same() { path.clone() } else { opened_by }
}

/// What the loader added to the addresses of a file: the difference between where a range of it is mapped and the
/// address that the file gives for it.
pub(crate) fn load_bias(range: &CodeRange, elf: &Elf<'_>) -> Option<u64> {
    Some(range.start.wrapping_sub(elf.page_address(range.offset)?))
}
