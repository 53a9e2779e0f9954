//! The definition of a metric, which all lists of metrics are made of.

use gpuprobe_analysis::Snapshot;

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
    pub(super) collect: fn(&Snapshot, &mut Samples),
}

/// The labels that identify a process, followed by further ones.
macro_rules! process_labels {
    ($($more:literal),* $(,)?) => {
        &["pid", "process", "container_id", "container", "pod", "namespace", $($more),*]
    };
}
pub(super) use process_labels;

pub(super) const PROCESS: &[&str] = process_labels![];

pub(super) const fn metric(
    family: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    collect: fn(&Snapshot, &mut Samples),
) -> Metric {
    Metric { family, kind, unit: None, help, labels, collect }
}

pub(super) const fn with_unit(metric: Metric, unit: &'static str) -> Metric {
    Metric { unit: Some(unit), ..metric }
}
