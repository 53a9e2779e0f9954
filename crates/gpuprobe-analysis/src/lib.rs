//! Events and kernel counters in, plain data out. Nothing here reads a clock, a file or a socket.
//!
//! Each analysis is one file with a `feed` for events and a `report` for what it found; [`Summary`] is made of them.
#![forbid(unsafe_code)]

pub mod advice;
pub mod bins;
pub mod buckets;
pub mod budget;
pub mod command_series;
pub mod conformance;
pub mod copies;
pub mod cost;
pub mod distribution;
pub mod driver;
pub mod ended;
pub mod errors;
pub mod flame;
pub mod function_counts;
pub mod functions;
pub mod gaps;
pub mod gpu_state;
pub mod history;
pub mod holdings;
pub mod kernel_series;
pub mod launches;
pub mod leaks;
pub mod levels;
pub mod losses;
pub mod memory;
pub mod nesting;
pub mod own;
pub mod places;
pub mod prediction;
pub mod processes;
pub mod replay;
pub mod slowest;
pub mod snapshot;
pub mod streams;
pub mod summary;
pub mod timeline;
pub mod trend;
pub mod work;
pub(crate) mod workload;
mod xids;

pub use advice::Advice;
pub use buckets::Bound;
pub use budget::{Budget, BudgetReport, CallCost, Called, Decision, LeftOut};
pub use command_series::{Asked, CommandSeries};
pub use cost::{CostReport, Judged, Measured, ModeCost, Spread, Target, TierCost, costs, judge};
pub use driver::{CommandSummary, DriverSummary, Layer};
pub use ended::{Ended, EndedProcess, PastProcesses};
pub use errors::ErrorCount;
pub use functions::FunctionSummary;
pub use gaps::{Gap, GapTotals, Gaps};
pub use gpu_state::{Compared, GpuErrors, GpuStates, GpuUser};
pub use holdings::{Holdings, MemoryReport, PlaceMemory, ProcessPlaces};
pub use kernel_series::{KernelSeries, Launched};
pub use launches::{GraphLaunches, KernelLaunches};
pub use leaks::{Growth, Judgement, Rules, Verdict};
pub use levels::{Level, Levels, Sample};
pub use losses::LossCount;
pub use memory::{MemorySummary, Total};
pub use nesting::{Extent, Nesting, Slice};
pub use own::{Answered, OwnProcess, Refused, Served};
pub use places::Place;
pub use prediction::{Prediction, Rate, predict};
pub use processes::{ProcessEnd, ProcessSummary};
pub use replay::{LiveCurve, Replay, ReplayReport};
pub use slowest::SlowCall;
pub use snapshot::{Inputs, LibraryProbes, ProcessInfo, ProcessSnapshot, Snapshot};
pub use summary::{Summary, SummaryReport};
pub use timeline::{Picture, Timeline, TimelineReport};
pub use work::Work;

#[cfg(test)]
pub(crate) mod samples;
pub use xids::{FailedCall, GpuError};
