//! What looked like a target and is none, with the reason: in words for people, and as one of few for counting.

use std::path::{Path, PathBuf};

use crate::access::{FileId, is_stall};
use crate::error::{Defect, DiscoverError};

macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)*) => {
        /// Why something is not probed. Few and fixed, because they are values of a label.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum SkipCause { $($(#[doc = $doc])+ $name,)* }

        impl SkipCause {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word for it in metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }
        }
    };
}

causes! {
    /// A pipe, a folder, a socket or a device.
    NotRegular = "not_regular",
    /// It cannot be opened or read.
    Unreadable = "unreadable",
    /// Its file system does not answer.
    Stalled = "stalled",
    /// An ordinary user's program serves its file system, which probes would have to wait for.
    UserFileSystem = "user_file_system",
    /// What was mapped is out of reach, and its name leads to nothing or to another file.
    Replaced = "replaced",
    /// No ELF file.
    NotElf = "not_elf",
    /// An ELF file for another machine.
    Unsupported = "unsupported",
    /// An ELF file that contradicts itself.
    Damaged = "damaged",
    /// It has more than is read.
    TooLarge = "too_large",
    /// It only has the name of a CUDA library.
    NoFunctions = "no_functions",
    /// The runtime is linked in, and its symbols are stripped.
    HiddenRuntime = "hidden_runtime",
    /// There are more of them than are listed, or than are probed at once.
    TooMany = "too_many",
    /// Whoever uses it has as many libraries probed as one user may.
    UserQuota = "user_quota",
    /// The kernel refuses the probes.
    Refused = "refused",
    /// The kernel has no function or tracepoint of this name.
    NotThere = "not_there",
}

/// Something that looked like a target, and why it is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    /// The file, where it is known.
    pub file: Option<FileId>,
    /// `None` for a single function of a library that is probed otherwise.
    pub cause: Option<SkipCause>,
    /// In words.
    pub reason: String,
}

impl Skipped {
    /// A file that is not probed.
    pub fn file(path: &Path, file: Option<FileId>, cause: SkipCause, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), file, cause: Some(cause), reason: reason.into() }
    }

    /// A function that is not probed in a library that is.
    pub fn function(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), file: None, cause: None, reason: reason.into() }
    }
}

/// The cause, and one line with what led to it.
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
