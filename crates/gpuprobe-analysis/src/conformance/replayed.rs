//! The figures of a replay.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::{CopyTotals, LATENCY_BUCKETS};
use gpuprobe_event::{Call, Class, Effect, SiteId, Tgid, Tid};

use super::counted::label;
use super::{ALLOCATED_BY_SITE, AllFigures, FREED_BY_SITE};
use crate::functions::FunctionSummary;
use crate::gaps::Gaps;
use crate::launches::{GraphLaunches, KernelLaunches};
use crate::memory::{MemorySummary, Total};
use crate::streams::stream_of;
use crate::summary::SummaryReport;
use crate::work::bucket;

/// What a comparison needs of events and a summary does not keep: allocations and frees by call site, for what is live by
/// call site a recording has in its last line; and whether gaps have an order.
#[derive(Clone, Debug, Default)]
pub struct EventTally {
    allocated: BTreeMap<(Tgid, SiteId), Total>,
    freed: BTreeMap<(Tgid, SiteId), Total>,
    /// Frees whose call sites are not told: of what was replaced, and of all but the last where one call frees several.
    is_incomplete: bool,
    /// Launches of CUDA kernels by stream.
    launches: BTreeMap<(Tgid, u64), u64>,
    /// The thread that launches on each stream.
    launching: HashMap<(Tgid, u64), Tid>,
    has_shared_streams: bool,
}

impl EventTally {
    /// Takes in a call.
    pub fn feed(&mut self, call: &Call) {
        if !call.took_effect() {
            return;
        }
        let key = |site: Option<SiteId>| (call.tgid, site.unwrap_or(SiteId::UNKNOWN));
        match &call.effect {
            Effect::Alloc(allocation) => {
                let sum = self.allocated.entry(key(allocation.site)).or_default();
                *sum = sum.plus(Total { count: 1, bytes: allocation.bytes });
                self.is_incomplete |= allocation.replaced.is_some();
            }
            Effect::Free(free) => {
                let Some(freed) = &free.freed else { return };
                let sum = self.freed.entry(key(free.site)).or_default();
                *sum = sum.plus(freed.into());
                self.is_incomplete |= freed.allocations > 1;
            }
            Effect::Launch(launch) => {
                let stream = self.launch(call);
                if !call.nested && !launch.captured {
                    *self.launches.entry(stream).or_default() += launch.kernels;
                }
            }
            // of a free whose memory ended with its context
            Effect::ContextEnd(_) if call.class != Class::Context => self.is_incomplete = true,
            Effect::GraphLaunch(_) => {
                self.launch(call);
            }
            _ => {}
        }
    }

    /// Notes which thread launches on which stream.
    fn launch(&mut self, call: &Call) -> (Tgid, u64) {
        let stream = (call.tgid, stream_of(call).unwrap_or(0));
        let first = self.launching.entry(stream).or_insert(call.tid);
        self.has_shared_streams |= *first != call.tid;
        stream
    }

    /// Whether several threads launch on one stream. Launches that return at the same time on two CPUs have no order then,
    /// and which of them ended a gap is not defined.
    pub(super) fn has_shared_streams(&self) -> bool {
        self.has_shared_streams
    }

    pub(super) fn has_all_frees(&self) -> bool {
        !self.is_incomplete
    }
}

pub(super) fn figures(report: &SummaryReport, tally: &EventTally) -> AllFigures {
    let mut all = AllFigures::default();
    report.functions.iter().for_each(|row| function_figures(&mut all, row));
    for row in &report.errors {
        let whose = format!("{} {}", label(row.api.as_str(), &row.function), row.error);
        all.add("errors by name", whose, row.count);
    }
    memory_figures(&mut all, &report.memory);
    site_figures(&mut all, tally);
    for ((tgid, stream), launches) in &tally.launches {
        all.add("launches by stream", stream_label(*tgid, *stream), *launches);
    }
    launch_figures(&mut all, &report.work.kernels);
    graph_figures(&mut all, &report.work.graphs);
    copy_figures(&mut all, &report.work.copies);
    gap_figures(&mut all, &report.work.gaps);
    all
}

fn function_figures(all: &mut AllFigures, row: &FunctionSummary) {
    let name = label(row.api.as_str(), &row.name);
    all.add("calls", name.clone(), row.calls);
    all.add("errors", name.clone(), row.errors);
    all.add("bytes moved", name.clone(), row.bytes);
    all.add("time in calls", name.clone(), row.total_ns);
    let mut powers = [0; LATENCY_BUCKETS];
    // the buckets of a replay are parts of those of the tables
    row.latency.iter().for_each(|part| powers[bucket(part.from)] += part.count);
    all.add_buckets("latency", &name, &powers);
}

