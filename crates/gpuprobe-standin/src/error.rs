//! Build errors.

use std::io;
use std::path::PathBuf;

/// An error while building the stand-ins.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A tool could not be started.
    #[error("cannot start {tool}: {source}; install gcc, g++ and binutils")]
    Tool {
        /// The name of the tool.
        tool: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A tool failed.
    #[error("{tool} failed for {target}:\n{stderr}")]
    Compile {
        /// The name of the tool.
        tool: String,
        /// The file that it was to build.
        target: String,
        /// The output on stderr.
        stderr: String,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
