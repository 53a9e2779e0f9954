//! What the kernel side counts by itself, without sending an event per call. Totals since the probes came.

mod gpu_ops;

pub use gpu_ops::{
    CopyCounts, CopyTotals, Dimensions, GapCounts, GapKind, GraphCounts, LaunchCounts, LaunchTotals, LongGap,
    StreamGaps, WorkRows,
};

pub use crate::copy_kind::{CopyDirection, HostMemory};

use crate::catalogue::Space;
use crate::driver::CommandCode;
use crate::effect::DriverTime;
use crate::gpu::Identity;
use crate::ids::{FunctionId, SiteId, Tgid};
use crate::name::Name;

/// Latency buckets: bucket `i` counts calls of `2^i` up to `2^(i+1)` nanoseconds; the first takes everything
/// shorter, the last everything longer.
pub const LATENCY_BUCKETS: usize = 32;

/// One run of one program in one process. A reused pid, or an exec, makes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    /// The process.
    pub tgid: Tgid,
    /// Differs between runs that share a pid: made of the start time and the count of execs.
    pub instance: u64,
}

/// What one process did with one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCounts {
    /// Which process.
    pub process: ProcessKey,
    /// Which function.
    pub function: FunctionId,
    /// Calls that returned.
    pub calls: u64,
    /// Of these, how many failed.
    pub errors: u64,
    /// Bytes moved, once per outermost call. What was allocated is counted with the process.
    pub bytes: u64,
    /// Time inside, in nanoseconds.
    pub total_ns: u64,
    /// Calls that entered the driver, where that is watched, and their time there.
    pub driver: DriverTime,
    /// Distribution of that time.
    pub latency: [u64; LATENCY_BUCKETS],
}

/// What one process asked of the driver by one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandCounts {
    /// Which process.
    pub process: ProcessKey,
    /// Which command.
    pub code: CommandCode,
    /// What it is called.
    pub command: Name,
    /// How often, and how long it took.
    pub totals: CommandTotals,
}

/// Ioctls together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTotals {
    /// How many.
    pub calls: u64,
    /// Of these, how many failed.
    pub failures: u64,
    /// Time inside, in nanoseconds.
    pub total_ns: u64,
}

impl CommandTotals {
    /// Adds others.
    pub fn add(&mut self, more: Self) {
        self.calls = self.calls.saturating_add(more.calls);
        self.failures = self.failures.saturating_add(more.failures);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
    }

    /// What has come since.
    #[must_use]
    pub fn without(self, earlier: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            failures: self.failures.saturating_sub(earlier.failures),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }
}

/// How often a function of one process failed in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCounts {
    /// Which process.
    pub process: ProcessKey,
    /// Which function, and what it returned; `None` for all that there was no room for, where no count of the
    /// function's errors has them.
    pub way: Option<(FunctionId, i64)>,
    /// How often.
    pub count: u64,
}

/// What one process holds of one kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes live now.
    pub live_bytes: u64,
    /// Allocations live now.
    pub live_allocations: u64,
}

/// What one process did to GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Which process.
    pub process: ProcessKey,
    /// By kind, in the order of [`Space::ALL`].
    pub held: [Held; Space::ALL.len()],
    /// Bytes ever allocated.
    pub allocated_bytes: u64,
    /// Bytes ever freed by a call.
    pub freed_bytes: u64,
    /// Allocations that succeeded.
    pub allocations: u64,
    /// Allocations that failed.
    pub failed_allocations: u64,
    /// Frees of something known that succeeded.
    pub frees: u64,
    /// Frees that failed.
    pub failed_frees: u64,
    /// Successful frees of addresses that were not in the table, as of memory allocated before the probes came.
    pub unknown_frees: u64,
    /// Addresses allocated again while they were still in the table: a free was missed.
    pub replaced: u64,
    /// Bytes of what stood there.
    pub replaced_bytes: u64,
    /// Allocations that ended with their context.
    pub ended_allocations: u64,
    /// Their bytes.
    pub ended_bytes: u64,
    /// The most that was live at once.
    pub peak_bytes: u64,
}

impl ProcessMemory {
    /// What it holds of all kinds together. Sizes are what a process says, so their sum may be anything.
    pub fn held_in_all(&self) -> Held {
        self.held.iter().fold(Held::default(), |sum, held| Held {
            live_bytes: sum.live_bytes.saturating_add(held.live_bytes),
            live_allocations: sum.live_allocations.saturating_add(held.live_allocations),
        })
    }
}

/// What one process holds in one context, or on one GPU outside of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextMemory {
    /// Which process.
    pub process: ProcessKey,
    /// The GPU, as the process counts them; `None` where the context was there before the probes.
    pub gpu: Option<u8>,
    /// By kind, in the order of [`Space::ALL`].
    pub held: [Held; Space::ALL.len()],
}

/// What the driver told a process of one of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldGpu {
    /// Which process.
    pub process: ProcessKey,
    /// The GPU, as the process counts them.
    pub gpu: u8,
    /// What it was told.
    pub identity: Identity,
}

/// One live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Who holds it.
    pub process: ProcessKey,
    /// Its address.
    pub ptr: u64,
    /// Its size.
    pub bytes: u64,
    /// Kind of memory.
    pub space: Space,
    /// The GPU, as the process counts them.
    pub gpu: Option<u8>,
    /// When it was made, on the kernel's monotonic clock.
    pub since_ns: u64,
    /// Where it was made.
    pub site: SiteId,
}

/// What one process holds from one site on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteMemory {
    /// Which process.
    pub process: ProcessKey,
    /// Which site; unknown where its stack was lost.
    pub site: SiteId,
    /// The GPU, as the process counts them.
    pub gpu: Option<u8>,
    /// Live now.
    pub held: Held,
    /// Allocations ever made there.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Of these, what ended with its context.
    pub ended_allocations: u64,
    /// Their bytes.
    pub ended_bytes: u64,
}
