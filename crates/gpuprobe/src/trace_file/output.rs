//! Where the first segment of a trace goes: a file, stdout, or whatever else can be opened by a name.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::place::{FOLDER, LATEST, default_name};
use crate::notes::note;
use crate::output_file::{self, Access, Created, Folder};

/// The name of stdout.
const STDOUT: &str = "-";

/// Whether this is the name of stdout.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

/// A place for a trace that was not begun yet.
#[derive(Debug)]
pub(crate) struct Output {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Where the user has said.
    Named,
    /// Of what had to be opened beforehand.
    Opened(File),
    /// A name of our own in this folder, with a link that is to point at it.
    Default(Folder, OsString),
}

/// A trace that was begun: where it is, if it is a file that can be followed by others.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) file: File,
    /// Its folder and its name there.
    pub(super) beside: Option<(Folder, OsString)>,
    /// The link that is to point at it.
    pub(super) latest: Option<OsString>,
}

impl Output {
    /// Finds the place: with no path given, under `traces/`, with `trace_latest.jsonl` pointing at it. Whoever is to read
    /// a FIFO is waited for here, so this is done while Ctrl-C still ends us. A file is left alone until
    /// [`Output::create`]: what is there may be needed when nothing can be recorded.
    pub(crate) fn find(path: Option<&Path>, access: Access) -> Result<Self> {
        let Some(path) = path else {
            let cannot = "cannot make the folder traces: give another place with -o";
            let folder = Folder::make(Path::new(FOLDER)).context(cannot)?;
            let name = default_name(&folder);
            let path = Path::new(FOLDER).join(&name);
            return Ok(Self { path, access, place: Place::Default(folder, name) });
        };
        let is_fifo = fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
        let place = if is_stdout(path) {
            Place::Opened(stdout().context("cannot write the trace to stdout")?)
        } else if is_fifo {
            let cannot = || format!("cannot write the trace to {}", path.display());
            Place::Opened(open_fifo(path).with_context(cannot)?)
        } else {
            Place::Named
        };
        Ok(Self { path: path.to_owned(), access, place })
    }

    pub(super) fn create(self) -> io::Result<(PathBuf, Begun)> {
        let Self { path, access, place } = self;
        Ok(match place {
            Place::Opened(file) => (path, Begun { file, beside: None, latest: None }),
            Place::Named => {
                let Created { file, folder, name } = output_file::create(&path, access)?;
                let beside = (!folder.is_of_descriptors()).then_some((folder, name));
                (path, Begun { file, beside, latest: None })
            }
            Place::Default(folder, name) => {
                let (file, name) = folder.create(&name, access)?;
                let begun = Begun { file, beside: Some((folder, name.clone())), latest: Some(LATEST.into()) };
                (path.with_file_name(name), begun)
            }
        })
    }
}

fn stdout() -> io::Result<File> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

fn open_fifo(path: &Path) -> io::Result<File> {
    let without_waiting = output_file::open_pipe_without_waiting(path);
    match &without_waiting {
        Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
            note!("gpuprobe: {} is a FIFO: waiting for somebody who reads it", path.display());
        }
        _ => {}
    }
    // that one is open until this one is, or a reader would see an end between the two
    let file = output_file::create(path, Access::Private);
    drop(without_waiting);
    file.map(|created| created.file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_fifo_is_opened_when_somebody_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let read = path.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(read).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let output = Output::find(Some(&path), Access::Private).unwrap();
        assert!(matches!(output.place, Place::Opened(_)));
        output.create().unwrap().1.file.write_all(b"all of it").unwrap();
        assert_eq!(reader.join().unwrap(), "all of it");
    }

    #[test]
    fn a_file_is_left_alone_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        fs::write(&path, "before").unwrap();
        let output = Output::find(Some(&path), Access::Private).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        output.create().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }
}
