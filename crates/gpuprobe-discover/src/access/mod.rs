//! Reads files that other processes chose, and the memory of other processes, within limits of size and time.
//!
//! A file system may stop answering: its network server may be down, or it may be served by a user's program. A
//! process that asks such a file system waits in the Linux kernel and cannot even be killed. So a separate reader
//! process does the reading once [`read_files_by`] has configured one. A reader that does not answer in time is
//! abandoned and replaced. If none was configured, files are read in this process.

mod client;
mod direct;
mod meta;
mod reader;
mod reader_process;
mod regular_file;
mod shown_path;
mod stall_domain;
mod starter;
mod trust;
mod wire;

pub use client::{canonical, identity, memory, read_files_by, take_stalls};
pub(crate) use client::{contents, device_numbers, is_stall, names};
pub use direct::serve_files;
pub(crate) use meta::TABLE_LIMIT;
pub use reader::{Stall, StallKind};
pub use regular_file::{FileId, OpenedFile};
pub(crate) use regular_file::{FileKey, RegularFile, Stamp};
pub(crate) use shown_path::path_from_proc;
pub use shown_path::without_deleted_mark;
pub(crate) use stall_domain::{StallDomain, is_of_user};
pub use starter::start_readers;
pub use trust::{Owners, is_shared, resolved, sudo_user, trusted};
