//! The settings of a capture.

use super::hooks::{LinuxFunctionHook, TracepointHook};
use crate::host::support::Tier;

/// What to load, and the sizes of the maps.
#[derive(Clone, Debug)]
pub struct CaptureConfig {
    /// The attach tier; `None` for the best one.
    pub tier: Option<Tier>,
    /// Watch only the processes added by [`crate::Capture::add_target`], and what they fork.
    pub only_targets: bool,
    /// Also watch what targets fork.
    pub follow_forks: bool,
    /// Stream only calls that fail.
    pub errors_only: bool,
    /// Stream only calls that are not made inside others.
    pub outermost_only: bool,
    /// Stream only calls that take at least so long.
    pub min_duration_ns: u64,
    /// Send a record when a call begins, as well as when it has returned.
    pub phases: bool,
    /// Send a record only when a call begins: there are no return probes.
    pub entry_only: bool,
    /// Some functions have only entry counts: see [`crate::Collect::EntryCount`].
    pub entry_counts: bool,
    /// Failure points are probed: see [`gpuprobe_discover::FailurePoint`].
    pub failure_points: bool,
    /// Send the stack of every call that is streamed.
    pub stacks: bool,
    /// Find the call sites of allocations.
    pub sites: bool,
    /// Find the call sites of streamed launches, copies and waits, and of streamed calls that fail.
    pub call_sites: bool,
    /// Account for the tensors of frameworks, up to as many as `live_entries`.
    pub tensors: bool,
    /// Read what agents inside of processes report about their GPUs.
    pub gpu_time: bool,
    /// Find the names of CUDA kernels.
    pub names: bool,
    /// Count launches, graphs and gaps in the kernel.
    pub launches: bool,
    /// Do not probe the return of every launch, where a return probe can be declined: of launches that are counted in
    /// rows, or streamed.
    pub sample_launch_returns: bool,
    /// Count copies in the kernel.
    pub copies: bool,
    /// Count launches and copies in rows of tables.
    pub rows: bool,
    /// Annotate the record of each call with the outcome of its GPU operation.
    pub annotate_records: bool,
    /// Watch system calls on NVIDIA device files.
    pub device_syscalls: bool,
    /// Functions of the Linux kernel to probe, by [`crate::Capture::attach_linux_functions`].
    pub hooks: Vec<LinuxFunctionHook>,
    /// Tracepoints to attach to, by [`crate::Capture::attach_tracepoints`].
    pub tracepoints: Vec<TracepointHook>,
    /// Use programs that do nothing, to measure what the Linux kernel itself needs for a probe.
    pub bare: bool,
    /// Give functions that may be detached their own links, so that each can be detached alone.
    pub detachable: bool,
    /// Calls wait while the ring is half full, so that no record is lost. Not on every tier.
    pub lossless: bool,
    /// Pause targets while libraries are mapped, until [`crate::Batch::paused`] has been answered.
    pub pause_targets: bool,
    /// Size of the ring buffer for calls: a power of two times the page size.
    pub ring_bytes: u32,
    /// The most live allocations.
    pub live_entries: u32,
    /// The most (process, function) pairs with counts.
    pub count_entries: u32,
    /// The most processes.
    pub process_entries: u32,
    /// The most (process, CUDA kernel, stream) triples with launch counts.
    pub launch_entries: u32,
    /// The most pairs of a call site and a context. The number of stack comparisons follows from it.
    pub site_entries: u32,
}

impl CaptureConfig {
    /// Whether most launches have no return probe. On aarch64 all have one: whether a launch without one is still waiting
    /// is seen from its return address on the stack, which is in a register there.
    pub fn samples_launch_returns(&self) -> bool {
        self.sample_launch_returns && cfg!(target_arch = "x86_64")
    }

    /// Whether call sites of any calls are found.
    pub(crate) fn finds_sites(&self) -> bool {
        self.sites || self.call_sites
    }

    /// The number of stack comparisons: some for each site, and row 0, which stands for none.
    pub(crate) fn site_nodes(&self) -> u32 {
        if self.finds_sites() { self.site_entries.saturating_mul(4).saturating_add(1) } else { 1 }
    }
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            tier: None,
            only_targets: false,
            pause_targets: false,
            follow_forks: true,
            errors_only: false,
            outermost_only: false,
            min_duration_ns: 0,
            phases: false,
            entry_only: false,
            entry_counts: false,
            failure_points: false,
            stacks: false,
            sites: false,
            call_sites: false,
            tensors: false,
            gpu_time: false,
            names: false,
            launches: false,
            sample_launch_returns: false,
            copies: false,
            rows: true,
            annotate_records: false,
            device_syscalls: false,
            hooks: Vec::new(),
            tracepoints: Vec::new(),
            bare: false,
            detachable: false,
            lossless: false,
            ring_bytes: 64 << 20,
            live_entries: 1 << 20,
            count_entries: 10_240,
            process_entries: 8_192,
            launch_entries: 16_384,
            site_entries: 1 << 16,
        }
    }
}