pub(super) fn memory_figures(all: &mut AllFigures, memory: &MemorySummary) {
    let mut add = |quantity, total: Total| {
        all.add(quantity, "allocations", total.count);
        all.add(quantity, "bytes", total.bytes);
    };
    add("allocated", memory.allocated);
    add("freed", memory.freed);
    add("freed by context", memory.freed_by_context);
    all.add("replaced", "allocations", memory.replaced.count);
    all.add("replaced", "bytes", memory.replaced.bytes);
    all.add("failed", "allocations", memory.failed_allocations);
    all.add("failed", "frees", memory.failed_frees);
    all.add("unknown frees", "frees", memory.unknown_frees);
    all.raise("peak", "bytes", memory.peak_bytes);
    // the tables keep what a process held when it ended
    for held in memory.live.iter().chain(&memory.freed_by_exit) {
        all.add("live", format!("{} allocations", held.kind.as_str()), held.allocations);
        all.add("live", format!("{} bytes", held.kind.as_str()), held.bytes);
    }
}

fn site_figures(all: &mut AllFigures, tally: &EventTally) {
    let both = [(ALLOCATED_BY_SITE, &tally.allocated), (FREED_BY_SITE, &tally.freed)];
    for (quantity, totals) in both {
        for ((tgid, site), total) in totals {
            let whose = format!("process {} site {}", tgid.0, site.0);
            all.add(quantity, format!("{whose} allocations"), total.count);
            all.add(quantity, format!("{whose} bytes"), total.bytes);
        }
    }
}

pub(super) fn stream_label(tgid: Tgid, stream: u64) -> String {
    format!("process {} stream {stream:#x}", tgid.0)
}

pub(super) fn launch_figures(all: &mut AllFigures, kernels: &[KernelLaunches]) {
    for row in kernels {
        let (name, totals) = (row.kernel.clone(), &row.totals);
        all.add("launches by kernel", name.clone(), totals.launches);
        all.add("failed launches by kernel", name.clone(), totals.errors);
        all.add("launched threads by kernel", name.clone(), totals.threads);
        all.add("time in launches by kernel", name.clone(), totals.total_ns);
        all.add("streams by kernel", name.clone(), row.streams);
        all.raise("shared memory by kernel", name.clone(), totals.shared_most);
        all.add_buckets("latency of launches by kernel", &name, &totals.latency);
        for (what, dimensions) in [("grid", totals.grid), ("block", totals.block)] {
            // of shapes of one size any may be kept
            if let Some((least, most)) = dimensions {
                all.add("sizes of dimensions by kernel", format!("{name} least {what}"), volume(least));
                all.add("sizes of dimensions by kernel", format!("{name} most {what}"), volume(most));
            }
        }
    }
}

fn volume(dimensions: [u32; 3]) -> u64 {
    dimensions.iter().fold(1, |product, n| product.saturating_mul(u64::from(*n)))
}

pub(super) fn graph_figures(all: &mut AllFigures, graphs: &GraphLaunches) {
    all.add("graphs", "launches", graphs.launches);
    all.add("graphs", "failed launches", graphs.errors);
    all.add("graphs", "derived kernels", graphs.derived);
    all.add("graphs", "launches of unknown size", graphs.unknown);
    all.add("graphs", "captured kernels", graphs.captured);
}

pub(super) fn copy_figures(all: &mut AllFigures, copies: &[CopyTotals]) {
    for row in copies {
        let kind = format!("{} {} {}", row.direction.as_str(), row.mode(), row.host.as_str());
        all.add("copies", kind.clone(), row.copies);
        all.add("failed copies", kind.clone(), row.errors);
        all.add("copied bytes", kind.clone(), row.bytes);
        all.add("time in copies", kind.clone(), row.total_ns);
        all.add_buckets("sizes of copies", &kind, &row.sizes);
    }
}

pub(super) fn gap_figures(all: &mut AllFigures, gaps: &Gaps) {
    all.add("gaps", "streams", gaps.streams);
    for (after, totals) in [("after sync", &gaps.after_sync), ("after launch", &gaps.after_launch)] {
        all.add("gaps", after, totals.gaps);
        all.add("time in gaps", after, totals.total_ns);
        all.add_buckets("lengths of gaps", after, &totals.lengths);
    }
    for gap in &gaps.longest {
        let meanwhile = gap.meanwhile.unwrap_or("no call");
        all.add("longest gaps", format!("{} ns after {}, {meanwhile}", gap.ns, gap.kind.as_str()), 1);
    }
}
