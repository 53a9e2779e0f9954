//! One file per subcommand.

pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod guard;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod timeline;
pub(crate) mod trace;
