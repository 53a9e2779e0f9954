//! The trace file: JSON lines, one object per line. `meta` is the first line, `end` the last; a file without `end`
//! can be read.

mod agent_fields;
mod fields;
mod head;
mod json;
mod line_fields;
mod read;
mod write;

use serde::{Deserialize, Serialize};

use crate::catalogue::Api;

pub use agent_fields::{agent_fields, execution_fields, range_fields};
pub use fields::{
    Fields, Key, WrittenStacks, call_fields, out_of_memory_fields, process_fields, stack_field, xid_fields,
};
pub use head::{Head, Phases};
pub use line_fields::LineFields;
pub use read::{Line, ReadError, Reader};
pub use write::{Json, Lines, Writer, end_line, meta_line};

/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 3;

/// The first line: where and how the trace was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of the format.
    pub format: u32,
    /// Version of the program that wrote it.
    pub gpuprobe: String,
    pub host: String,
    /// Linux kernel release.
    pub kernel: String,
    /// Version of the NVIDIA driver, if one is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The clock of `ts`.
    pub clock: String,
    /// Unix time of `ts` 0, in seconds.
    pub start_unix: f64,
    /// The same moment on the clock of `ts`, which runs since the host was started, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_monotonic_ns: Option<u64>,
    /// The Linux kernel's number of this start of the host (`boot_id`). Recordings that share it share a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The command that was run, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Bytes of the whole command, if only its beginning is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_bytes: Option<u64>,
    /// For a trace in segments: the number of the segment, from the second on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u32>,
}

/// The last line: totals of the recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Event lines written.
    pub events: u64,
    /// Of these, calls.
    pub calls: u64,
    pub seconds: f64,
    /// Losses by cause; empty if nothing was lost.
    #[serde(default)]
    pub lost: std::collections::BTreeMap<String, u64>,
    /// Libraries that could not be probed, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Functions that were sampled because of a budget.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled: Vec<SampledCalls>,
    /// Faults and migrations of unified memory, by process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unified: Vec<crate::UnifiedUse>,
    /// Memory totals from BPF, which are complete even if records were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Box<crate::MemorySummary>>,
    /// Memory that was live when processes exited, or at the end, by call site.
    #[serde(default, skip_serializing_if = "crate::MemoryBySite::is_empty")]
    pub memory_by_site: crate::MemoryBySite,
    /// Tensors of frameworks when processes exited, or at the end.
    #[serde(default, skip_serializing_if = "crate::TensorSummary::is_empty")]
    pub tensors: crate::TensorSummary,
    /// The exit status of the command, if one was run, or 128 plus the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// For a trace in segments: the name of the next file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A function that was probed for a part of the time. Each of its recorded calls stands for `weight` calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledCalls {
    /// The library family of the function. Traces of earlier versions have only the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    pub function: String,
    /// How many of its calls were added by scaling.
    pub estimated_calls: u64,
    /// The standard error of its number of calls.
    pub standard_error: u64,
}

/// The type and the name of the line of an out-of-memory error.
pub const OUT_OF_MEMORY: &str = "out_of_memory";

/// The types of the lines of what an agent inside a process reports: executions, NVTX ranges and its own states.
pub const EXECUTION: &str = "gpu";
pub const RANGE: &str = "range";
pub const AGENT: &str = "agent";

/// The value of `type` for a class of calls.
pub fn type_of(class: crate::Class) -> &'static str {
    use crate::Class;
    match class {
        Class::Alloc | Class::Free | Class::HostRegister | Class::HostUnregister | Class::Vmm => "memory",
        Class::Memcpy | Class::Memset => "transfer",
        Class::Launch | Class::GraphLaunch => "launch",
        Class::Sync => "sync",
        Class::Driver => "kernel",
        Class::Scheduler => "scheduler",
        _ => "userspace",
    }
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod effect_tests;
#[cfg(test)]
mod json_tests;
#[cfg(test)]
mod stack_tests;
#[cfg(test)]
mod tests;
