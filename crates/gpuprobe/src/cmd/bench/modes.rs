//! The measured modes and their targets.

use std::collections::BTreeSet;

use gpuprobe_analysis::Target;
use gpuprobe_capture::Workload;

use super::probed_copy::ProbeKind;

/// The first instructions of the functions of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Prologue {
    Push,
    CmpJe,
    EndbrPush,
    Nop,
    Mov,
}

macro_rules! library {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/demo/libbench.", $name, ".so"))
    };
}

impl Prologue {
    /// The library whose functions start with these instructions.
    pub(super) fn library(self) -> &'static [u8] {
        match self {
            Self::Push => library!("push"),
            Self::CmpJe => library!("cmp_je"),
            Self::EndbrPush => library!("endbr_push"),
            Self::Nop => library!("nop"),
            Self::Mov => library!("mov"),
        }
    }
}

/// The argument of the measured program for the functions of a workload.
pub(super) fn word(workload: Workload) -> &'static str {
    match workload {
        Workload::Count => "count",
        // both call the same function
        Workload::Stream | Workload::EntryCount => "stream",
        Workload::Memory => "memory",
        Workload::Launches | Workload::StreamedLaunches => "launches",
        Workload::Copies => "copies",
        Workload::Other => "other",
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) floor: Option<&'static str>,
    pub(super) workload: Workload,
    pub(super) kind: ProbeKind,
    pub(super) prologue: Prologue,
}

/// A mode on functions that start with a `push`.
const fn mode(
    name: &'static str,
    what: &'static str,
    floor: &'static str,
    workload: Workload,
    kind: ProbeKind,
) -> Mode {
    let floor = if floor.is_empty() { None } else { Some(floor) };
    Mode { name, what, floor, workload, kind, prologue: Prologue::Push }
}

const fn with_prologue(with: Prologue, mode: Mode) -> Mode {
    Mode { prologue: with, ..mode }
}

/// Without probes: the program checks that the code of the other libraries is the same.
const NONE: Mode = mode("none", "a call without probes", "", Workload::Count, ProbeKind::Unprobed);

