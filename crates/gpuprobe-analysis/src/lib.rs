//! Events and kernel counters in, plain data out. Nothing here reads a clock, a file or a socket.
//!
//! Each analysis is one file with a `feed` for events and a `report` for what it found; [`Summary`] is made of them.
#![forbid(unsafe_code)]

pub mod copies;
pub mod ended;
pub mod errors;
pub mod functions;
pub mod gaps;
pub mod launches;
pub mod losses;
pub mod memory;
pub mod processes;
pub mod snapshot;
pub mod summary;
pub mod work;

pub use copies::{CopySummary, CopyTotals};
pub use ended::{Ended, EndedProcess, PastProcesses};
pub use errors::ErrorCount;
pub use functions::FunctionSummary;
pub use gaps::{Gap, GapTotals, Gaps};
pub use launches::{GraphLaunches, KernelLaunches, LaunchSummary};
pub use losses::LossCount;
pub use memory::{KindTotal, MemorySummary, Total};
pub use processes::{ProcessEnd, ProcessSummary};
pub use snapshot::{Inputs, LibraryProbes, ProcessInfo, ProcessSnapshot, Snapshot};
pub use summary::{Summary, SummaryReport};
pub use work::Work;

#[cfg(test)]
pub(crate) mod samples;
