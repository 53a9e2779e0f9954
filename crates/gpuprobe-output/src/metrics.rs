//! Metrics: one list of them, and two text formats to write it in.
//!
//! A metric is one row of a list, with the function that takes its samples from a snapshot.

mod budget_metrics;
mod collect;
mod gpu_health_metrics;
mod gpu_time_metrics;
mod histograms;
mod labels;
mod memory_counters;
mod metric;
mod metric_list;
mod mig_metrics;
mod nvml_metrics;
mod process_counters;
mod process_series;
mod process_totals;
mod reference;
mod samples;
mod self_metrics;
mod series_ledger;
mod tensor_metrics;
mod video_metrics;
mod write;

use std::sync::Arc;

use gpuprobe_analysis::Snapshot;

pub(crate) use labels::clean;
pub use metric::{Kind, Metric};
pub use metric_list::metrics;
pub use process_series::Aggregate;
pub(crate) use process_series::SeriesPlan;
pub use reference::reference;
pub(crate) use samples::{Distribution, Samples, Series};
pub use series_ledger::{SeriesLedger, SeriesSettings};
pub use write::Format;
pub(crate) use write::{BOUNDS, BUCKETS, bucket_counts, sample_name};

/// Writes all metrics of a snapshot as text. Each process has series of its own.
pub fn encode(snapshot: &Snapshot, format: Format) -> String {
    encode_with(snapshot, &Arc::default(), format)
}

/// Writes all metrics of a snapshot as text, with the series of this plan.
pub(crate) fn encode_with(snapshot: &Snapshot, plan: &Arc<SeriesPlan>, format: Format) -> String {
    let mut out = String::new();
    each_metric(snapshot, plan, |metric, samples| write::metric(&mut out, metric, samples, format));
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

/// Calls `then` with each metric and its series by this plan.
pub(crate) fn each_metric(
    snapshot: &Snapshot,
    plan: &Arc<SeriesPlan>,
    mut then: impl FnMut(&'static Metric, &Samples),
) {
    let mut samples = Samples::new(Arc::clone(plan));
    for metric in metrics() {
        metric.collect(snapshot, &mut samples);
        then(metric, &samples);
    }
}

#[cfg(test)]
mod tests;
