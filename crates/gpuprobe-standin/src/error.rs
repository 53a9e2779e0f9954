//! Why a build failed.

use std::io;
use std::path::PathBuf;

/// Why the stand-ins could not be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A tool could not be started.
    #[error("cannot start {tool}: {source}; install gcc, g++ and binutils")]
    Tool {
        /// Its name.
        tool: String,
        /// What the system said.
        source: io::Error,
    },
    /// A tool failed.
    #[error("{tool} failed for {target}:\n{stderr}")]
    Compile {
        /// Its name.
        tool: String,
        /// What was to be made.
        target: String,
        /// What it printed.
        stderr: String,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
