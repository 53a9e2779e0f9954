//! One process in detail.

use std::collections::HashMap;

use serde::Serialize;

use super::reading::{
    CallSiteReading, CopyReading, Estimates, FunctionReading, GpuTimeReading, KernelGpuTimeReading,
    KernelReading, ProcessCallSitesReading, ProcessReading,
};

/// The verdict of a call site that is suspected to leak, in JSON.
const SUSPECT: &str = "leak_suspect";

/// Kernels, call sites, copies, calls and errors of one process. Lists are sorted, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Details {
    pub kernels: Vec<KernelRow>,
    pub sites: Vec<SiteRow>,
    /// Live bytes of call sites that are not listed.
    pub other_site_bytes: u64,
    pub other_sites: usize,
    pub copies: Vec<CopyRow>,
    pub streams: StreamTotals,
    /// The longest times between the operations of a stream.
    pub gaps: Vec<GapRow>,
    pub calls: Vec<CallRow>,
    pub errors: Vec<ErrorRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    pub kernel: String,
    pub launches: u64,
    /// Executions by launches of graphs.
    pub in_graphs: u64,
    pub launches_per_second: Option<f64>,
    /// Launches are estimates, because their functions were sampled to stay within the budget.
    pub is_estimated: bool,
    pub errors: u64,
    /// The mean time of a launch call. It is not the time on the GPU.
    pub mean_call_ns: Option<u64>,
    /// The mean time on the GPU, if that was collected.
    pub mean_gpu_ns: Option<u64>,
    /// Its share of the time that the kernels of the process took on the GPU.
    pub gpu_share: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteRow {
    pub name: String,
    pub live_bytes: u64,
    pub allocations: u64,
    pub verdict: String,
    pub is_suspect: bool,
    /// Growth of the minimum in bytes per second, where the verdict is about growth.
    pub growth_per_second: Option<f64>,
    /// Live bytes over time, oldest first.
    pub curve: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CopyRow {
    /// Direction, `sync` or `async`, and the kind of host memory.
    pub what: String,
    pub copies: u64,
    pub copies_per_second: Option<f64>,
    pub bytes: u64,
    pub bytes_per_second: Option<f64>,
    pub errors: u64,
    /// These are estimates, because functions that copy were sampled to stay within the budget.
    pub is_estimated: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StreamTotals {
    pub streams: u64,
    pub gaps_after_sync: u64,
    pub after_sync_ns: u64,
    pub gaps_after_launch: u64,
    pub after_launch_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GapRow {
    pub ns: u64,
    pub stream: String,
    /// The function that the thread called meanwhile.
    pub meanwhile: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallRow {
    pub function: String,
    pub calls: u64,
    pub calls_per_second: Option<f64>,
    pub total_ns: u64,
    pub mean_ns: Option<u64>,
    /// Half of the calls took less than this.
    pub p50_below_ns: Option<u64>,
    /// 99 of 100 calls took less than this.
    pub p99_below_ns: Option<u64>,
    pub errors: u64,
    /// These are estimates, because the function was sampled to stay within the budget.
    pub is_estimated: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ErrorRow {
    pub function: String,
    pub error: String,
    pub count: u64,
    /// It is an estimate, because the function was sampled to stay within the budget.
    pub is_estimated: bool,
}

/// What the details are made from.
pub(super) struct Source<'a> {
    pub(super) process: &'a ProcessReading,
    /// The same process at the reading before.
    pub(super) before: Option<&'a ProcessReading>,
    pub(super) sites: Option<&'a ProcessCallSitesReading>,
    pub(super) gpu_time: Option<&'a GpuTimeReading>,
    /// Since the reading before.
    pub(super) elapsed_seconds: Option<f64>,
    pub(super) estimates: Estimates,
    pub(super) is_estimated: &'a dyn Fn(&str) -> bool,
}

impl CallSiteReading {
    pub(super) fn is_suspect(&self) -> bool {
        self.judgement.verdict == SUSPECT
    }
}

impl Details {
    pub(super) fn new(source: &Source<'_>) -> Self {
        let &Source { process, sites, .. } = source;
        let gaps = &process.gpu_ops.gaps;
        let gap = |gap: &super::reading::GapReading| GapRow {
            ns: gap.ns,
            stream: format!("{:#x}", gap.stream),
            meanwhile: gap.meanwhile.clone(),
        };
        let failure = |failure: &super::reading::FailureReading| ErrorRow {
            function: failure.function.clone(),
            error: failure.error.clone(),
            count: failure.count,
            is_estimated: (source.is_estimated)(&failure.function),
        };
        let mut details = Self {
            kernels: kernels(source),
            sites: sites.iter().flat_map(|sites| &sites.call_sites).map(site).collect(),
            other_site_bytes: sites.map_or(0, |sites| sites.other.bytes),
            other_sites: sites.map_or(0, |sites| sites.other_sites),
            copies: copies(source),
            streams: StreamTotals {
                streams: gaps.streams,
                gaps_after_sync: gaps.after_sync.gaps,
                after_sync_ns: gaps.after_sync.total_ns,
                gaps_after_launch: gaps.after_launch.gaps,
                after_launch_ns: gaps.after_launch.total_ns,
            },
            gaps: gaps.longest.iter().map(gap).collect(),
            calls: calls(source),
            errors: process.failures.iter().map(failure).collect(),
        };
        details.sites.sort_by_key(|site| std::cmp::Reverse((site.is_suspect, site.live_bytes)));
        details.errors.sort_by_key(|error| std::cmp::Reverse(error.count));
        details.gaps.sort_by_key(|gap| std::cmp::Reverse(gap.ns));
        details
    }
}

impl Source<'_> {
    fn rate(&self, now: u64, before: Option<&u64>) -> Option<f64> {
        Some(now.saturating_sub(before.copied().unwrap_or(0)) as f64 / self.elapsed_seconds?)
    }
}

fn kernels(source: &Source<'_>) -> Vec<KernelRow> {
    let &Source { process, before, gpu_time, .. } = source;
    let before: HashMap<&str, u64> =
        before.iter().flat_map(|b| &b.gpu_ops.kernels).map(|k| (k.kernel.as_str(), k.launches)).collect();
    let times: HashMap<&str, &KernelGpuTimeReading> =
        gpu_time.iter().flat_map(|time| &time.kernels).map(|time| (time.kernel.as_str(), time)).collect();
    let all_ns = times
        .values()
        .fold(gpu_time.map_or(0, |time| time.other_ns), |sum, time| sum.saturating_add(time.total_ns));
    let row = |kernel: &KernelReading| KernelRow {
        kernel: kernel.kernel.clone(),
        launches: kernel.launches,
        in_graphs: kernel.in_graphs,
        launches_per_second: source.rate(kernel.launches, before.get(kernel.kernel.as_str())),
        is_estimated: source.estimates.launches,
        errors: kernel.errors,
        mean_call_ns: kernel.total_ns.checked_div(kernel.launches),
        mean_gpu_ns: times
            .get(kernel.kernel.as_str())
            .and_then(|time| time.total_ns.checked_div(time.executions)),
        gpu_share: times.get(kernel.kernel.as_str()).map(|time| time.total_ns as f64 / all_ns.max(1) as f64),
    };
    let mut rows: Vec<_> = process.gpu_ops.kernels.iter().map(row).collect();
    rows.sort_by(|a, b| {
        (b.launches, b.in_graphs).cmp(&(a.launches, a.in_graphs)).then(a.kernel.cmp(&b.kernel))
    });
    rows
}

fn site(site: &CallSiteReading) -> SiteRow {
    let growth = site.judgement.growth;
    SiteRow {
        name: site.name.clone(),
        live_bytes: site.live.bytes,
        allocations: site.live.count,
        verdict: site.judgement.verdict.replace('_', " "),
        is_suspect: site.is_suspect(),
        growth_per_second: (growth.over_ns > 0 && growth.bytes > 0)
            .then(|| growth.bytes as f64 / (growth.over_ns as f64 / 1e9)),
        curve: site.curve.clone(),
    }
}

fn copies(source: &Source<'_>) -> Vec<CopyRow> {
    let &Source { process, before, .. } = source;
    let what = |copy: &CopyReading| {
        let mode = if copy.is_async { "async" } else { "sync" };
        let host = if copy.host.is_empty() || copy.host == "none" { "" } else { copy.host.as_str() };
        format!("{} {mode} {host}", copy.direction).trim_end().to_owned()
    };
    let before: HashMap<String, (u64, u64)> = before
        .iter()
        .flat_map(|before| &before.gpu_ops.copies)
        .map(|copy| (what(copy), (copy.copies, copy.bytes)))
        .collect();
    let row = |copy: &CopyReading| {
        let what = what(copy);
        let (copies, bytes) = before.get(&what).map(|(copies, bytes)| (copies, bytes)).unzip();
        CopyRow {
            what,
            copies: copy.copies,
            copies_per_second: source.rate(copy.copies, copies),
            bytes: copy.bytes,
            bytes_per_second: source.rate(copy.bytes, bytes),
            errors: copy.errors,
            is_estimated: source.estimates.copies,
        }
    };
    let mut rows: Vec<_> = process.gpu_ops.copies.iter().map(row).collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.what.cmp(&b.what)));
    rows
}

fn calls(source: &Source<'_>) -> Vec<CallRow> {
    let &Source { process, before, .. } = source;
    let key = |function: &FunctionReading| (function.api.clone(), function.function.clone());
    let before: HashMap<_, u64> =
        before.iter().flat_map(|b| &b.functions).map(|f| (key(f), f.calls)).collect();
    let row = |function: &FunctionReading| CallRow {
        function: function.function.clone(),
        calls: function.calls,
        calls_per_second: source.rate(function.calls, before.get(&key(function))),
        total_ns: function.total_ns,
        mean_ns: function.total_ns.checked_div(function.calls),
        p50_below_ns: below(&function.latency, 0.5),
        p99_below_ns: below(&function.latency, 0.99),
        errors: function.errors,
        is_estimated: (source.is_estimated)(&function.function),
    };
    let mut rows: Vec<_> = process.functions.iter().map(row).collect();
    rows.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.function.cmp(&b.function)));
    rows
}

/// The end of the bucket that a share of the calls does not exceed. Bucket `i` has calls of `2^i` up to `2^(i+1)` ns; the
/// last one has no end.
fn below(latency: &[u64], share: f64) -> Option<u64> {
    let all: u64 = latency.iter().fold(0, |sum, count| sum.saturating_add(*count));
    let wanted = (all as f64 * share).ceil().max(1.0);
    let mut seen = 0_u64;
    let at = latency.iter().position(|count| {
        seen = seen.saturating_add(*count);
        all > 0 && seen as f64 >= wanted
    })?;
    let has_end = at + 1 < latency.len();
    u32::try_from(at + 1).ok().and_then(|at| 1_u64.checked_shl(at)).filter(|_| has_end)
}
