//! Files and functions that are not probed, each with a reason in words and with a cause for metrics.

use std::path::{Path, PathBuf};

use crate::access::{FileId, is_stall};
use crate::error::{Defect, DiscoverError};

macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)*) => {
        /// Why something is not probed. The causes are few and fixed, because they are values of a metric label.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum SkipCause { $($(#[doc = $doc])+ $name,)* }

        impl SkipCause {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The label value in metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means, for people.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_start(),)* }
            }
        }
    };
}

causes! {
    /// A pipe, a directory, a socket or a device.
    NotRegular = "not_regular",
    /// It cannot be opened or read.
    Unreadable = "unreadable",
    /// Its file system does not answer.
    Stalled = "stalled",
    /// Its file system is served by a program of an ordinary user (FUSE), which attaching probes would have to wait
    /// for.
    UserFileSystem = "user_file_system",
    /// The mapped file cannot be reached, and its name leads to nothing or to another file.
    Replaced = "replaced",
    /// Not an ELF file.
    NotElf = "not_elf",
    /// An ELF file for another machine.
    Unsupported = "unsupported",
    /// A damaged ELF file.
    Damaged = "damaged",
    /// It exceeds a size limit.
    TooLarge = "too_large",
    /// It has the name of a CUDA library but none of its functions.
    NoFunctions = "no_functions",
    /// The runtime is linked in, and its symbols are stripped.
    HiddenRuntime = "hidden_runtime",
    /// There are more files than are listed, or than are probed at once.
    TooMany = "too_many",
    /// Its users already have as many libraries probed as one user may have.
    UserQuota = "user_quota",
    /// The Linux kernel refuses the probes.
    Refused = "refused",
    /// The Linux kernel has no function or tracepoint of this name.
    NotThere = "not_there",
}

/// Something that was not probed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    /// The identity of the file, if known.
    pub file: Option<FileId>,
    /// `None` for a single function of a library that is otherwise probed.
    pub cause: Option<SkipCause>,
    /// For people.
    pub reason: String,
}

impl Skipped {
    /// A file that is not probed.
    pub fn file(path: &Path, file: Option<FileId>, cause: SkipCause, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), file, cause: Some(cause), reason: reason.into() }
    }

    /// A function that is not probed, in a library that is.
    pub fn function(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), file: None, cause: None, reason: reason.into() }
    }
}

/// The cause, and one line of explanation.
pub(crate) fn why(error: &DiscoverError) -> (SkipCause, String) {
    match error {
        DiscoverError::Open { source, .. } if is_stall(source) => (SkipCause::Stalled, source.to_string()),
        DiscoverError::Open { source, .. } => (SkipCause::Unreadable, format!("cannot be opened: {source}")),
        DiscoverError::NotRegular { what, .. } => {
            (SkipCause::NotRegular, format!("{what}, not a regular file"))
        }
        DiscoverError::File { defect, .. } => (cause_of(defect), defect.to_string()),
        other => (SkipCause::Unreadable, other.to_string()),
    }
}

fn cause_of(defect: &Defect) -> SkipCause {
    match defect {
        Defect::NotElf => SkipCause::NotElf,
        Defect::Unsupported(_) => SkipCause::Unsupported,
        Defect::Malformed(_) => SkipCause::Damaged,
        Defect::TooLarge { .. } => SkipCause::TooLarge,
        Defect::Read { source, .. } if is_stall(source) => SkipCause::Stalled,
        Defect::Read { .. } => SkipCause::Unreadable,
    }
}
