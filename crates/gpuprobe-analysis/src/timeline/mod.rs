//! Calls and memory over time: calls nested by thread, lanes of threads and streams, and levels such as live bytes.

pub mod call_log;
pub mod execution_log;
mod lanes;
pub mod levels;
pub mod nesting;
pub mod stream_ops;

pub use self::lanes::{Activity, Bin, Lane, MOST_BINS, Row, Timeline, TimelineBuilder, TimelineReport};
