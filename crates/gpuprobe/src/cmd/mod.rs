//! The subcommands, one file or folder each.

pub(crate) mod attach_helper;
pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod doctor;
mod embedded;
pub(crate) mod exec;
pub(crate) mod file_reader;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod record;
pub(crate) mod recorder;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod stacks;
pub(crate) mod timeline;
pub(crate) mod top;
pub(crate) mod trace;
