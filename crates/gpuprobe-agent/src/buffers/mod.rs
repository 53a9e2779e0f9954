//! The buffers that CUPTI fills.

mod pool;

pub(crate) use pool::{BUFFER_BYTES, Completed, POOL};
