//! The figures of a replay of events.

use std::collections::{BTreeMap, HashMap};

use gpuprobe_event::counters::LATENCY_BUCKETS;
use gpuprobe_event::{Call, Class, Effect, SiteId, Tgid, Tid, Total};

use super::figures::{
    ALLOCATED_BY_SITE, AllFigures, FREED_BY_SITE, copy_figures, function_label, gap_figures, graph_figures,
    launch_figures, memory_figures, stream_label,
};
use crate::gpu_ops::streams::stream_of;
use crate::recording::functions::FunctionSummary;
use crate::recording::summary::SummaryReport;
use crate::stats::buckets::bucket;

/// Figures that the comparison needs and a summary does not have: allocations and frees by call site (a recording has
/// only the live memory by call site, in its last line), and whether launches on a stream have a defined order.
#[derive(Clone, Debug, Default)]
pub struct EventTotals {
    allocated: BTreeMap<(Tgid, SiteId), Total>,
    freed: BTreeMap<(Tgid, SiteId), Total>,
    /// Some frees have no call site: those of replaced allocations, and all but the last if one call frees several.
    is_incomplete: bool,
    /// Launches of CUDA kernels by stream.
    launches: BTreeMap<(Tgid, u64), u64>,
    /// The first thread that launched on each stream.
    launching: HashMap<(Tgid, u64), Tid>,
    has_shared_streams: bool,
}

impl EventTotals {
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
            // a free of memory that was already freed with its context
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

    /// Whether several threads launch on one stream. Launches that return at the same time on two CPUs have no order,
    /// so it is not defined which of them ended a gap.
    pub(super) fn has_shared_streams(&self) -> bool {
        self.has_shared_streams
    }

    pub(super) fn has_all_frees(&self) -> bool {
        !self.is_incomplete
    }
}

pub(super) fn figures(report: &SummaryReport, totals: &EventTotals) -> AllFigures {
    let mut all = AllFigures::default();
    report.functions.iter().for_each(|row| function_figures(&mut all, row));
    for row in &report.errors {
        let label = format!("{} {}", function_label(row.api.as_str(), &row.function), row.error);
        all.add("errors by name", label, row.count);
    }
    memory_figures(&mut all, &report.memory);
    site_figures(&mut all, totals);
    for ((tgid, stream), launches) in &totals.launches {
        all.add("launches by stream", stream_label(*tgid, *stream), *launches);
    }
    launch_figures(&mut all, &report.gpu_ops.kernels);
    graph_figures(&mut all, &report.gpu_ops.graphs);
    copy_figures(&mut all, &report.gpu_ops.copies);
    gap_figures(&mut all, &report.gpu_ops.gaps);
    all
}

fn function_figures(all: &mut AllFigures, row: &FunctionSummary) {
    let name = function_label(row.api.as_str(), &row.name);
    all.add("calls", name.clone(), row.calls);
    all.add("errors", name.clone(), row.errors);
    all.add("bytes moved", name.clone(), row.bytes);
    all.add("time in calls", name.clone(), row.total_ns);
    let mut powers = [0; LATENCY_BUCKETS];
    // each bucket of the replay lies within one bucket of the tables
    row.latency.iter().for_each(|part| powers[bucket(part.from)] += part.count);
    all.add_buckets("latency", &name, &powers);
}

fn site_figures(all: &mut AllFigures, totals: &EventTotals) {
    let both = [(ALLOCATED_BY_SITE, &totals.allocated), (FREED_BY_SITE, &totals.freed)];
    for (quantity, totals) in both {
        for ((tgid, site), total) in totals {
            let label = format!("process {} site {}", tgid.0, site.0);
            all.add(quantity, format!("{label} allocations"), total.count);
            all.add(quantity, format!("{label} bytes"), total.bytes);
        }
    }
}
