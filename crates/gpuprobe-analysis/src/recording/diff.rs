//! Compares two recordings: calls by function, launches by CUDA kernel, and bytes, also by call site.

use std::collections::{BTreeMap, BTreeSet};

use gpuprobe_event::Space;
use gpuprobe_event::counters::CopyDirection;
use serde::Serialize;

use crate::leaks::call_sites::{first_frame, names_of_stacks};
use crate::recording::replay::ReplayReport;
use crate::recording::summary::SummaryReport;
use crate::stats::flame::FlameNode;

/// A figure that is no sum.
const PEAK: &str = "peak of a process";
/// Between the frames of a stack in a key.
const NEXT_FRAME: char = '\n';

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Calls by function.
    Calls,
    /// Failed calls by function.
    Errors,
    /// Time inside calls by function, in nanoseconds. RecordingFigures on request only: no two runs take the same time.
    CallNs,
    /// Launches by CUDA kernel.
    Launches,
    /// Bytes copied and set, by direction.
    CopiedBytes,
    /// Bytes allocated in all, and the peak.
    MemoryBytes,
    /// Bytes live when processes exited or when the recording ended, by kind of memory.
    LiveBytes,
    /// Bytes allocated by call site.
    AllocatedBySite,
    /// Bytes live at the end by the function that allocated them.
    LiveBySite,
}

impl Figure {
    pub const ALL: [Self; 9] = [
        Self::Calls,
        Self::Errors,
        Self::CallNs,
        Self::Launches,
        Self::CopiedBytes,
        Self::MemoryBytes,
        Self::LiveBytes,
        Self::AllocatedBySite,
        Self::LiveBySite,
    ];
}

/// A figure that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub figure: Figure,
    /// The function, CUDA kernel, direction, kind of memory or call site.
    pub name: String,
    /// The stack of a call site, the innermost frame first; empty for other figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// In the first recording; 0 if it does not occur there.
    pub before: u64,
    /// In the second recording.
    pub after: u64,
    /// The change in percent of `before`; `None` if that is 0.
    pub percent: Option<f64>,
}

impl Difference {
    /// The size of the change.
    pub fn size(&self) -> u64 {
        self.after.abs_diff(self.before)
    }

    /// Whether it changed by more than this part, such as 0.1. What is new changed by more than any part.
    pub fn is_above(&self, part: f64) -> bool {
        self.before == 0 || self.size() as f64 > part * self.before as f64
    }
}

/// What is compared of a recording: values by name, for each figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingFigures {
    values: BTreeMap<(Figure, String), u64>,
    /// Call sites with live memory are not all listed: their sums are not known.
    pub has_more_sites: bool,
    /// The number of lost records.
    pub lost: u64,
}

impl RecordingFigures {
    /// The figures of a recording.
    pub fn of(report: &ReplayReport) -> Self {
        let mut figures = Self::default();
        figures.calls(&report.summary);
        figures.bytes(&report.summary);
        let by_site = &report.summary.memory_by_site;
        for site in &by_site.sites {
            figures.add(Figure::LiveBySite, first_frame(&site.call_site), site.bytes);
        }
        figures.has_more_sites = by_site.other_sites > 0;
        report.memory.children.values().for_each(|process| figures.allocated(process, &mut Vec::new()));
        figures.lost = report.summary.losses.iter().map(|loss| loss.count).fold(0, u64::saturating_add);
        figures
    }

    /// Adds the figures of another recording of the same job.
    pub fn add_all(&mut self, more: &Self) {
        for ((figure, name), value) in &more.values {
            let is_peak = *figure == Figure::MemoryBytes && name == PEAK;
            let sum = self.values.entry((*figure, name.clone())).or_default();
            *sum = if is_peak { (*sum).max(*value) } else { sum.saturating_add(*value) };
        }
        self.has_more_sites |= more.has_more_sites;
        self.lost = self.lost.saturating_add(more.lost);
    }

    /// The names of the CUDA kernels that were launched.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        let is_kernel = |(figure, _): &&(Figure, String)| *figure == Figure::Launches;
        self.values.keys().filter(is_kernel).map(|(_, name)| name.as_str())
    }

    fn calls(&mut self, report: &SummaryReport) {
        for function in &report.functions {
            self.add(Figure::Calls, &function.name, function.calls);
            self.add(Figure::Errors, &function.name, function.errors);
            self.add(Figure::CallNs, &function.name, function.total_ns);
        }
        for row in &report.gpu_ops.kernels {
            self.add(Figure::Launches, &row.kernel, row.runs());
        }
    }

    fn bytes(&mut self, report: &SummaryReport) {
        for copies in &report.gpu_ops.copies {
            let name = match copies.direction {
                CopyDirection::Fill => "memset",
                direction => direction.as_str(),
            };
            self.add(Figure::CopiedBytes, name, copies.bytes);
        }
        self.add(Figure::MemoryBytes, "allocated", report.memory.allocated.bytes);
        self.add(Figure::MemoryBytes, PEAK, report.memory.peak_bytes);
        for live in report.memory.live.iter().chain(&report.memory.freed_by_exit) {
            self.add(Figure::LiveBytes, Space::as_str(live.kind), live.bytes);
        }
    }

    /// Bytes allocated by stack. `frames` are the frames above this node, the outermost first.
    fn allocated<'a>(&mut self, node: &'a FlameNode, frames: &mut Vec<&'a str>) {
        let below = node.children.values().fold(0, |sum: u64, child| sum.saturating_add(child.total));
        let own = node.total.saturating_sub(below);
        if own > 0 {
            let innermost_first: Vec<_> = frames.iter().rev().copied().collect();
            self.add(Figure::AllocatedBySite, &innermost_first.join(&NEXT_FRAME.to_string()), own);
        }
        for (frame, child) in &node.children {
            frames.push(frame);
            self.allocated(child, frames);
            frames.pop();
        }
    }

    fn add(&mut self, figure: Figure, name: &str, value: u64) {
        if value > 0 {
            let sum = self.values.entry((figure, name.to_owned())).or_default();
            *sum = sum.saturating_add(value);
        }
    }

    fn value(&self, key: &(Figure, String)) -> u64 {
        self.values.get(key).copied().unwrap_or(0)
    }
}

