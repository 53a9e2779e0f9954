//! Live memory by process and call site over time, and which call sites leak.

pub mod call_sites;
pub mod fragmentation;
pub mod history;
pub mod live_memory;
pub mod live_tensors;
mod user_code;
mod verdict;

pub use self::verdict::{Growth, Judgement, Life, Rules, Verdict, judge};
