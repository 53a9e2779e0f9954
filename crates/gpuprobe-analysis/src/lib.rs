//! Turns events and the counters of the BPF side into plain data. Nothing here reads a clock, a file or a socket.
//!
//! Each analysis of events has a `feed` that takes one event and a `report` that returns the result. [`Summary`] runs
//! all of them over a recording.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod cost;
pub mod executions;
pub mod gpu_ops;
pub mod leaks;
pub mod live;
mod process_info;
pub mod recording;
#[cfg(test)]
pub(crate) mod samples;
pub mod stats;
pub mod threads;
pub mod timeline;
pub mod view;

pub use self::cost::benchmark::{
    CostReport, Judged, Measured, ModeCost, Spread, Target, TierCost, costs, judge,
};
pub use self::cost::budget::{
    Budget, BudgetReport, CallCost, Called, SampledFunction, SampledGroup, SamplingPlan, Stratum,
};
pub use self::cost::prediction::{Prediction, Rate, predict};
pub use self::cost::{budget, prediction};
pub use self::executions::gpu_time::{self, GpuTime};
pub use self::executions::{AgentRecords, GpuKernelTime, KernelSeconds, Submission};
pub use self::gpu_ops::advice::Advice;
pub use self::gpu_ops::command_series::{CommandSeries, KernelModuleRequests};
pub use self::gpu_ops::cuda_kernel_series::{CudaKernelSeries, LaunchTracker};
pub use self::gpu_ops::gaps::{Gap, GapTotals, Gaps};
pub use self::gpu_ops::launches::{CudaKernelLaunches, GraphLaunches};
pub use self::gpu_ops::process_ops::GpuOps;
pub use self::gpu_ops::{advice, copies, launches, streams};
pub use self::leaks::call_sites::CallSite;
pub use self::leaks::fragmentation::{Fragmentation, FragmentationByGpu, fragmentation};
pub use self::leaks::live_memory::{CallSiteMemory, LiveMemory, MemoryReport, ProcessCallSites};
pub use self::leaks::live_tensors::{
    GpuTensors, LiveTensors, ProcessTensors, TensorReport, tensors_of_pools,
};
pub use self::leaks::{Growth, Judgement, Rules, Verdict};
pub use self::live::exited::{ExitedProcess, ExitedProcesses, PastProcesses};
pub use self::live::gpu_state::{Compared, GpuErrors, GpuStates, GpuUser};
pub use self::live::pending_calls::{OldestCall, oldest_calls, open_times};
pub use self::live::self_metrics::{
    Answered, Pushed, PushedItems, PushedRequests, Recordings, Refused, SelfMetrics, Served,
};
pub use self::live::snapshot::{Inputs, LibraryProbes, ProcessSnapshot, Snapshot};
pub use self::live::{function_counts, gpu_state, snapshot};
pub use self::process_info::ProcessInfo;
pub use self::recording::call_errors::ErrorCount;
pub use self::recording::collectives::{
    Behind, Collective, CollectiveAccount, Collectives, Communicator, CommunicatorRank, Comparison, Differing,
};
pub use self::recording::diff::{Difference, Figure, RecordingFigures, differences};
pub use self::recording::event_filter::{EventFilter, Filtered, FunctionPattern, KernelPattern};
pub use self::recording::functions::FunctionSummary;
pub use self::recording::kernel_module::{CommandSummary, KernelModuleSummary, Layer};
pub use self::recording::memory_ledger::{MemorySummary, Total};
pub use self::recording::processes::{ProcessEnd, ProcessSummary};
pub use self::recording::ranks;
pub use self::recording::replay::{LiveCurve, Replay, ReplayReport};
pub use self::recording::site_calls;
pub use self::recording::site_calls::{CallsBySite, SiteCalls};
pub use self::recording::site_memory::{SiteCurve, SiteMemoryReport};
pub use self::recording::slowest::SlowCall;
pub use self::recording::summary::{Summary, SummaryReport};
pub use self::recording::{
    FailedCall, GpuError, IdleGroup, IdleSummary, OutOfMemoryLog, StreamIdle, TreeRow,
};
pub use self::stats::buckets::Bound;
pub use self::stats::loss_counts::LossCount;
pub use self::stats::{bins, buckets, distribution, flame, trend};
pub use self::threads::sample::{
    GpuCall, LastOperation, Rank, SampledProcess, SampledThread, ThreadSample, ThreadStack,
};
pub use self::threads::{
    Activity, CpuShares, DifferingProcess, Job, NcclStatus, ProcessThreads, ProcessXids, RecentXid,
    RecentXids, StacksReport, ThreadGroup, ThreadVerdict,
};
pub use self::timeline::levels::{Level, Levels, Sample};
pub use self::timeline::nesting::{Extent, Nesting, Slice};
pub use self::timeline::{Timeline, TimelineBuilder, TimelineReport};
