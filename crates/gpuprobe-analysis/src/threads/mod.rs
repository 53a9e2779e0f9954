//! What the threads of processes wait for, and which process of a job differs from the others.

mod gpu_call;
pub mod groups;
pub mod jobs;
mod judged;
mod nccl_status;
mod recent_xids;
pub mod report;
pub mod sample;
#[cfg(test)]
mod sample_threads;
pub mod verdict;

pub use self::groups::{CpuShares, ThreadGroup};
pub use self::jobs::{Activity, DifferingProcess, Job};
pub use self::nccl_status::NcclStatus;
pub use self::recent_xids::{ProcessXids, RecentXid, RecentXids};
pub use self::report::{ProcessThreads, StacksReport};
pub use self::verdict::ThreadVerdict;
