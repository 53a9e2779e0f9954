//! The measured modes and their targets.

use std::collections::BTreeSet;

use gpuprobe_analysis::Target;
use gpuprobe_capture::{Tier, Workload};

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
        include_bytes!(concat!(env!("OUT_DIR"), "/demo/libbench.", $name, ".so.gz"))
    };
}

impl Prologue {
    /// The compressed library whose functions start with these instructions.
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

/// The argument of the measured program for a mode, without the library.
pub(super) fn word(mode: &Mode) -> String {
    match mode.threads {
        1 => calls_of(mode.workload).to_owned(),
        threads => format!("{}*{threads}", calls_of(mode.workload)),
    }
}

/// What the measured program calls for a workload.
fn calls_of(workload: Workload) -> &'static str {
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
    /// How many threads make the calls, each as many as one thread would.
    pub(super) threads: u32,
}

/// Many threads: as many as the CPUs of a machine with a GPU.
const MANY: u32 = 16;

/// A mode on functions that start with a `push`.
const fn mode(
    name: &'static str,
    what: &'static str,
    floor: &'static str,
    workload: Workload,
    kind: ProbeKind,
) -> Mode {
    let floor = if floor.is_empty() { None } else { Some(floor) };
    Mode { name, what, floor, workload, kind, prologue: Prologue::Push, threads: 1 }
}

const fn with_prologue(with: Prologue, mode: Mode) -> Mode {
    Mode { prologue: with, ..mode }
}

const fn by_many_threads(mode: Mode) -> Mode {
    Mode { threads: MANY, ..mode }
}

/// Without probes: the program checks that the code of the other libraries is the same.
const NONE: Mode = mode("none", "a call without probes", "", Workload::Count, ProbeKind::Unprobed);

pub(super) const MODES: [Mode; 35] = [
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
        "floor_launch_entry",
        "the same at the entry only",
        "floor_launch",
        Workload::Launches,
        ProbeKind::EmptyEntry,
    ),
    mode(
        "launches",
        "by CUDA kernel and stream, with gaps",
        "floor_launch",
        Workload::Launches,
        ProbeKind::WithLaunches,
    ),
    mode(
        "launch_returns",
        "with the return of every launch",
        "floor_launch",
        Workload::Launches,
        ProbeKind::WithLaunchReturns,
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
    by_many_threads(mode(
        "floor_copy_threads",
        "a copy with empty probes, 16 threads",
        "floor_copy",
        Workload::Copies,
        ProbeKind::Empty,
    )),
    by_many_threads(mode(
        "copies_threads",
        "by direction and memory, 16 threads",
        "copies",
        Workload::Copies,
        ProbeKind::WithCopies,
    )),
    by_many_threads(mode(
        "floor_pair_threads",
        "an allocation and a free, empty, 16 threads",
        "floor_pair",
        Workload::Memory,
        ProbeKind::Empty,
    )),
    by_many_threads(mode(
        "memory_threads",
        "counted, with live memory, 16 threads",
        "memory",
        Workload::Memory,
        ProbeKind::Plain,
    )),
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
    // the measured program waits for the probes of the other program at the first of these
    mode("other", "with the probes of the other program", "floor", Workload::Other, ProbeKind::ByOther),
    mode(
        "other_pair",
        "an allocation and a free with them",
        "floor_pair",
        Workload::Memory,
        ProbeKind::ByOther,
    ),
    mode("other_copy", "a copy with them", "floor_copy", Workload::Copies, ProbeKind::ByOther),
];

/// The modes to measure, with or without another program.
pub(super) fn modes(with_other: bool) -> Vec<Mode> {
    MODES.into_iter().filter(|mode| with_other || mode.kind != ProbeKind::ByOther).collect()
}

/// The targets, for the best way to attach.
const TARGETS: [Target; 12] = [
    Target { mode: "count", to: "floor", limit: 1.25 },
    Target { mode: "bytes", to: "floor_copy", limit: 1.25 },
    Target { mode: "stream", to: "floor", limit: 1.30 },
    Target { mode: "stream_file", to: "floor", limit: 1.30 },
    Target { mode: "entry", to: "floor_entry", limit: 1.10 },
    Target { mode: "memory", to: "floor_pair", limit: 1.35 },
    Target { mode: "launches", to: "floor_launch", limit: 1.10 },
    Target { mode: "copies_threads", to: "copies", limit: 1.15 },
    Target { mode: "count_cmp_je", to: "count", limit: 1.10 },
    Target { mode: "count", to: "other", limit: 0.80 },
    Target { mode: "copies", to: "other_copy", limit: 0.85 },
    Target { mode: "memory", to: "other_pair", limit: 0.85 },
];

/// Only sessions can decline the return probes of launches.
pub(super) fn targets_on(tier: Option<Tier>) -> Vec<Target> {
    let applies = |target: &Target| target.mode != "launches" || tier == Some(Tier::Session);
    TARGETS.into_iter().filter(applies).collect()
}

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
        assert_eq!(MODES[0].name, "none");
        let by_other = MODES.iter().filter(|mode| mode.kind == ProbeKind::ByOther);
        assert_eq!(by_other.map(|mode| mode.workload).next(), Some(Workload::Other));
        assert!(modes(false).iter().all(|mode| mode.kind != ProbeKind::ByOther));
    }
}
