//! The definition of a metric, which all lists of metrics are made of.

use gpuprobe_analysis::Snapshot;

use super::process_series::PastTotals;
use super::process_totals::ProcessTotals;
use super::samples::Samples;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only rises.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
    /// Always 1; the information is in its labels.
    Info,
}

/// A metric: its description, and the function that collects its samples.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name without `_total`, `_info`, `_bucket`, `_sum` and `_count`.
    pub family: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The unit, which is the end of the family's name.
    pub unit: Option<&'static str>,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// The names of its labels, in order.
    pub labels: &'static [&'static str],
    pub(super) collect: Collect,
}

/// Decimal places of seconds.
const NANOSECONDS: u8 = 9;

/// How the samples of a metric are collected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Collect {
    Snapshot(fn(&Snapshot, &mut Samples)),
    /// A counter of processes: from each process.
    Process(fn(&ProcessTotals<'_>, &mut Samples)),
}

impl Metric {
    /// Takes its samples from a snapshot.
    pub(super) fn collect(&'static self, snapshot: &Snapshot, samples: &mut Samples) {
        samples.begin(self.labels);
        match self.collect {
            Collect::Snapshot(collect) => collect(snapshot, samples),
            Collect::Process(collect) => self.collect_processes(collect, snapshot, samples),
        }
    }

    /// Collects a counter of processes: of those in the snapshot, and what others have counted.
    fn collect_processes(
        &'static self,
        collect: fn(&ProcessTotals<'_>, &mut Samples),
        snapshot: &Snapshot,
        samples: &mut Samples,
    ) {
        let plan = samples.plan();
        for process in &snapshot.processes {
            let series = plan.series_of(process.pid, &process.name, process.container.as_ref());
            samples.set_process(series.labels(), "");
            collect(&ProcessTotals::new(process, snapshot.has_tensors, series.bounded()), samples);
        }
        let places = if self.unit == Some("seconds") { NANOSECONDS } else { 0 };
        for PastTotals { labels, ended, totals } in plan.past() {
            samples.set_process(labels, ended);
            totals.of_metric(self.family).for_each(|(labels, n)| samples.add_signed(labels, n, places));
        }
    }

    /// The labels of a counter of processes, without those that say which processes.
    pub(super) fn further_labels(&self) -> &'static [&'static str] {
        self.labels.get(COUNTED.len()..).unwrap_or_default()
    }
}

/// The labels that identify a process, followed by further ones.
macro_rules! process_labels {
    ($($more:literal),* $(,)?) => {
        &["pid", "process", "container_id", "container", "pod", "namespace", $($more),*]
    };
}
pub(super) use process_labels;

pub(super) const PROCESS: &[&str] = process_labels![];

/// The same for counters, which also have sums over processes whose own series have ended.
macro_rules! counter_labels {
    ($($more:literal),* $(,)?) => {
        super::metric::process_labels!["ended", $($more),*]
    };
}
pub(super) use counter_labels;

/// The first labels of each counter of processes.
pub(super) const COUNTED: &[&str] = counter_labels![];

pub(super) const fn metric(
    family: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    collect: fn(&Snapshot, &mut Samples),
) -> Metric {
    Metric { family, kind, unit: None, help, labels, collect: Collect::Snapshot(collect) }
}

pub(super) const fn with_unit(metric: Metric, unit: &'static str) -> Metric {
    Metric { unit: Some(unit), ..metric }
}