/// All figures that differ: figure by figure, the largest change first. Live memory by call site is not compared if a
/// recording does not list all of it.
pub fn differences(before: &RecordingFigures, after: &RecordingFigures, with_times: bool) -> Vec<Difference> {
    let keys: BTreeSet<_> = before.values.keys().chain(after.values.keys()).collect();
    let lists_all_sites = !before.has_more_sites && !after.has_more_sites;
    let is_wanted = |key: &&(Figure, String)| match key.0 {
        Figure::CallNs => with_times,
        Figure::LiveBySite => lists_all_sites,
        _ => true,
    };
    let difference = |key: &(Figure, String)| {
        let (from, to) = (before.value(key), after.value(key));
        let percent = (from > 0).then(|| (to as f64 - from as f64) / from as f64 * 100.0);
        let (figure, name) = key.clone();
        (from != to).then_some(Difference {
            figure,
            name,
            stack: Vec::new(),
            before: from,
            after: to,
            percent,
        })
    };
    let mut all: Vec<_> = keys.into_iter().filter(is_wanted).filter_map(difference).collect();
    name_call_sites(&mut all);
    all.sort_by(|a, b| (a.figure, b.size(), &a.name).cmp(&(b.figure, a.size(), &b.name)));
    all
}

/// Replaces the keys of call sites by their stacks and by names that distinguish these.
fn name_call_sites(differences: &mut [Difference]) {
    let frames = |key: &str| match key {
        "" => Vec::new(),
        key => key.split(NEXT_FRAME).map(str::to_owned).collect(),
    };
    let mut by_site: Vec<_> =
        differences.iter_mut().filter(|d| d.figure == Figure::AllocatedBySite).collect();
    let stacks: Vec<Vec<String>> = by_site.iter().map(|d| frames(&d.name)).collect();
    for ((difference, name), stack) in by_site.iter_mut().zip(names_of_stacks(&stacks)).zip(stacks) {
        (difference.name, difference.stack) = (name, stack);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpuprobe_event::trace::End;
    use gpuprobe_event::{Api, Call, Event, LiveSite, MemoryBySite, Tgid};

    use super::*;
    use crate::recording::replay::Replay;
    use crate::samples::{alloc, call, copy, free, launch, of_kernel, took};

    fn recorded(calls: Vec<Call>, end: &End) -> RecordingFigures {
        let mut replay = Replay::default();
        calls.into_iter().for_each(|call| replay.feed(Event::Call(Box::new(call))));
        RecordingFigures::of(&replay.finish(Some(end)))
    }

    fn at(stack: &[&str], call: Call) -> Call {
        Call { stack: Some(stack.iter().map(|&frame| frame.to_owned()).collect()), ..call }
    }

    fn program() -> Vec<Call> {
        vec![
            at(&["load", "main"], alloc(0x10, 4096, 50)),
            at(&["step", "main"], alloc(0x20, 100, 60)),
            copy(CopyDirection::HostToDevice, 4096, 0),
            of_kernel(launch("cudaLaunchKernel", Some(1)), Some("scale")),
            free(0x10, Some(4096), 2000),
            call(Api::Runtime, "cudaMalloc", 2),
        ]
    }

    fn found(differences: &[Difference]) -> Vec<(Figure, &str, u64, u64)> {
        differences.iter().map(|d| (d.figure, d.name.as_str(), d.before, d.after)).collect()
    }

    #[test]
    fn a_recording_does_not_differ_from_itself() {
        let same = recorded(program(), &End::default());
        assert_eq!(differences(&same, &same, true), []);
        assert_eq!(differences(&RecordingFigures::default(), &RecordingFigures::default(), true), []);
        assert!(!same.values.is_empty());
    }

    #[test]
    fn one_more_allocation_is_the_only_difference() {
        let before = recorded(program(), &End::default());
        let more = at(&["step", "main"], alloc(0x30, 50, 70));
        let after = recorded([program(), vec![more]].concat(), &End::default());
        let expected = [
            (Figure::Calls, "cudaMalloc", 3, 4),
            (Figure::MemoryBytes, "allocated", 4196, 4246),
            (Figure::LiveBytes, "device", 100, 150),
            (Figure::AllocatedBySite, "step", 100, 150),
        ];
        let all = differences(&before, &after, false);
        assert_eq!(found(&all), expected);
        assert_eq!(all[3].stack, ["step", "main"]);
    }

    #[test]
    fn kernels_copies_and_errors_are_compared_and_the_largest_change_is_first() {
        let before = recorded(program(), &End::default());
        let mut calls = program();
        calls.extend((0..3).map(|_| of_kernel(launch("cudaLaunchKernel", Some(1)), Some("gemm"))));
        calls.push(of_kernel(launch("cudaLaunchKernel", Some(1)), Some("scale")));
        calls.push(copy(CopyDirection::DeviceToHost, 7, 0));
        calls.push(call(Api::Runtime, "cudaMalloc", 2));
        let all = differences(&before, &recorded(calls, &End::default()), false);
        let expected = [
            (Figure::Calls, "cudaLaunchKernel", 1, 5),
            (Figure::Calls, "cudaMalloc", 3, 4),
            (Figure::Calls, "cudaMemcpy", 1, 2),
            (Figure::Errors, "cudaMalloc", 1, 2),
            (Figure::Launches, "gemm", 0, 3),
            (Figure::Launches, "scale", 1, 2),
            (Figure::CopiedBytes, "D2H", 0, 7),
        ];
        assert_eq!(found(&all), expected);
        assert_eq!((all[0].percent, all[4].percent), (Some(400.0), None));
    }

    #[test]
    fn times_are_compared_on_request() {
        let taking = |ns| recorded(vec![took(call(Api::Runtime, "cudaFree", 0), ns)], &End::default());
        assert_eq!(differences(&taking(10), &taking(20), false), []);
        let all = differences(&taking(10), &taking(20), true);
        assert_eq!(found(&all), [(Figure::CallNs, "cudaFree", 10, 20)]);
    }

    #[test]
    fn live_memory_by_call_site_is_summed_over_processes() {
        let site = |pid, name: &str, bytes| LiveSite {
            pid: Tgid(pid),
            process: "p".to_owned(),
            call_site: name.to_owned(),
            allocations: 1,
            bytes,
        };
        let with = |sites: Vec<LiveSite>, other_sites| {
            let memory_by_site = MemoryBySite::new(sites, other_sites);
            recorded(Vec::new(), &End { memory_by_site, ..End::default() })
        };
        let before = with(vec![site(1, "load < main", 10), site(2, "load #2", 5), site(1, "step", 1)], 0);
        let after = with(vec![site(3, "load", 15), site(3, "save", 2)], 0);
        let expected = [(Figure::LiveBySite, "save", 0, 2), (Figure::LiveBySite, "step", 1, 0)];
        assert_eq!(found(&differences(&before, &after, false)), expected);
        // "step" may be among the others
        let after = with(vec![site(3, "load", 15), site(3, "save", 2)], 4);
        assert!(after.has_more_sites);
        assert_eq!(differences(&before, &after, false), []);
    }

    #[test]
    fn a_limit_is_exceeded_by_a_larger_change_and_by_anything_new() {
        let changed = |before: u64, after: u64| Difference {
            figure: Figure::Calls,
            name: String::new(),
            stack: Vec::new(),
            before,
            after,
            percent: None,
        };
        for (before, after, above) in
            [(100, 110, false), (100, 111, true), (100, 89, true), (100, 90, false), (0, 1, true)]
        {
            assert_eq!(changed(before, after).is_above(0.1), above, "{before} {after}");
        }
        assert!(!changed(5, 0).is_above(1.0) && changed(u64::MAX, 0).is_above(0.5));
    }

    #[test]
    fn call_sites_with_the_same_first_frame_are_named_with_their_callers() {
        let calls = [("load", 1), ("save", 2)]
            .map(|(frame, n)| at(&["get", frame, "main"], Call { id: n, ..alloc(0x10 * n, 10 * n, 50 * n) }));
        let after = recorded(calls.to_vec(), &End::default());
        let all = differences(&RecordingFigures::default(), &after, false);
        let sites: Vec<_> = found(&all).into_iter().filter(|d| d.0 == Figure::AllocatedBySite).collect();
        let expected =
            [(Figure::AllocatedBySite, "get < save", 0, 20), (Figure::AllocatedBySite, "get < load", 0, 10)];
        assert_eq!(sites, expected);
    }

    #[test]
    fn allocations_without_a_stack_are_one_call_site() {
        let named = Call { process: Arc::from("other"), tgid: Tgid(3), ..alloc(0x30, 5, 70) };
        let after = recorded(vec![alloc(0x10, 4, 50), named], &End::default());
        let all = differences(&RecordingFigures::default(), &after, false);
        let by_site: Vec<_> = found(&all).into_iter().filter(|d| d.0 == Figure::AllocatedBySite).collect();
        assert_eq!(by_site, [(Figure::AllocatedBySite, "unknown", 0, 9)]);
    }
}
