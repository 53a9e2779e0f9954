//! Loads and attaches the BPF programs, and turns what they send into events.
//!
//! The only crate with BPF, `unsafe` and a need for privileges. [`Capture`] owns everything that is loaded and
//! attached; dropping it takes every probe out again. [`Nvml`] reads what the driver's management library tells of the GPUs.

mod account;
mod alone;
mod attach;
mod batch;
#[doc(hidden)]
pub mod bench;
mod clock;
mod counters;
mod decode;
mod driver;
mod error;
mod files;
mod filter;
mod functions;
#[doc(hidden)]
pub mod fuzz;
mod handles;
mod heap;
mod keeper;
mod kernel_names;
mod kernel_support;
mod kernel_types;
mod link;
mod load;
mod machine;
mod mapping_record;
mod mappings;
mod message;
mod news;
mod numbered;
mod nvml;
mod object;
mod paths;
mod privileges;
mod probe_cost;
mod records;
mod request;
mod resolve;
mod rows;
mod sites;
mod support;
mod sweeper;
mod targets;
mod task;
mod terminal;
mod tracepoints;
mod unified;
mod urgency;
mod wire;
mod work;
mod xids;

pub use attach::{Attached, Collect};
pub use clock::{Clock, utc_offset_seconds};
pub use counters::Rows;
pub use driver::driver_version;
pub use error::CaptureError;
pub use files::files_before;
pub use filter::refuse_system_calls;
pub use functions::{KernelHook, KernelTier, ProbedFunctions, Refusal, Unprobed, kernel_tiers};
pub use heap::{give_memory_back, keep_memory};
pub use keeper::{Ended, Kept};
pub use kernel_support::{KernelSupport, kernel_support};
pub use kernel_types::{Returned, results, tracepoint_arguments};
pub use load::{CaptureConfig, check_machine};
pub use machine::{Check, Verdict};
pub use mapping_record::Mapped;
pub use mappings::{Mappings, NewMappings};
pub use news::{Answer, Batch, Ending, Hold};
pub use nvml::{NVML_LIBRARY, Nvml, NvmlVersions, nvml_versions, trusted_nvml};
pub use object::{Capture, may_be_left_out};
pub use privileges::{give_up_privileges, give_up_privileges_but_for_children, is_privileged};
pub use probe_cost::ProbeCosts;
pub use rows::{tells_addresses, tells_contexts, tells_gpus, tells_names};
pub use support::{Feature, Support, Tier, support};
pub use targets::TargetList;
pub use task::{tells_captures, tells_graphs};
pub use terminal::terminal_size;
pub use tracepoints::{MOST_TRACEPOINTS, TracepointHook};
pub use urgency::Urgent;
pub use xids::{XidWay, xid_way};
