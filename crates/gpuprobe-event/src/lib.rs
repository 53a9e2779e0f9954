//! The data model of gpuprobe: events, counters and the catalogue of CUDA functions.
//!
//! Nothing here uses BPF, the Linux kernel or the network; the only I/O is reading and writing trace files.
#![forbid(unsafe_code)]

pub mod agent;
mod agent_event;
pub mod catalogue;
pub mod container;
mod copy_kind;
pub mod counters;
pub mod cut;
pub mod decode;
pub mod driver;
pub mod effect;
pub mod errno;
pub mod event;
mod execution;
pub mod frame;
pub mod gpu;
pub mod gpu_activity;
pub mod gpu_health;
pub mod gpu_state;
pub mod hook;
pub mod ids;
pub mod loss;
mod memory_by_site;
mod memory_summary;
pub mod mig;
mod name;
mod out_of_memory;
mod rank;
mod table;
mod tensor_summary;
mod thread_sample;
pub mod trace;
pub mod unified;

pub use agent_event::{AgentEvent, RangeEvent};
pub use catalogue::{Api, Catalogue, Class, Direction, Function, Space, catalogue, meaning};
pub use container::{Container, Pod};
pub use effect::{
    Allocation, CopyPart, DeviceSyscall, Effect, Free, GraphContents, GraphLaunch, Launch, MemoryAmount,
    Replaced, Transfer,
};
pub use event::{
    Call, DeviceTime, Event, Evidence, LossEvent, Name, Outcome, ProcessChange, ProcessEvent, Value,
    XidEvent, XidProcess, pid_in_xid_message,
};
pub use execution::{Execution, ExecutionKind, SubmittingCall};
pub use frame::Frame;
pub use gpu::{Gpu, GpuNumbers, HostGpu, Identity, PciAddress, Uuid};
pub use gpu_state::{GpuProcess, GpuReadings, GpuState};
pub use hook::{HookError, Hooks};
pub use ids::{FunctionId, MOST_RECORDINGS, SiteId, Tgid, Tid};
pub use loss::{Figures, LossCause, Losses};
pub use memory_by_site::{LiveSite, MemoryBySite};
pub use memory_summary::{MemorySummary, Total};
pub use out_of_memory::{GpuHolder, OutOfMemoryEvent, TensorHolder};
pub use rank::Rank;
pub use tensor_summary::{TensorSource, TensorSummary, TensorUse};
pub use thread_sample::{GpuCall, ThreadSample, ThreadStack};
pub use unified::{Moved, UnifiedTotals, UnifiedUse};
