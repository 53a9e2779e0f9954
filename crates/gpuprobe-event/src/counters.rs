//! Counters that BPF maintains without sending an event per call: totals since the probes were attached.

mod gpu_ops;

pub use gpu_ops::{
    CopyCounts, CopyTotals, Dimensions, GapCounts, GapKind, GpuOpRows, GraphCounts, GraphKernelCounts,
    LaunchCounts, LaunchTotals, LongGap, StreamGaps,
};

pub use crate::copy_kind::{CopyDirection, HostMemory};

use crate::catalogue::Space;
use crate::driver::CommandCode;
use crate::effect::DeviceTime;
use crate::gpu::Identity;
use crate::ids::{FunctionId, SiteId, Tgid, Tid};
use crate::name::Name;
use crate::tensor_summary::TensorSource;

/// Latency buckets: bucket `i` counts calls of `2^i` up to `2^(i+1)` nanoseconds. The first also counts shorter
/// calls, the last longer ones.
pub const LATENCY_BUCKETS: usize = 32;

/// One run of one program in one process. A reused pid or an exec gives another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    pub tgid: Tgid,
    /// Distinguishes runs with the same pid: made of the start time and the number of execs.
    pub instance: u64,
}

/// Calls of one function by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCounts {
    pub process: ProcessKey,
    pub function: FunctionId,
    /// Calls that returned.
    pub calls: u64,
    pub errors: u64,
    /// Bytes copied, counted at the outermost call. Allocated bytes are counted per process.
    pub bytes: u64,
    /// Time inside, in nanoseconds.
    pub total_ns: u64,
    /// System calls on the NVIDIA devices made inside these calls, and their time, if they are observed.
    pub driver: DeviceTime,
    /// Distribution of the time inside, see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
}

/// A call that a thread of a process began and that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingCall {
    pub process: ProcessKey,
    /// The function of the outermost call.
    pub function: FunctionId,
    /// When it began, since the start of the observation.
    pub start_ns: u64,
    /// Where the call may still be, if its return is not probed; `None` if it has certainly not returned.
    pub unprobed: Option<UnprobedReturn>,
}

/// A call whose return is not probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnprobedReturn {
    pub tid: Tid,
    /// Where its return address is on the stack of the thread, for as long as it has not returned.
    pub slot: u64,
}

/// Ioctls of one command by one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandCounts {
    pub process: ProcessKey,
    pub code: CommandCode,
    pub command: Name,
    pub totals: CommandTotals,
}

/// Totals of ioctls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTotals {
    pub calls: u64,
    pub failures: u64,
    /// Time inside, in nanoseconds.
    pub total_ns: u64,
}

impl CommandTotals {
    /// Adds other totals.
    pub fn add(&mut self, more: Self) {
        self.calls = self.calls.saturating_add(more.calls);
        self.failures = self.failures.saturating_add(more.failures);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
    }

    /// The difference to earlier totals.
    #[must_use]
    pub fn without(self, earlier: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            failures: self.failures.saturating_sub(earlier.failures),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }
}

/// How often a function of one process failed with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCounts {
    pub process: ProcessKey,
    /// The function and its status; `None` for all failures that did not fit into the table and are in no count of a
    /// function's errors.
    pub failure: Option<(FunctionId, i64)>,
    pub count: u64,
}

/// Live memory of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveTotals {
    pub live_bytes: u64,
    pub live_allocations: u64,
}

