//! The definition of a metric, which all lists of metrics are made of.

use gpuprobe_analysis::Snapshot;

use super::samples::Samples;

/// What a metric's numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
    /// Always 1; its labels say it all.
    Info,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name without `_total`, `_info`, `_bucket`, `_sum` and `_count`.
    pub family: &'static str,
    /// What its numbers mean.
    pub kind: Kind,
    /// The unit, with which the family's name ends.
    pub unit: Option<&'static str>,
    /// What it is, in a sentence.
    pub help: &'static str,
    /// The names of its labels, in order.
    pub labels: &'static [&'static str],
    pub(super) collect: fn(&Snapshot, &mut Samples),
}

/// The labels that name a process, and further ones behind them.
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
