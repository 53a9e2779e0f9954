//! Errors of discovery: what can be wrong with a file or a process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Paths are printed quoted and escaped, because a process chooses them and may use control characters.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    #[error("cannot open {path:?}")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} is {what}, not a regular file")]
    NotRegular { path: PathBuf, what: &'static str },
    #[error("{path:?}: {defect}")]
    File { path: PathBuf, defect: Defect },
    #[error("no process {pid}: it has exited or never existed")]
    NoSuchProcess { pid: u32 },
    #[error("cannot read the mappings of process {pid}: run as root or with CAP_SYS_PTRACE")]
    ProcessDenied {
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the mappings of process {pid}")]
    Process {
        pid: u32,
        #[source]
        source: io::Error,
    },
}

/// What is wrong inside one file. It can be cloned and cached, so that a bad file is inspected only once.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Defect {
    #[error("not an ELF file")]
    NotElf,
    #[error("{0}; only 64-bit little-endian x86-64 and aarch64 files can be probed")]
    Unsupported(String),
    #[error("damaged ELF file: {0}")]
    Malformed(String),
    #[error("{what} has {size} bytes, more than the limit of {limit}")]
    TooLarge { what: &'static str, size: u64, limit: u64 },
    #[error("cannot read {what}: {source}")]
    Read { what: &'static str, source: Arc<io::Error> },
}

impl Defect {
    pub(crate) fn of(self, path: &Path) -> DiscoverError {
        DiscoverError::File { path: path.to_owned(), defect: self }
    }

    pub(crate) fn malformed(text: impl Into<String>) -> Self {
        Self::Malformed(text.into())
    }
}
