//! The functions through which the rest of the crate reads files: by the reader process if there is one, else directly.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::direct;
use super::meta::{Kind, Meta};
use super::reader::{Reader, Stall};
use super::stall_domain::StallDomain;
use super::starter::Starter;
use super::wire::{Fields, Request};

/// The reader process, if one is configured. It is a global because files are read in many parts of the crate.
static READER: Mutex<Option<Reader>> = Mutex::new(None);

/// From now on, reader processes read the files. `starter` must call [`crate::start_readers`]. It is run once, now, because
/// the program may lose the right to execute others later.
pub fn read_files_by(starter: Command) -> io::Result<()> {
    let mut starter = Starter::new(starter)?;
    *reader() = Some(Reader::new(Box::new(move || starter.reader())));
    Ok(())
}

/// File systems that stopped answering, or answer again, since the last call.
pub fn take_stalls() -> Vec<Stall> {
    reader().as_mut().map(Reader::take_stalls).unwrap_or_default()
}

fn reader() -> MutexGuard<'static, Option<Reader>> {
    READER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an error means that a file system did not answer.
pub(crate) fn is_stall(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Asks the reader process, or does the work in this process if there is none.
fn ask(path: &Path, request: &Request<'_>) -> io::Result<Vec<u8>> {
    match &mut *reader() {
        Some(reader) => reader.ask(StallDomain::of(path), path, request).map(|(reply, _)| reply),
        None => direct::answer(&mut direct::Files::default(), request),
    }
}

/// An open file, in this process or in a reader process.
#[derive(Debug)]
pub(crate) enum Handle {
    Here(File),
    /// A number that the reader process gave out. That process may have been replaced since.
    There {
        number: u64,
        reader: u64,
        domain: StallDomain,
        /// The name shown to people.
        name: PathBuf,
    },
}

/// Opens a regular file. `known` is its stall domain and the name shown to people, if they differ from what the path
/// says. Other kinds of files are not opened.
pub(crate) fn open(
    path: &Path,
    known: Option<(StallDomain, &Path)>,
) -> io::Result<Result<(Handle, Meta), Kind>> {
    let mut reader = reader();
    let Some(reader) = &mut *reader else {
        return Ok(direct::open(path)?.map(|(file, meta)| (Handle::Here(file), meta)));
    };
    let (domain, name) = known.unwrap_or_else(|| (StallDomain::of(path), path));
    let (reply, generation) = reader.ask(domain.clone(), name, &Request::Open { path })?;
    let mut fields = Fields::new(&reply);
    let kind = fields.kind()?;
    if kind != Kind::Regular {
        return Ok(Err(kind));
    }
    let (number, meta) = (fields.number()?, fields.meta()?);
    // Created last: dropping a handle takes the lock that this function holds.
    Ok(Ok((Handle::There { number, reader: generation, domain, name: name.to_owned() }, meta)))
}

impl Handle {
    /// Reads exactly `size` bytes.
    pub(crate) fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Here(file) => {
                let mut bytes = vec![0; size];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            Self::There { number, reader: generation, domain, name } => {
                let request = Request::Read { number: *number, offset, size: size as u64 };
                match &mut *reader() {
                    Some(reader) if reader.is(*generation) => {
                        reader.ask(domain.clone(), name, &request).map(|(reply, _)| reply)
                    }
                    // the process that had it open was abandoned
                    _ => Err(io::ErrorKind::TimedOut.into()),
                }
            }
        }
    }

    /// Whether reading costs a message to another process.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::There { .. })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Self::There { number, reader: generation, domain, name } = self
            && let Some(reader) = &mut *reader()
        {
            reader.close(*generation, *number, (domain.clone(), name.clone()));
        }
    }
}

/// Device and inode of the file at a path.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let reply = ask(path, &Request::Identity { path })?;
    let mut fields = Fields::new(&reply);
    Ok((fields.number()?, fields.number()?))
}

/// The first `limit` bytes of a file.
pub(crate) fn contents(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    ask(path, &Request::Contents { path, limit })
}

/// At most `limit` names in a directory, in no order.
pub(crate) fn names(folder: &Path, limit: usize) -> io::Result<Vec<PathBuf>> {
    let reply = ask(folder, &Request::Names { path: folder, limit: limit as u64 })?;
    let mut fields = Fields::new(&reply);
    let mut names = Vec::new();
    while !fields.is_empty() {
        names.push(fields.path()?);
    }
    Ok(names)
}

/// The path with all symbolic links resolved.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    let reply = ask(path, &Request::Canonical { path })?;
    Fields::new(&reply).path()
}

/// Up to `size` bytes of a process's memory; `path` is its /proc/PID/mem.
pub fn memory(path: &Path, address: u64, size: usize) -> io::Result<Vec<u8>> {
    ask(path, &Request::Memory { path, address, size: size as u64 })
}

/// The minor numbers of a directory's device files with this major number; `None` if it has too many files.
pub(crate) fn device_numbers(folder: &Path, major: u64, limit: usize) -> io::Result<Option<Vec<u32>>> {
    let reply = ask(folder, &Request::Devices { path: folder, major, limit: limit as u64 })?;
    let mut fields = Fields::new(&reply);
    if fields.number()? == 0 {
        return Ok(None);
    }
    let mut numbers = Vec::new();
    while !fields.is_empty() {
        numbers.extend(u32::try_from(fields.number()?));
    }
    Ok(Some(numbers))
}
