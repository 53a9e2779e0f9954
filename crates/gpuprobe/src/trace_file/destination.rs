//! The destination of a trace: a file, stdout, a FIFO or a device.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;

use super::file_names::{FOLDER, LATEST, default_name};
use super::output_file::{self, Access, Created, Folder};
use crate::terminal::notes::note;

const STDOUT: &str = "-";

/// Whether this path stands for stdout.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

/// Where a trace will be written.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A path that the user gave.
    Named,
    /// Opened already: stdout or a FIFO.
    Opened(File),
    /// A generated name in this folder, with a link to it.
    Default(Folder, OsString),
}

/// An opened trace. `entry` is set if further segments can be created next to it.
#[derive(Debug)]
pub(super) struct OpenedTrace {
    pub(super) file: File,
    /// Its folder and its name there, if it is a file in a folder.
    pub(super) entry: Option<(Folder, OsString)>,
    /// The link to be pointed at it.
    pub(super) latest: Option<OsString>,
}

impl Destination {
    /// Finds the destination: without a path, a file in `traces/` with the link `trace_latest.jsonl` to it. This waits
    /// for the reader of a FIFO, so it runs while Ctrl-C still ends gpuprobe. An existing file is not touched before
    /// [`Destination::create`], because the recording may fail to start.
    pub(crate) fn find(path: Option<&Path>, access: Access) -> Result<Self> {
        let Some(path) = path else {
            let cannot = "cannot create the folder traces: give another path with -o";
            let folder = Folder::make(Path::new(FOLDER)).context(cannot)?;
            let name = default_name(&folder);
            let path = Path::new(FOLDER).join(&name);
            return Ok(Self { path, access, kind: Kind::Default(folder, name) });
        };
        let is_fifo = fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
        let kind = if is_stdout(path) {
            Kind::Opened(stdout().context("cannot write the trace to stdout")?)
        } else if is_fifo {
            let cannot = || format!("cannot write the trace to {}", path.display());
            Kind::Opened(open_fifo(path).with_context(cannot)?)
        } else {
            Kind::Named
        };
        Ok(Self { path: path.to_owned(), access, kind })
    }

    pub(super) fn create(self) -> io::Result<(PathBuf, OpenedTrace)> {
        let Self { path, access, kind } = self;
        Ok(match kind {
            Kind::Opened(file) => (path, OpenedTrace { file, entry: None, latest: None }),
            Kind::Named => {
                let Created { file, folder, name } = output_file::create(&path, access)?;
                let entry = (!folder.is_of_descriptors()).then_some((folder, name));
                (path, OpenedTrace { file, entry, latest: None })
            }
            Kind::Default(folder, name) => {
                let (file, name) = folder.create(&name, access)?;
                let begun =
                    OpenedTrace { file, entry: Some((folder, name.clone())), latest: Some(LATEST.into()) };
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
            note!("gpuprobe: {} is a FIFO: waiting for a reader", path.display());
        }
        _ => {}
    }
    // keep the first descriptor open until the second is: a reader would see an end of file in between
    let file = output_file::create(path, Access::Private);
    drop(without_waiting);
    file.map(|created| created.file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn opening_a_fifo_waits_for_its_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let read = path.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(read).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let output = Destination::find(Some(&path), Access::Private).unwrap();
        assert!(matches!(output.kind, Kind::Opened(_)));
        output.create().unwrap().1.file.write_all(b"all of it").unwrap();
        assert_eq!(reader.join().unwrap(), "all of it");
    }

    #[test]
    fn a_file_is_not_touched_before_create() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        fs::write(&path, "before").unwrap();
        let output = Destination::find(Some(&path), Access::Private).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        output.create().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }
}
