//! The figures of a replay.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::LATENCY_BUCKETS;
use gpuprobe_event::{Call, Class, Effect, SiteId, Tgid, Tid, Total};

use super::figures::{
    ALLOCATED_BY_SITE, AllFigures, FREED_BY_SITE, copy_figures, gap_figures, graph_figures, label,
    launch_figures, memory_figures, stream_label,
};
use crate::gpu_ops::streams::stream_of;
use crate::recording::functions::FunctionSummary;
use crate::recording::summary::SummaryReport;
use crate::stats::buckets::bucket;

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
