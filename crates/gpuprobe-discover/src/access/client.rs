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

/// The reader process, where there is one. Files are looked at from many places, which know nothing of it.
static READER: Mutex<Option<Reader>> = Mutex::new(None);

/// From now on, files of others are read by processes. This command, which must call [`start_readers`], is run once, right
/// now: later we may not be able to execute anything.
pub fn read_files_by(starter: Command) -> io::Result<()> {
    let mut starter = Starter::new(starter)?;
    *reader() = Some(Reader::new(Box::new(move || starter.reader())));
    Ok(())
}

/// Files whose file system did not answer, or answers again, since the last time.
pub fn take_stalls() -> Vec<Stall> {
    reader().as_mut().map(Reader::take_stalls).unwrap_or_default()
}

fn reader() -> MutexGuard<'static, Option<Reader>> {
    READER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an error says that a file system did not answer.
pub(crate) fn is_stall(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// Has the reader do something, or does it right here.
fn ask(path: &Path, request: &Request<'_>) -> io::Result<Vec<u8>> {
    match &mut *reader() {
        Some(reader) => reader.ask(StallDomain::of(path), path, request).map(|(reply, _)| reply),
        None => direct::answer(&mut direct::Files::default(), request),
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) enum Handle {
    Here(File),
    /// By its number, at a reader that may have been replaced since.
    There {
        number: u64,
        reader: u64,
        domain: StallDomain,
        /// For people.
        name: PathBuf,
    },
}

/// Opens a regular file; `known` is where it lies and what people call it, if that is not what the path says. What is no
/// regular file is not opened.
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
    // not before everything is known: one that goes takes the lock that is held here
    Ok(Ok((Handle::There { number, reader: generation, domain, name: name.to_owned() }, meta)))
}

impl Handle {
    /// Exactly so many bytes.
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
                    // who had it open was left behind
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

/// Device and inode of what a name leads to.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let reply = ask(path, &Request::Identity { path })?;
    let mut fields = Fields::new(&reply);
    Ok((fields.number()?, fields.number()?))
}

/// A file from its beginning, up to so many bytes.
pub(crate) fn contents(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    ask(path, &Request::Contents { path, limit })
}

/// The names in a folder, in no order, no more than so many.
pub(crate) fn names(folder: &Path, limit: usize) -> io::Result<Vec<PathBuf>> {
    let reply = ask(folder, &Request::Names { path: folder, limit: limit as u64 })?;
    let mut fields = Fields::new(&reply);
    let mut names = Vec::new();
    while !fields.is_empty() {
        names.push(fields.path()?);
    }
    Ok(names)
}

/// A name without links.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    let reply = ask(path, &Request::Canonical { path })?;
    Fields::new(&reply).path()
}

/// Up to so many bytes of a process's memory, by its file of that.
pub fn memory(path: &Path, address: u64, size: usize) -> io::Result<Vec<u8>> {
    ask(path, &Request::Memory { path, address, size: size as u64 })
}

/// The minor numbers of a folder's device files that have this major one; none where it has too many files.
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
