//! GPU times: agents inside of processes, and what they report.

pub(crate) mod agent_file;
pub(crate) mod agents;
pub(crate) mod gpu_times;
