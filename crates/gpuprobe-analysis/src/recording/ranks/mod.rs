//! Several recordings of one job, made on several hosts: their clocks, the names of their processes, and the ranks that
//! others wait for.
//!
//! The recordings are read twice. First, an [`Aligner`] takes them in without knowing how their clocks differ, and
//! returns an [`Alignment`]. Then they are read again, merged by time: the alignment moves each event to the common
//! clock, numbers processes so that those of several hosts differ, and names them. [`Stragglers`] and any other analysis
//! take in the result. Memory is bounded for any input.

mod aligner;
mod alignment;
mod bounds;
mod clocks;
mod completion;
#[cfg(test)]
mod completion_tests;
#[cfg(test)]
mod generated;
mod matching;
mod merged_end;
mod names;
mod stragglers;
#[cfg(test)]
mod tests;

pub use self::aligner::Aligner;
pub use self::alignment::{AlignedRecording, Alignment};
pub use self::clocks::{Basis, Origin};
pub use self::stragglers::{CollectiveArrival, LateCollective, RankFigures, RanksReport, Stragglers};
