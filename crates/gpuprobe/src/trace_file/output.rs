//! Where the first segment of a trace goes: a file, stdout, or whatever else can be opened by a name.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::fcntl::OFlag;

use super::place::default_path;
use crate::notes::note;

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
    /// The link that is to point at it.
    pub(super) latest: Option<PathBuf>,
    /// Of what had to be opened beforehand.
    opened: Option<File>,
}

impl Output {
    /// Finds the place: with no path given, under `traces/`, with `trace_latest.jsonl` pointing at it. Whoever is to read
    /// a FIFO is waited for here, so this is done while Ctrl-C still ends us. A file is left alone until
    /// [`Output::create`]: what is there may be needed when nothing can be recorded.
    pub(crate) fn find(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            let (path, latest) = default_path()?;
            return Ok(Self { path, latest: Some(latest), opened: None });
        };
        let is_fifo = fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
        let opened = if is_stdout(path) {
            Some(stdout().context("cannot write the trace to stdout")?)
        } else if is_fifo {
            Some(open_fifo(path).with_context(|| format!("cannot write the trace to {}", path.display()))?)
        } else {
            None
        };
        Ok(Self { path: path.to_owned(), latest: None, opened })
    }

    pub(super) fn create(&mut self) -> io::Result<File> {
        self.opened.take().map_or_else(|| File::create(&self.path), Ok)
    }
}

fn stdout() -> io::Result<File> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

fn open_fifo(path: &Path) -> io::Result<File> {
    let without_waiting = File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    if without_waiting.is_err() {
        note!("gpuprobe: {} is a FIFO: waiting for somebody who reads it", path.display());
    }
    // that one is open until this one is, or a reader would see an end between the two
    let file = File::options().write(true).open(path);
    drop(without_waiting);
    file
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
        let mut output = Output::find(Some(&path)).unwrap();
        assert!(output.opened.is_some());
        output.create().unwrap().write_all(b"all of it").unwrap();
        assert_eq!(reader.join().unwrap(), "all of it");
    }

    #[test]
    fn a_file_is_left_alone_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        fs::write(&path, "before").unwrap();
        let mut output = Output::find(Some(&path)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        output.create().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }
}
