//! What the threads of processes wait for.

pub(crate) mod early_calls;
pub(crate) mod stacks_on_demand;
pub(crate) mod stacks_service;
pub(crate) mod thread_samples;
