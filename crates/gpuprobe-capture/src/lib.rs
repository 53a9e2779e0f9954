//! Loads and attaches the BPF programs, and turns their records and tables into events and counts.
//!
//! This is the only crate with BPF, `unsafe` and a need for privileges. [`Capture`] owns everything that is loaded
//! and attached; dropping it removes every probe. [`Nvml`] reads the state of the GPUs from NVIDIA's management
//! library.

mod attach;
#[doc(hidden)]
pub mod bench;
mod capture;
mod error;
mod function_table;
#[doc(hidden)]
pub mod fuzz;
mod host;
mod load;
mod nvml;
mod probe_cost;
mod ring;
mod stacks;
mod tables;
mod wire;

pub use attach::helper::helper_server::{Ended, Kept};
pub use attach::helper::target_list::TargetList;
pub use attach::linux::linux_functions::{KernelTier, ProbedFunctions, kernel_tiers};
pub use attach::linux::xid_source::{XidWay, xid_way};
pub use attach::uprobe::detachable_probes::may_be_left_out;
pub use attach::uprobe::library::Attached;
pub use capture::Capture;
pub use error::CaptureError;
pub use function_table::function_row::{tells_addresses, tells_contexts, tells_gpus, tells_names};
pub use function_table::op_desc::{tells_captures, tells_graphs};
pub use host::clock::{Clock, utc_offset_seconds};
pub use host::heap::{give_memory_back, keep_memory};
pub use host::kmod_version::driver_version;
pub use host::linux_support::{KernelSupport, kernel_support};
pub use host::linux_types::{Returned, results, tracepoint_arguments};
pub use host::machine_checks::{Check, Verdict};
pub use host::open_files::files_before;
pub use host::privileges::{give_up_privileges, give_up_privileges_but_for_children, is_privileged};
pub use host::seccomp::refuse_system_calls;
pub use host::support::{Feature, Support, Tier, support};
pub use host::terminal::terminal_size;
pub use host::urgency::Urgent;
pub use load::collect::Collect;
pub use load::config::CaptureConfig;
pub use load::hooks::{KernelHook, MOST_TRACEPOINTS, Refusal, TracepointHook, Unprobed};
pub use load::requirements::check_machine;
pub use nvml::nvml_library::trusted_nvml;
pub use nvml::nvml_thread::{NVML_LIBRARY, Nvml, NvmlVersions, nvml_versions};
pub use probe_cost::ProbeCosts;
pub use ring::batch::{Answer, Batch, Ending, Hold};
pub use ring::mapping_events::{Mappings, NewMappings};
pub use ring::mapping_record::Mapped;
pub use tables::exited_rows::Rows;
