//! Loads and attaches the BPF programs, and turns their records and tables into events and counts.
//!
//! This is the only crate with BPF and a need for privileges. [`Capture`] owns everything that is loaded and attached;
//! dropping it removes every probe. [`Nvml`] reads the state of the GPUs from NVIDIA's management library.

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
mod measure;
mod nvml;
mod ring;
mod rocm_smi;
mod stacks;
mod tables;
mod threads;
mod wire;

pub use attach::helper::helper_server::{HelperEnd, HelperServer};
pub use attach::helper::target_list::TargetList;
pub use attach::linux::linux_functions::{LinuxTier, ProbedFunctions, linux_tiers};
pub use attach::linux::xid_source::{XidSource, xid_source};
pub use attach::uprobe::detachable_probes::is_detachable;
pub use attach::uprobe::library::Attached;
pub use attach::uprobe::sampled_probes::Turn;
pub use capture::Capture;
pub use error::CaptureError;
pub use function_table::function_row::{
    changes_addresses, changes_contexts, gives_kernel_names, identifies_gpus,
};
pub use function_table::op_desc::{changes_captures, changes_graphs};
pub use host::clock::{Clock, thread_cpu_ns, utc_offset_seconds};
pub use host::heap::{keep_memory, return_memory_early};
pub use host::kmod_version::kmod_version;
pub use host::linux_support::{LinuxSupport, linux_support};
pub use host::linux_types::{Returned, results, tracepoint_arguments};
pub use host::machine_checks::{Check, Verdict};
pub use host::name_services::use_builtin_name_services;
pub use host::open_files::original_file_limit;
pub use host::privileges::{
    drop_privileges, drop_privileges_except_for_children, is_privileged, may_read_others,
};
pub use host::seccomp::install_seccomp_filter;
pub use host::support::{Feature, Support, Tier, support};
pub use host::terminal::{ignore_quit_signal, terminal_size};
pub use host::urgency::Urgent;
pub use load::collect::Collect;
pub use load::config::CaptureConfig;
pub use load::hooks::{LinuxFunctionHook, MAX_TRACEPOINTS, Refusal, TracepointHook, Unprobed};
pub use load::requirements::check_machine;
pub use measure::measure_config::measure_config;
pub use measure::probe_cost::ProbeCosts;
pub use measure::seen_calls::SeenCalls;
pub use measure::workload::Workload;
pub use nvml::nvml_helper::serve_nvml;
pub use nvml::nvml_library::trusted_nvml;
pub use nvml::nvml_thread::{NVML_LIBRARY, Nvml, NvmlLoader, NvmlVersions, nvml_versions};
pub use ring::agent_ring::{AgentContent, AgentReport};
pub use ring::batch::{Answer, Batch, Ending, PausedProcess};
pub use ring::mapping_events::{Mappings, NewMappings};
pub use ring::mapping_record::Mapped;
pub use ring::spool_file::SpoolFile;
pub use rocm_smi::{RocmSmiVersion, rocm_smi_version};
pub use tables::exited_rows::ExitedRows;
pub use threads::{SampledThreads, ThreadIterator, ThreadSampler, ThreadSamples};
