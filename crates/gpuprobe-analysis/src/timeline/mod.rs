//! Calls and memory over time: calls nested by thread, lanes of threads and streams, and levels such as live bytes.

mod lanes;
pub mod levels;
pub mod nesting;
pub mod stream_ops;

pub use self::lanes::{Bin, Doing, Lane, MOST_BINS, Picture, Row, Timeline, TimelineReport};