/// Memory totals of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    pub process: ProcessKey,
    /// Live memory by kind, in the order of [`Space::ALL`].
    pub live: [LiveTotals; Space::ALL.len()],
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Bytes ever freed by a call.
    pub freed_bytes: u64,
    /// Allocations that succeeded.
    pub allocations: u64,
    pub failed_allocations: u64,
    /// Successful frees of known allocations.
    pub frees: u64,
    pub failed_frees: u64,
    /// Successful frees of addresses that were not in the table, such as memory allocated before the probes were
    /// attached.
    pub unknown_frees: u64,
    /// Addresses allocated again while they were still in the table: a free was missed.
    pub replaced: u64,
    /// Bytes of the replaced allocations.
    pub replaced_bytes: u64,
    /// Allocations that were freed with their context.
    pub freed_with_context_allocations: u64,
    pub freed_with_context_bytes: u64,
    /// The most bytes that were live at once.
    pub peak_bytes: u64,
    /// Allocations of tensors for which a GPU had no room.
    pub out_of_memory: u64,
}

impl ProcessMemory {
    /// Live memory of all kinds together. Sizes come from the process, so the sum saturates.
    pub fn live_total(&self) -> LiveTotals {
        self.live.iter().fold(LiveTotals::default(), |sum, live| LiveTotals {
            live_bytes: sum.live_bytes.saturating_add(live.live_bytes),
            live_allocations: sum.live_allocations.saturating_add(live.live_allocations),
        })
    }
}

/// Live memory of one process in one context, or on one GPU outside of any context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextMemory {
    pub process: ProcessKey,
    /// The GPU by the process's number; `None` if the context was created before the probes were attached.
    pub gpu: Option<u8>,
    /// Live memory by kind, in the order of [`Space::ALL`].
    pub live: [LiveTotals; Space::ALL.len()],
}

/// An identity of a GPU that the CUDA driver returned to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    pub process: ProcessKey,
    /// The GPU by the process's number.
    pub gpu: u8,
    pub identity: Identity,
}

/// The tensors of one process on one GPU, as the allocator of a framework reports them. They are parts of device
/// memory that the allocator has reserved, and no memory of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMemory {
    pub process: ProcessKey,
    /// The GPU by the process's number.
    pub gpu: Option<u8>,
    /// Tensors whose allocation was observed and that were not freed.
    pub live: LiveTotals,
    /// Tensors ever allocated.
    pub allocations: u64,
    pub allocated_bytes: u64,
    /// Frees of known tensors.
    pub frees: u64,
    /// Frees of tensors that were not in the table, such as those allocated before the probes were attached.
    pub unknown_frees: u64,
    /// Addresses allocated again while they were still in the table: a free was missed.
    pub replaced: u64,
    /// Bytes of all tensors by the allocator's own account, with those from before the probes were attached.
    pub in_use_bytes: u64,
    /// Bytes that the allocator has reserved, if it reports that.
    pub reserved_bytes: Option<u64>,
    pub source: TensorSource,
}

impl TensorMemory {
    /// Bytes that the allocator keeps for later tensors. The figures come from the process, so the difference could be
    /// negative.
    pub fn cached_bytes(&self) -> Option<u64> {
        Some(self.reserved_bytes?.saturating_sub(self.in_use_bytes))
    }
}

/// Device memory at a range of addresses of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    pub process: ProcessKey,
    pub start: u64,
    pub bytes: u64,
    /// It is a mapping of physical memory, which an allocator may continue at its end.
    pub is_mapping: bool,
}

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub process: ProcessKey,
    pub ptr: u64,
    pub bytes: u64,
    pub space: Space,
    /// The GPU by the process's number.
    pub gpu: Option<u8>,
    /// When it was made, on the monotonic clock.
    pub since_ns: u64,
    /// The call site.
    pub site: SiteId,
}

/// Live memory of one process from one call site on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteMemory {
    pub process: ProcessKey,
    /// The call site; unknown if its stack was lost.
    pub site: SiteId,
    /// The GPU by the process's number.
    pub gpu: Option<u8>,
    pub live: LiveTotals,
    /// Allocations ever made there.
    pub allocations: u64,
    pub allocated_bytes: u64,
    /// Of these, the ones that were freed with their context.
    pub freed_with_context_allocations: u64,
    pub freed_with_context_bytes: u64,
}
