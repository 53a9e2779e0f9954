//! Decides which functions of which files are probed, attaches and detaches the probes, and keeps their cost within a
//! budget.

mod glob_advice;
pub(crate) mod helper_commands;
mod hook_files;
mod libraries;
pub(crate) mod linux_hooks;
pub(crate) mod probe_budget;
pub(crate) mod probe_set;
pub(crate) mod selection;
pub(crate) mod skips;
mod tensor_holders;
mod user_quota;
mod xid_users;
