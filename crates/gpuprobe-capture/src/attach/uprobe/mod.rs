//! Attaches programs to the functions of libraries, through the attach helper.

pub(crate) mod agent_probes;
pub(crate) mod detachable_probes;
pub(crate) mod library;
pub(crate) mod sampled_probes;
pub(crate) mod uprobe_attacher;
