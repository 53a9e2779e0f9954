//! What the numbers of folded stacks count.

use gpuprobe_analysis::{Slice, site_calls};

/// What the numbers of folded stacks count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// Microseconds in a call itself, without the calls inside it.
    #[default]
    Time,
    /// Microseconds in calls that wait for the GPU.
    Waiting,
    /// Launches of CUDA kernels and graphs.
    Launches,
    /// Calls.
    Calls,
    /// Bytes allocated.
    Allocated,
}

impl Weight {
    pub const ALL: [Self; 5] = [Self::Time, Self::Waiting, Self::Launches, Self::Calls, Self::Allocated];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Waiting => "waiting",
            Self::Launches => "launches",
            Self::Calls => "calls",
            Self::Allocated => "allocated",
        }
    }

    /// The weight of a call, and of those that it stands for if it was sampled; of times, in nanoseconds.
    pub(super) fn of(self, slice: &Slice) -> u64 {
        let call = &slice.call;
        let of_one = match self {
            Self::Time => slice.end_ns.saturating_sub(slice.start_ns),
            Self::Waiting => site_calls::waiting_ns(call).unwrap_or(0),
            Self::Launches => site_calls::launches(call),
            Self::Calls => 1,
            Self::Allocated if call.took_effect() => call.effect.allocation().map_or(0, |made| made.bytes),
            Self::Allocated => 0,
        };
        of_one.saturating_mul(u64::from(call.weight))
    }

    /// Whether the outermost of several calls with a weight stands for those inside it: one launch of the CUDA runtime
    /// is one of the CUDA driver as well.
    pub(super) fn is_of_outermost(self) -> bool {
        matches!(self, Self::Waiting | Self::Launches | Self::Allocated)
    }

    /// The number in the output.
    pub(super) fn shown(self, sum: u64) -> u64 {
        match self {
            // a stack that took any time is shown with 1 us at least
            Self::Time | Self::Waiting => (sum.saturating_add(500) / 1000).max(1),
            Self::Launches | Self::Calls | Self::Allocated => sum,
        }
    }
}
