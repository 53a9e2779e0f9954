//! Metrics: one list of them, and two text formats to write it in.
//!
//! A metric is one row of a list, with the function that takes its samples from a snapshot.

mod budget_metrics;
mod collect;
mod gpu_time_metrics;
mod labels;
mod memory_counters;
mod metric;
mod metric_list;
mod nvml_metrics;
mod process_counters;
mod reference;
mod samples;
mod self_metrics;
mod tensor_metrics;
mod write;

use gpuprobe_analysis::Snapshot;

pub use metric::{Kind, Metric};
pub use metric_list::metrics;
pub use reference::reference;
use samples::Samples;
pub use write::Format;

/// Writes all metrics of a snapshot as text.
pub fn encode(snapshot: &Snapshot, format: Format) -> String {
    let mut out = String::new();
    let mut samples = Samples::default();
    for metric in metrics() {
        samples.begin(metric.labels);
        (metric.collect)(snapshot, &mut samples);
        write::metric(&mut out, metric, &samples, format);
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

#[cfg(test)]
mod tests;
