//! Follows processes that already run, or all processes of the host, and probes libraries as they are mapped.

pub(crate) mod following;
pub(crate) mod mapping_watch;
pub(crate) mod process_set;
