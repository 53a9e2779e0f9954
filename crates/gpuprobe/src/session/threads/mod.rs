//! What the threads of processes wait for.

pub(crate) mod thread_samples;
