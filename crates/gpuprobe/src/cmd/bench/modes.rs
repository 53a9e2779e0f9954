//! What is measured, and what is aimed at.

use std::collections::BTreeSet;

use gpuprobe_analysis::Target;

use super::bed::{Probed, STREAMED};

/// How the functions of a library begin.
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
    /// The library whose functions begin like this.
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

/// Which functions of the library are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Count,
    Stream,
    Memory,
    Launches,
    Copies,
    /// As `Count`, on a library into which another program puts its probes.
    Other,
}

impl Work {
    /// As the program knows it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Stream => "stream",
            Self::Memory => "memory",
            Self::Launches => "launches",
            Self::Copies => "copies",
            Self::Other => "other",
        }
    }

    /// What is probed for it.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Count => &["cuCtxSynchronize"],
            Self::Stream => &[STREAMED],
            Self::Memory => &["cuMemAlloc_v2", "cuMemFree_v2"],
            Self::Launches => &["cuLaunchKernel"],
            Self::Copies => &["cuMemcpyHtoD_v2", "cuMemAlloc_v2", "cuMemAllocHost_v2"],
            Self::Other => &[],
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) floor: Option<&'static str>,
    pub(super) work: Work,
    pub(super) probed: Probed,
    pub(super) prologue: Prologue,
}

/// What is measured of functions that begin with a `push`.
const fn mode(
    name: &'static str,
    what: &'static str,
    floor: &'static str,
    work: Work,
    probed: Probed,
) -> Mode {
    let floor = if floor.is_empty() { None } else { Some(floor) };
    Mode { name, what, floor, work, probed, prologue: Prologue::Push }
}

const fn beginning(with: Prologue, mode: Mode) -> Mode {
    Mode { prologue: with, ..mode }
}

/// Without probes, in a library that nobody touches: others are compared with its code.
const NONE: Mode = mode("none", "a call without probes", "", Work::Count, Probed::Not);

pub(super) const MODES: [Mode; 25] = [
    NONE,
    mode("floor", "a call with empty probes (the floor)", "", Work::Count, Probed::Bare),
    mode("count", "counted: calls, errors, latency", "floor", Work::Count, Probed::Plain),
    mode("stream", "streamed to nobody", "floor", Work::Stream, Probed::Plain),
    mode("stream_file", "streamed to a file", "floor", Work::Stream, Probed::ToFile),
    mode("floor_entry", "an empty probe at the entry alone", "floor", Work::Count, Probed::BareEntry),
    mode("entry", "calls counted at the entry alone", "floor_entry", Work::Count, Probed::Entry),
    mode("none_pair", "an allocation and a free without probes", "", Work::Memory, Probed::Not),
    mode("floor_pair", "both with empty probes (the floor)", "", Work::Memory, Probed::Bare),
    mode("memory", "counted, with live memory", "floor_pair", Work::Memory, Probed::Plain),
    mode("sites", "and where it was allocated", "floor_pair", Work::Memory, Probed::WithSites),
    mode("floor_launch", "a launch with empty probes (the floor)", "", Work::Launches, Probed::Bare),
    mode("launches", "by kernel and stream, with gaps", "floor_launch", Work::Launches, Probed::WithLaunches),
    mode("floor_copy", "a copy with empty probes (the floor)", "", Work::Copies, Probed::Bare),
    mode("bytes", "counted with bytes", "floor_copy", Work::Copies, Probed::WithBytes),
    mode("copies", "by direction and memory", "floor_copy", Work::Copies, Probed::WithCopies),
    beginning(
        Prologue::CmpJe,
        mode("floor_cmp_je", "empty, after cmp; je", "floor", Work::Count, Probed::Bare),
    ),
    beginning(Prologue::CmpJe, mode("count_cmp_je", "counted", "floor_cmp_je", Work::Count, Probed::Plain)),
    beginning(
        Prologue::EndbrPush,
        mode("floor_endbr", "empty, after endbr64; push", "floor", Work::Count, Probed::Bare),
    ),
    beginning(Prologue::EndbrPush, mode("count_endbr", "counted", "floor_endbr", Work::Count, Probed::Plain)),
    beginning(
        Prologue::Nop,
        mode("floor_nop", "empty, on a nop of 5 bytes", "floor", Work::Count, Probed::Bare),
    ),
    beginning(Prologue::Nop, mode("count_nop", "counted", "floor_nop", Work::Count, Probed::Plain)),
    beginning(
        Prologue::Mov,
        mode("floor_mov", "empty, on a mov: no cheap place", "floor", Work::Count, Probed::Bare),
    ),
    beginning(Prologue::Mov, mode("count_mov", "counted", "floor_mov", Work::Count, Probed::Plain)),
    // the last, so that it can be left out
    mode("other", "with the probes of the other program", "floor", Work::Other, Probed::ByOther),
];

/// The ratios that are promised, where probes are attached in the best way.
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

/// The functions that have probes of one kind, each once, in a library that begins in one way.
pub(super) fn functions_with(probed: Probed, prologue: Prologue) -> BTreeSet<&'static str> {
    let modes = MODES.iter().filter(|mode| (mode.probed, mode.prologue) == (probed, prologue));
    modes.flat_map(|mode| mode.work.functions()).copied().collect()
}

/// The libraries that probes of one kind are put into.
pub(super) fn prologues_with(probed: Probed) -> BTreeSet<Prologue> {
    MODES.iter().filter(|mode| mode.probed == probed).map(|mode| mode.prologue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_name_of_its_own_and_a_floor_that_is_there() {
        let names: BTreeSet<_> = MODES.iter().map(|mode| mode.name).collect();
        assert_eq!(names.len(), MODES.len());
        assert!(MODES.iter().filter_map(|mode| mode.floor).all(|floor| names.contains(floor)));
        assert!(TARGETS.iter().all(|target| names.contains(target.mode) && names.contains(target.to)));
        // the program that calls compares the code of others with that of the first
        assert_eq!((MODES[0].name, MODES[MODES.len() - 1].probed), ("none", Probed::ByOther));
    }
}
