//! The attach helper: a second process that owns the uprobe links, so that no probe stays if gpuprobe is killed.

pub(crate) mod helper_client;
pub(crate) mod helper_server;
pub(crate) mod request;
pub(crate) mod target_list;
pub(crate) mod uprobe_link;
