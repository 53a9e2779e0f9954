//! Starts a command paused, probes what it maps before its code runs, and waits for its end.

pub(crate) mod command_user;
pub(crate) mod launch;
mod stop_requests;
pub(crate) mod supervise;
