//! The causes of lost records, each with a name and a counter.

use serde::{Deserialize, Serialize};

/// Groups of figures that become incomplete together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    /// Figures from events: calls, launches and copies, and memory if the BPF tables were not read.
    Events,
    /// Launches, copies and gaps.
    GpuOps,
    /// Memory from the BPF tables. They include what did not fit into the ring buffer.
    Memory,
    /// Memory by call site.
    MemoryBySite,
    /// GPU times: what GPUs executed.
    GpuTime,
}

macro_rules! causes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal [$($figures:ident)*],)*) => {
        /// Why something was lost. The order is that of the counters in BPF.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum LossCause { $($(#[doc = $doc])+ $name,)* }

        impl LossCause {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in traces and metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means, for people.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_start(),)* }
            }

            /// The figures that are incomplete if it happened.
            pub fn affects(self) -> &'static [Figures] {
                match self { $(Self::$name => &[$(Figures::$figures),*],)* }
            }
        }
    };
}

causes! {
    /// records that did not fit into the ring buffer: figures made of events are too low (--buffer makes it larger)
    RingFull = "ring_full" [Events],
    /// calls on a thread for which the Linux kernel had no memory left
    NoThreadState = "no_thread_state" [Events Memory],
    /// calls nested deeper than BPF can record
    TooDeep = "too_deep" [Events Memory],
    /// calls that never returned because the program jumped out of them
    Abandoned = "abandoned" [Events Memory],
    /// returns of calls that began before the probes were attached
    UnmatchedReturn = "unmatched_return" [Events Memory],
    /// calls whose return was not probed, because that could have killed the program, and launches that may not have returned
    /// at the end of a recording: their effect is not known
    UnobservedReturn = "unobserved_return" [Events Memory],
    /// calls not counted because the table of counters was full
    CountersFull = "counters_full" [],
    /// allocations not recorded because the table of live memory was full
    LiveFull = "live_full" [Memory],
    /// processes not recorded because the table of processes was full
    ProcessesFull = "processes_full" [Memory],
    /// allocations whose address or size could not be read
    UnreadAllocation = "unread_allocation" [Memory],
    /// allocations and copies of more bytes than any machine has; they are counted, but their bytes are not
    ImplausibleSize = "implausible_size" [GpuOps Memory],
    /// calls recorded without their stack, because the ring buffer was full (--buffer makes it larger)
    LostStack = "lost_stack" [],
    /// names of CUDA kernels that did not fit into the ring buffer: some launches may lack theirs
    LostName = "lost_name" [],
    /// calls without a call site because the tables of call sites were full
    SitesFull = "sites_full" [MemoryBySite],
    /// launches, copies, streams or graphs not counted because their table was full
    GpuOpsFull = "gpu_ops_full" [GpuOps],
    /// launches, copies or graph nodes whose description could not be read
    UnreadGpuOp = "unread_gpu_op" [GpuOps],
    /// failures counted without their names, under `other`, because there were too many kinds of them
    FailuresFull = "failures_full" [],
    /// faults and migrations of unified memory whose process is not known
    OwnerUnknown = "owner_unknown" [],
    /// Python frames that could not be read, because the code was freed or the process exited before: they are shown
    /// without a name, or not at all if the memory of the interpreter could not be read or found no room in a table
    UnreadPython = "unread_python" [],
    /// stacks without Python frames, because their process has several interpreters and it is not certain in which of
    /// them the thread ran
    UnassignedPython = "unassigned_python" [],
    /// batches of the agent, with up to some hundred executions each, that did not fit into their ring buffer: GPU times
    /// are too low
    LostAgentBatch = "lost_agent_batch" [GpuTime],
    /// stacks of call sites without their outermost frames: BPF shortened them because the ring buffer was filling up,
    /// and no complete one followed; different call sites may be shown as one (--buffer makes it larger)
    ShortenedStack = "shortened_stack" [MemoryBySite],
    /// records that could not be decoded
    Undecodable = "undecodable" [Events],
    /// processes that had mapped a library before it was probed; their first calls may be missing
    LateAttach = "late_attach" [Events Memory],
    /// processes that mapped a CUDA library and exited before it could be probed; all their calls are missing
    ExitedBeforeAttach = "exited_before_attach" [Events Memory],
    /// reports of mapped files that did not fit into their buffer: a process that exited soon after may have used a
    /// library before it was probed
    LostMapping = "lost_mapping" [Events Memory],
    /// exited processes shown for less than five minutes because there were too many; totals include them
    ForgottenEarly = "forgotten_early" [],
    /// calls not printed because the reader of the output was too slow
    OutputFull = "output_full" [],
    /// events in the oldest segments of the trace, which were removed to keep to --max-size
    SegmentRemoved = "segment_removed" [Events],
    /// turns in which functions that are sampled because of --budget could not be probed; their figures are too low
    OverBudget = "over_budget" [Events],
    /// events not written to the trace because the disk was nearly full
    DiskFull = "disk_full" [Events],
    /// executions that CUPTI or the agent dropped: GPU times are too low
    LostExecution = "lost_execution" [GpuTime],
    /// calls that were recorded but not written, because gpuprobe had to end at once or the trace had reached its size
    /// limit
    Discarded = "discarded" [Events],
}

impl LossCause {
    /// The inverse of [`LossCause::as_str`]; also knows the names of trace formats 1 and 2.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = match name {
            "work_full" => "gpu_ops_full",
            "unread_work" => "unread_gpu_op",
            "gone_before_attach" => "exited_before_attach",
            name => name,
        };
        Self::ALL.iter().copied().find(|c| c.as_str() == name)
    }

    /// The cause with this BPF counter.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }
}

/// Counts by cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Losses {
    counts: [u64; LossCause::ALL.len()],
}

impl Default for Losses {
    fn default() -> Self {
        Self { counts: [0; LossCause::ALL.len()] }
    }
}

impl Losses {
    /// The count of one cause.
    pub fn get(&self, cause: LossCause) -> u64 {
        self.counts[cause as usize]
    }

    /// Adds to a cause. It saturates, because a trace file can contain any count.
    pub fn add(&mut self, cause: LossCause, count: u64) {
        let sum = &mut self.counts[cause as usize];
        *sum = sum.saturating_add(count);
    }

    /// The sum of all causes.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The causes that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (LossCause, u64)> + '_ {
        LossCause::ALL.iter().map(|&c| (c, self.get(c))).filter(|&(_, n)| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_round_trip_and_are_explained() {
        for (i, &cause) in LossCause::ALL.iter().enumerate() {
            assert_eq!(LossCause::from_name(cause.as_str()), Some(cause));
            assert_eq!(LossCause::from_index(i), Some(cause));
            assert!(!cause.meaning().starts_with(' ') && !cause.meaning().is_empty());
        }
    }

    #[test]
    fn losses_add_up() {
        let mut losses = Losses::default();
        losses.add(LossCause::RingFull, 2);
        losses.add(LossCause::RingFull, 3);
        losses.add(LossCause::TooDeep, 1);
        assert_eq!(losses.total(), 6);
        assert_eq!(losses.iter().collect::<Vec<_>>(), [(LossCause::RingFull, 5), (LossCause::TooDeep, 1)]);
    }

    #[test]
    fn counts_saturate() {
        let mut losses = Losses::default();
        [u64::MAX, 1].into_iter().for_each(|count| losses.add(LossCause::RingFull, count));
        losses.add(LossCause::TooDeep, 1);
        assert_eq!((losses.get(LossCause::RingFull), losses.total()), (u64::MAX, u64::MAX));
    }
}
