//! What GPUs executed: matched with the calls that submitted it, and summed up.

pub mod agent_records;
pub mod gpu_time;
pub mod kernel_seconds;
pub mod matching;
mod process_gpu_time;
mod sampled_time;
mod submission;

pub use self::agent_records::AgentRecords;
pub use self::kernel_seconds::{GpuKernelTime, KernelSeconds};
pub use self::process_gpu_time::{KernelGpuTime, ProcessGpuTime};
pub use self::sampled_time::SampledTime;
pub use self::submission::{Submission, Submissions, SubmittedOp};