pub(super) const MODES: [Mode; 27] = [
    NONE,
    mode("floor", "a call with empty probes (the floor)", "", Workload::Count, ProbeKind::Empty),
    mode("count", "counted: calls, errors, latency", "floor", Workload::Count, ProbeKind::Plain),
    mode("stream", "streamed and discarded", "floor", Workload::Stream, ProbeKind::Plain),
    mode("stream_file", "streamed to a file", "floor", Workload::Stream, ProbeKind::ToFile),
    mode("floor_entry", "an empty probe at the entry only", "floor", Workload::Count, ProbeKind::EmptyEntry),
    mode("entry", "calls counted at the entry only", "floor_entry", Workload::Count, ProbeKind::Entry),
    mode("none_pair", "an allocation and a free without probes", "", Workload::Memory, ProbeKind::Unprobed),
    mode("floor_pair", "both with empty probes (the floor)", "", Workload::Memory, ProbeKind::Empty),
    mode("memory", "counted, with live memory", "floor_pair", Workload::Memory, ProbeKind::Plain),
    mode("sites", "and where it was allocated", "floor_pair", Workload::Memory, ProbeKind::WithSites),
    mode("floor_launch", "a launch with empty probes (the floor)", "", Workload::Launches, ProbeKind::Empty),
    mode(
        "launches",
        "by CUDA kernel and stream, with gaps",
        "floor_launch",
        Workload::Launches,
        ProbeKind::WithLaunches,
    ),
    mode(
        "launch_record",
        "recorded, as by run",
        "floor_launch",
        Workload::StreamedLaunches,
        ProbeKind::Recorded,
    ),
    mode(
        "launch_stack",
        "with its call site, as by run --stack",
        "floor_launch",
        Workload::StreamedLaunches,
        ProbeKind::RecordedWithSites,
    ),
    mode("floor_copy", "a copy with empty probes (the floor)", "", Workload::Copies, ProbeKind::Empty),
    mode("bytes", "counted with bytes", "floor_copy", Workload::Copies, ProbeKind::WithBytes),
    mode("copies", "by direction and memory", "floor_copy", Workload::Copies, ProbeKind::WithCopies),
    with_prologue(
        Prologue::CmpJe,
        mode("floor_cmp_je", "empty, after cmp; je", "floor", Workload::Count, ProbeKind::Empty),
    ),
    with_prologue(
        Prologue::CmpJe,
        mode("count_cmp_je", "counted", "floor_cmp_je", Workload::Count, ProbeKind::Plain),
    ),
    with_prologue(
        Prologue::EndbrPush,
        mode("floor_endbr", "empty, after endbr64; push", "floor", Workload::Count, ProbeKind::Empty),
    ),
    with_prologue(
        Prologue::EndbrPush,
        mode("count_endbr", "counted", "floor_endbr", Workload::Count, ProbeKind::Plain),
    ),
    with_prologue(
        Prologue::Nop,
        mode("floor_nop", "empty, on a nop of 5 bytes", "floor", Workload::Count, ProbeKind::Empty),
    ),
    with_prologue(
        Prologue::Nop,
        mode("count_nop", "counted", "floor_nop", Workload::Count, ProbeKind::Plain),
    ),
    with_prologue(
        Prologue::Mov,
        mode(
            "floor_mov",
            "empty, on a mov: no cheap probe point",
            "floor",
            Workload::Count,
            ProbeKind::Empty,
        ),
    ),
    with_prologue(
        Prologue::Mov,
        mode("count_mov", "counted", "floor_mov", Workload::Count, ProbeKind::Plain),
    ),
    // the last one, so that it can be omitted
    mode("other", "with the probes of the other program", "floor", Workload::Other, ProbeKind::ByOther),
];

/// The targets, for the best way to attach.
pub(super) const TARGETS: [Target; 8] = [
    Target { mode: "count", to: "floor", limit: 1.25 },
    Target { mode: "bytes", to: "floor_copy", limit: 1.25 },
    Target { mode: "stream", to: "floor", limit: 1.30 },
    Target { mode: "stream_file", to: "floor", limit: 1.30 },
    Target { mode: "entry", to: "floor_entry", limit: 1.10 },
    Target { mode: "memory", to: "floor_pair", limit: 1.35 },
    Target { mode: "count_cmp_je", to: "count", limit: 1.10 },
    Target { mode: "count", to: "other", limit: 0.80 },
];

/// The functions that have probes of one kind in one library, each once.
pub(super) fn functions_with(kind: ProbeKind, prologue: Prologue) -> BTreeSet<&'static str> {
    let modes = MODES.iter().filter(|mode| (mode.kind, mode.prologue) == (kind, prologue));
    let workloads = modes.map(|mode| mode.workload);
    workloads.flat_map(|w| w.functions().iter().chain(w.preparation())).copied().collect()
}

/// The libraries that have probes of one kind.
pub(super) fn prologues_with(kind: ProbeKind) -> BTreeSet<Prologue> {
    MODES.iter().filter(|mode| mode.kind == kind).map(|mode| mode.prologue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_names_are_unique_and_their_floors_exist() {
        let names: BTreeSet<_> = MODES.iter().map(|mode| mode.name).collect();
        assert_eq!(names.len(), MODES.len());
        assert!(MODES.iter().filter_map(|mode| mode.floor).all(|floor| names.contains(floor)));
        assert!(TARGETS.iter().all(|target| names.contains(target.mode) && names.contains(target.to)));
        // the measured program compares the code of the other libraries with that of the first
        assert_eq!((MODES[0].name, MODES[MODES.len() - 1].kind), ("none", ProbeKind::ByOther));
    }
}
