//! Reads files in this process, and the request loop of a reader process.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FUSE_SUPER_MAGIC, FsType, ISOFS_SUPER_MAGIC,
    OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs,
};

use super::meta::{Kind, Meta, TABLE_LIMIT};
use super::wire::{BEGUN, Fields, Message, Request, answer_message, read_message};

/// File systems that wait for nothing but a disk. An overlay is not among them: its layers can be on any file system.
const LOCAL: [FsType; 6] =
    [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, ISOFS_SUPER_MAGIC, TMPFS_MAGIC];

/// The open files of a reader process.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: HashMap<u64, File>,
    last: u64,
}

/// Answers requests until the input ends.
pub fn serve_files(mut requests: impl Read, mut answers: impl Write) -> io::Result<()> {
    let mut files = Files::default();
    while let Some(message) = read_message(&mut requests)? {
        let request = Request::parse(&Fields::new(&message))?;
        answers.write_all(&[BEGUN])?;
        answers.flush()?;
        answers.write_all(&answer_message(&answer(&mut files, &request)))?;
        answers.flush()?;
    }
    Ok(())
}

/// The payload of the answer to a request.
pub(super) fn answer(files: &mut Files, request: &Request<'_>) -> io::Result<Vec<u8>> {
    let mut answer = Message::default();
    match *request {
        Request::Open { path } => match open(path)? {
            Err(kind) => answer.kind(kind),
            Ok((file, meta)) => {
                files.last += 1;
                files.open.insert(files.last, file);
                answer.kind(Kind::Regular);
                answer.number(files.last);
                answer.meta(&meta);
            }
        },
        Request::Read { number, offset, size } => {
            let file = files.open.get(&number).ok_or(io::ErrorKind::NotFound)?;
            let mut bytes = vec![0; bounded(size)];
            file.read_exact_at(&mut bytes, offset)?;
            return Ok(bytes);
        }
        Request::Close { number } => drop(files.open.remove(&number)),
        Request::Identity { path } => {
            let meta = fs::metadata(path)?;
            answer.number(meta.dev());
            answer.number(meta.ino());
        }
        Request::Contents { path, limit } => {
            let mut bytes = Vec::new();
            File::open(path)?.take(limit.min(TABLE_LIMIT)).read_to_end(&mut bytes)?;
            return Ok(bytes);
        }
        Request::Names { path, limit } => {
            let entries = fs::read_dir(path)?.take(bounded(limit)).flatten();
            entries.for_each(|entry| answer.path(Path::new(&entry.file_name())));
        }
        Request::Canonical { path } => answer.path(&fs::canonicalize(path)?),
        Request::Memory { path, address, size } => {
            let mut bytes = vec![0; bounded(size)];
            let read = File::open(path)?.read_at(&mut bytes, address)?;
            bytes.truncate(read);
            return Ok(bytes);
        }
        Request::Devices { path, major, limit } => devices(path, major, bounded(limit), &mut answer)?,
    }
    // without the length prefix
    Ok(answer.finish().split_off(8))
}

fn bounded(size: u64) -> usize {
    // fits: the limit is far below what a usize holds
    size.min(TABLE_LIMIT) as usize
}

/// Opens a file if it is a regular file.
pub(super) fn open(path: &Path) -> io::Result<Result<(File, Meta), Kind>> {
    // The type is checked before opening, because opening a device can have side effects, and again after it, because
    // the path may have been replaced. Without O_NONBLOCK opening a FIFO would wait for a writer.
    let kind = kind_of(&fs::metadata(path)?);
    if kind != Kind::Regular {
        return Ok(Err(kind));
    }
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let kind = kind_of(&meta);
    if kind != Kind::Regular {
        return Ok(Err(kind));
    }
    let system = fstatfs(&file).map(|fs| fs.filesystem_type());
    let meta = Meta {
        dev: meta.dev(),
        inode: meta.ino(),
        size: meta.len(),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        owner: meta.uid(),
        ctime: (meta.ctime(), meta.ctime_nsec()),
        is_overlay: system == Ok(OVERLAYFS_SUPER_MAGIC),
        is_served: system == Ok(FUSE_SUPER_MAGIC),
        may_stall: !system.is_ok_and(|system| LOCAL.contains(&system)),
    };
    Ok(Ok((file, meta)))
}

fn kind_of(meta: &fs::Metadata) -> Kind {
    let kind = meta.file_type();
    if kind.is_file() {
        Kind::Regular
    } else if kind.is_dir() {
        Kind::Folder
    } else if kind.is_fifo() {
        Kind::Pipe
    } else if kind.is_socket() {
        Kind::Socket
    } else {
        Kind::Device
    }
}

/// Writes 1 and the minor numbers, or 0 if the directory has too many files.
fn devices(folder: &Path, wanted: u64, limit: usize, answer: &mut Message) -> io::Result<()> {
    let entries: Vec<_> = fs::read_dir(folder)?.take(limit).flatten().collect();
    let is_whole = entries.len() < limit;
    answer.number(u64::from(is_whole));
    for entry in entries.into_iter().filter(|_| is_whole) {
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if meta.file_type().is_char_device() && major(meta.rdev()) == wanted {
            answer.number(minor(meta.rdev()));
        }
    }
    Ok(())
}
