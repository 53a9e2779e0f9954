//! The counters of a process as plain numbers.

use gpuprobe_analysis::ProcessSnapshot;

use super::super::metric::Collect;
use super::super::process_counters::METRICS;
use super::super::process_series::Totals;
use super::super::process_totals::ProcessTotals;
use super::super::samples::Samples;

/// All counters of one process.
pub(super) fn counted(process: &ProcessSnapshot, has_tensors: bool) -> Totals {
    let mut totals = Totals::default();
    let mut samples = Samples::default();
    let of_process = ProcessTotals::new(process, has_tensors, None);
    for metric in METRICS {
        let Collect::Process(collect) = metric.collect else { continue };
        samples.begin(metric.further_labels());
        collect(&of_process, &mut samples);
        samples.numbers().for_each(|(labels, value)| totals.add_one(metric.family, labels, value));
    }
    totals
}
