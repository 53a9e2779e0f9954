//! The settings of a capture.

use super::hooks::{KernelHook, TracepointHook};
use crate::host::support::Tier;

/// What to load, and how large.
#[derive(Clone, Debug)]
pub struct CaptureConfig {
    /// The attach tier; the best there is when `None`.
    pub tier: Option<Tier>,
    /// Watch only the processes named by [`crate::Capture::add_target`], and what they fork.
    pub only_targets: bool,
    /// What targets fork is watched too.
    pub follow_forks: bool,
    /// Of the calls that are streamed, only those that fail.
    pub errors_only: bool,
    /// Only those that are not made inside others.
    pub outermost_only: bool,
    /// Only those that take at least so long.
    pub min_duration_ns: u64,
    /// Tell when a call begins, as well as when it has returned.
    pub phases: bool,
    /// Tell only when a call begins: there are no return probes.
    pub entry_only: bool,
    /// Some functions are only counted, as their calls begin: see [`crate::Collect::Entries`].
    pub tallies: bool,
    /// The stack of every call that is streamed.
    pub stacks: bool,
    /// Learn where allocations come from.
    pub sites: bool,
    /// Learn what kernels are called.
    pub names: bool,
    /// Count launches, graphs and gaps in the kernel.
    pub launches: bool,
    /// Count copies in the kernel.
    pub copies: bool,
    /// Count these in rows of tables.
    pub rows: bool,
    /// Annotate the record of each call with what became of its work.
    pub told: bool,
    /// Look at calls of the kernel on the driver's devices.
    pub driver: bool,
    /// Functions of the kernel that are probed, by [`crate::Capture::attach_functions`].
    pub hooks: Vec<KernelHook>,
    /// Tracepoints that are told of, by [`crate::Capture::attach_tracepoints`].
    pub tracepoints: Vec<TracepointHook>,
    /// Probes that do nothing, to measure what the kernel itself takes for them.
    pub bare: bool,
    /// Probe functions that may be left out so that each of them can be taken out alone.
    pub apart: bool,
    /// Keep targets while libraries are mapped, until [`crate::Batch::holds`] has been answered.
    pub hold: bool,
    /// Size of the ring buffer for calls: a power of two times the page size.
    pub ring_bytes: u32,
    /// How many live allocations are kept.
    pub live_entries: u32,
    /// How many (process, function) pairs are counted.
    pub count_entries: u32,
    /// How many processes are kept.
    pub process_entries: u32,
    /// How many (process, kernel, stream) triples launches are counted for.
    pub launch_entries: u32,
    /// How many pairs of a site and a context are kept, and for each some comparisons of stacks.
    pub site_entries: u32,
}

impl CaptureConfig {
    /// Comparisons of stacks: some for each site, and the row that stands for none.
    pub(crate) fn site_nodes(&self) -> u32 {
        if self.sites { self.site_entries.saturating_mul(4).saturating_add(1) } else { 1 }
    }
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            tier: None,
            only_targets: false,
            hold: false,
            follow_forks: true,
            errors_only: false,
            outermost_only: false,
            min_duration_ns: 0,
            phases: false,
            entry_only: false,
            tallies: false,
            stacks: false,
            sites: false,
            names: false,
            launches: false,
            copies: false,
            rows: true,
            told: false,
            driver: false,
            hooks: Vec::new(),
            tracepoints: Vec::new(),
            bare: false,
            apart: false,
            ring_bytes: 64 << 20,
            live_entries: 1 << 20,
            count_entries: 10_240,
            process_entries: 8_192,
            launch_entries: 16_384,
            site_entries: 1 << 16,
        }
    }
}
