//! Which BPF programs probe the functions of libraries, by tier.

use crate::host::support::Tier;
use crate::wire::ProgramName;

/// How a uprobe link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UprobeKind {
    /// One link for the entry and the return of many functions.
    Session,
    /// One link for the entries of many functions.
    Multi,
    /// One link for their returns.
    MultiReturn,
    /// A perf event for the entry of one function.
    Perf,
    /// A perf event for its return.
    PerfReturn,
}

impl UprobeKind {
    pub(crate) const ALL: [(Self, &'static str); 5] = [
        (Self::Session, "session"),
        (Self::Multi, "multi"),
        (Self::MultiReturn, "multi-return"),
        (Self::Perf, "perf"),
        (Self::PerfReturn, "perf-return"),
    ];

    /// Whether it takes a descriptor for each function.
    pub(crate) fn is_perf(self) -> bool {
        matches!(self, Self::Perf | Self::PerfReturn)
    }
}

/// The programs of a tier, and how each is attached. Entries come first, because they make returns safe
/// (`bpf/core/return_safety.bpf.h`). Calls that begin before all programs are attached are not observed.
pub(crate) fn programs(tier: Tier, entry_only: bool, bare: bool) -> &'static [(ProgramName, UprobeKind)] {
    match (tier, bare) {
        (Tier::Session | Tier::Multi, true) if entry_only => {
            &[(ProgramName::BareMultiEntry, UprobeKind::Multi)]
        }
        (Tier::Perf, true) if entry_only => &[(ProgramName::BarePerfEntry, UprobeKind::Perf)],
        (Tier::Session, true) => &[(ProgramName::BareSession, UprobeKind::Session)],
        (Tier::Multi, true) => &[
            (ProgramName::BareMultiEntry, UprobeKind::Multi),
            (ProgramName::BareMultiReturn, UprobeKind::MultiReturn),
        ],
        (Tier::Perf, true) => &[
            (ProgramName::BarePerfEntry, UprobeKind::Perf),
            (ProgramName::BarePerfReturn, UprobeKind::PerfReturn),
        ],
        (Tier::Session | Tier::Multi, false) if entry_only => {
            &[(ProgramName::CallMultiEntry, UprobeKind::Multi)]
        }
        (Tier::Perf, false) if entry_only => &[(ProgramName::CallPerfEntry, UprobeKind::Perf)],
        (Tier::Session, false) => &[(ProgramName::CallSession, UprobeKind::Session)],
        (Tier::Multi, false) => &[
            (ProgramName::CallMultiEntry, UprobeKind::Multi),
            (ProgramName::CallMultiReturn, UprobeKind::MultiReturn),
        ],
        (Tier::Perf, false) => &[
            (ProgramName::CallPerfEntry, UprobeKind::Perf),
            (ProgramName::CallPerfReturn, UprobeKind::PerfReturn),
        ],
    }
}

/// The program that counts calls at their entry.
pub(crate) fn entry_count_program(tier: Tier) -> &'static (ProgramName, UprobeKind) {
    match tier {
        Tier::Session | Tier::Multi => &(ProgramName::EntryCountMulti, UprobeKind::Multi),
        Tier::Perf => &(ProgramName::EntryCountPerf, UprobeKind::Perf),
    }
}

/// The program in which calls wait for room in the ring; `None` if none of this tier could.
pub(crate) fn lossless_program(tier: Tier) -> Option<(ProgramName, UprobeKind)> {
    match tier {
        Tier::Session | Tier::Multi => Some((ProgramName::LosslessMulti, UprobeKind::Multi)),
        Tier::Perf => None,
    }
}

/// The program that accounts for tensors at the entry of the functions that report them.
pub(crate) fn tensor_program(tier: Tier) -> &'static (ProgramName, UprobeKind) {
    match tier {
        Tier::Session | Tier::Multi => &(ProgramName::TensorMulti, UprobeKind::Multi),
        Tier::Perf => &(ProgramName::TensorPerf, UprobeKind::Perf),
    }
}

/// The program that counts failures at failure points; `None` where each would need a descriptor of its own.
pub(crate) fn failure_program(tier: Tier) -> Option<(ProgramName, UprobeKind)> {
    match tier {
        Tier::Session | Tier::Multi => Some((ProgramName::FailureMulti, UprobeKind::Multi)),
        Tier::Perf => None,
    }
}

/// The program that copies the batches of agents.
pub(crate) fn agent_program(tier: Tier) -> &'static (ProgramName, UprobeKind) {
    match tier {
        Tier::Session | Tier::Multi => &(ProgramName::AgentMulti, UprobeKind::Multi),
        Tier::Perf => &(ProgramName::AgentPerf, UprobeKind::Perf),
    }
}
