//! Attaches the BPF programs to libraries and to the Linux kernel.

pub(crate) mod attacher;
pub(crate) mod bpf_link;
pub(crate) mod helper;
pub(crate) mod linux;
pub(crate) mod uprobe;
