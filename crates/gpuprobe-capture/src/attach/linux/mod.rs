//! Attaches programs to functions and tracepoints of the Linux kernel and its modules.

pub(crate) mod builtin_kprobe;
pub(crate) mod linux_attacher;
pub(crate) mod linux_functions;
pub(crate) mod linux_link;
pub(crate) mod linux_tracepoints;
pub(crate) mod xid_source;
