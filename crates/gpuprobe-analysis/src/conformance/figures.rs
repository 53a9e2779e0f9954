//! The figures of one implementation, and the parts of them that both implementations build from the same types.

use std::collections::BTreeMap;

use gpuprobe_event::counters::CopyTotals;
use gpuprobe_event::{MemorySummary, Tgid, Total};

use crate::gpu_ops::gaps::Gaps;
use crate::gpu_ops::launches::{CudaKernelLaunches, GraphLaunches};

pub(super) const ALLOCATED_BY_SITE: &str = "allocated by call site";
pub(super) const FREED_BY_SITE: &str = "freed by call site";

/// Figures of one quantity by label, such as a function or a stream.
pub(super) type Figures = BTreeMap<String, u64>;

/// All figures of one implementation.
#[derive(Debug, Default)]
pub(super) struct AllFigures(pub(super) BTreeMap<&'static str, Figures>);

impl AllFigures {
    pub(super) fn add(&mut self, quantity: &'static str, label: impl Into<String>, value: u64) {
        let figure = self.0.entry(quantity).or_default().entry(label.into()).or_default();
        *figure = figure.saturating_add(value);
    }

    pub(super) fn raise(&mut self, quantity: &'static str, label: impl Into<String>, value: u64) {
        let figure = self.0.entry(quantity).or_default().entry(label.into()).or_default();
        *figure = (*figure).max(value);
    }

    /// Adds a figure for each bucket that is not empty.
    pub(super) fn add_buckets(&mut self, quantity: &'static str, label: &str, buckets: &[u64]) {
        for (power, count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add(quantity, format!("{label} 2^{power}"), *count);
        }
    }
}

pub(super) fn function_label(api: &str, name: &str) -> String {
    format!("{api} {name}")
}

pub(super) fn memory_figures(all: &mut AllFigures, memory: &MemorySummary) {
    let mut add = |quantity, total: Total| {
        all.add(quantity, "allocations", total.count);
        all.add(quantity, "bytes", total.bytes);
    };
    add("allocated", memory.allocated);
    add("freed", memory.freed);
    add("freed with context", memory.freed_with_context);
    all.add("replaced", "allocations", memory.replaced.count);
    all.add("replaced", "bytes", memory.replaced.bytes);
    all.add("failed", "allocations", memory.failed_allocations);
    all.add("failed", "frees", memory.failed_frees);
    all.add("unknown frees", "frees", memory.unknown_frees);
    all.raise("peak", "bytes", memory.peak_bytes);
    // in the tables, the memory of an exited process is still live
    for live in memory.live.iter().chain(&memory.freed_by_exit) {
        all.add("live", format!("{} allocations", live.kind.as_str()), live.allocations);
        all.add("live", format!("{} bytes", live.kind.as_str()), live.bytes);
    }
}

pub(super) fn stream_label(tgid: Tgid, stream: u64) -> String {
    format!("process {} stream {stream:#x}", tgid.0)
}

pub(super) fn launch_figures(all: &mut AllFigures, kernels: &[CudaKernelLaunches]) {
    for row in kernels {
        let (name, totals) = (row.kernel.clone(), &row.totals);
        all.add("launches by kernel", name.clone(), totals.launches);
        all.add("kernels in graphs by name", name.clone(), row.in_graphs);
        all.add("failed launches by kernel", name.clone(), totals.errors);
        all.add("launched threads by kernel", name.clone(), totals.threads);
        all.add("time in launches by kernel", name.clone(), totals.total_ns);
        all.add("streams by kernel", name.clone(), row.streams);
        all.raise("shared memory by kernel", name.clone(), totals.shared_most);
        all.add_buckets("latency of launches by kernel", &name, &totals.latency);
        for (what, dimensions) in [("grid", totals.grid), ("block", totals.block)] {
            // of several shapes with the same size, any may be stored
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
    all.add("graphs", "disabled kernels", graphs.disabled);
    all.add("graphs", "conditional nodes", graphs.conditional);
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
