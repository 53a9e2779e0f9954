//! The names of metrics, units and attributes in OpenTelemetry. Where its semantic conventions have a name that means
//! the same, that is used; everything else keeps its own name behind `gpuprobe.`.

use std::borrow::Cow;

use crate::metrics::{Kind, Metric, metrics, sample_name};

/// The form of a metric in OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Gauge,
    /// A sum that only rises. `is_since_start` says that it was zero when gpuprobe started: other sums, such as those of
    /// the driver, began at a time that is not known.
    Counter {
        is_since_start: bool,
    },
    /// A sum that rises and falls.
    UpDownCounter,
    Histogram,
}

/// A metric as OpenTelemetry names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: Cow<'static, str>,
    pub(super) unit: &'static str,
    pub(super) shape: Shape,
    /// Attributes that all its points have.
    pub(super) fixed: &'static [(&'static str, &'static str)],
}

/// A metric for which the semantic conventions have a name.
struct Convention {
    family: &'static str,
    name: &'static str,
    unit: &'static str,
    shape: Shape,
    fixed: &'static [(&'static str, &'static str)],
}

const fn convention(
    family: &'static str,
    name: &'static str,
    unit: &'static str,
    shape: Shape,
    fixed: &'static [(&'static str, &'static str)],
) -> Convention {
    Convention { family, name, unit, shape, fixed }
}

const OF_HARDWARE: Shape = Shape::Counter { is_since_start: false };
const NONE: &[(&str, &str)] = &[];

/// Metrics with a name in the semantic conventions. Two rows with the same name must follow each other in the list of
/// metrics.
const CONVENTIONS: &[Convention] = &[
    convention(
        "gpuprobe_gpu_utilization_ratio",
        "hw.gpu.utilization",
        "1",
        Shape::Gauge,
        &[("hw.gpu.task", "general")],
    ),
    convention("gpuprobe_gpu_memory_used_bytes", "hw.gpu.memory.usage", "By", Shape::UpDownCounter, NONE),
    convention("gpuprobe_gpu_memory_total_bytes", "hw.gpu.memory.limit", "By", Shape::UpDownCounter, NONE),
    convention(
        "gpuprobe_gpu_temperature_celsius",
        "hw.temperature",
        "Cel",
        Shape::Gauge,
        &[("hw.sensor_location", "gpu")],
    ),
    convention(
        "gpuprobe_gpu_memory_temperature_celsius",
        "hw.temperature",
        "Cel",
        Shape::Gauge,
        &[("hw.sensor_location", "memory")],
    ),
    convention("gpuprobe_gpu_power_watts", "hw.power", "W", Shape::Gauge, NONE),
    convention("gpuprobe_gpu_energy_joules", "hw.energy", "J", OF_HARDWARE, NONE),
    convention("gpuprobe_gpu_ecc_errors", "hw.errors", "{error}", OF_HARDWARE, NONE),
    convention("process_cpu_seconds", "process.cpu.time", "s", Shape::Counter { is_since_start: true }, NONE),
    convention("process_resident_memory_bytes", "process.memory.usage", "By", Shape::UpDownCounter, NONE),
    convention("process_virtual_memory_bytes", "process.memory.virtual", "By", Shape::UpDownCounter, NONE),
    convention(
        "process_open_fds",
        "process.unix.file_descriptor.count",
        "{file_descriptor}",
        Shape::UpDownCounter,
        NONE,
    ),
];

/// Counters without a name in the conventions that did not begin with gpuprobe.
const OLDER: [&str; 2] = ["gpuprobe_gpu_ecc_lifetime_errors", "gpuprobe_gpu_pcie_replays"];

/// Rates, whose unit is part of their name only.
const RATES: [&str; 2] = ["gpuprobe_gpu_traffic_bytes_per_second", "gpuprobe_gpu_pcie_bytes_per_second"];

/// Units of metrics by UCUM.
const UNITS: [(&str, &str); 7] = [
    ("bytes", "By"),
    ("seconds", "s"),
    ("ratio", "1"),
    ("celsius", "Cel"),
    ("watts", "W"),
    ("joules", "J"),
    ("hertz", "Hz"),
];

/// The name of a metric.
pub(super) fn named(metric: &Metric) -> Named {
    if let Some(row) = CONVENTIONS.iter().find(|row| row.family == metric.family) {
        return Named { name: row.name.into(), unit: row.unit, shape: row.shape, fixed: row.fixed };
    }
    let shape = match metric.kind {
        Kind::Counter => Shape::Counter { is_since_start: !OLDER.contains(&metric.family) },
        Kind::Gauge | Kind::Info => Shape::Gauge,
        Kind::Histogram => Shape::Histogram,
    };
    Named { name: own_name(metric).into(), unit: unit(metric), shape, fixed: NONE }
}

/// Its own name with a dot after `gpuprobe`. Units stay in it: so it is unique, and a Prometheus that receives OTLP
/// gives it the name that it has in /metrics.
fn own_name(metric: &Metric) -> String {
    let name = if metric.kind == Kind::Info { sample_name(metric) } else { metric.family.to_owned() };
    format!("gpuprobe.{}", name.strip_prefix("gpuprobe_").unwrap_or(&name))
}

fn unit(metric: &Metric) -> &'static str {
    if RATES.contains(&metric.family) {
        return "By/s";
    }
    let known = |unit: &str| UNITS.iter().find(|(ours, _)| *ours == unit);
    metric.unit.and_then(known).map_or("", |(_, ucum)| ucum)
}

/// The attributes of labels. Other labels keep their name behind `gpuprobe.`.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("code", "http.response.status_code"),
    ("container", "k8s.container.name"),
    ("container_id", "container.id"),
    ("error", "error.type"),
    ("name", "hw.name"),
    ("namespace", "k8s.namespace.name"),
    ("pid", "process.pid"),
    ("pod", "k8s.pod.name"),
    ("process", "process.executable.name"),
    ("severity", "error.type"),
    ("uuid", "hw.id"),
];

/// Attributes that are integers.
const INTEGERS: [&str; 2] = ["http.response.status_code", "process.pid"];

/// The attribute of a label.
pub(super) fn attribute(label: &str) -> Cow<'static, str> {
    match ATTRIBUTES.iter().find(|(ours, _)| *ours == label) {
        Some((_, attribute)) => Cow::Borrowed(attribute),
        None => format!("gpuprobe.{label}").into(),
    }
}

/// Whether an attribute is an integer.
pub(super) fn is_integer(attribute: &str) -> bool {
    INTEGERS.contains(&attribute)
}

/// The tables of `docs/guides/otlp.md`: all names that differ from the rule.
pub fn mapping() -> String {
    let mut out =
        String::from("| metric | OpenTelemetry | unit | type | more attributes |\n|---|---|---|---|---|\n");
    for metric in metrics() {
        if let Some(row) = CONVENTIONS.iter().find(|row| row.family == metric.family) {
            let fixed: Vec<String> =
                row.fixed.iter().map(|(key, value)| format!("`{key}={value}`")).collect();
            let (ours, kind) = (sample_name(metric), shape_word(row.shape));
            out.push_str(&format!(
                "| `{ours}` | `{}` | `{}` | {kind} | {} |\n",
                row.name,
                row.unit,
                fixed.join(" ")
            ));
        }
    }
    out.push_str("\n| label | attribute |\n|---|---|\n");
    for (label, attribute) in ATTRIBUTES {
        out.push_str(&format!("| `{label}` | `{attribute}` |\n"));
    }
    out
}

fn shape_word(shape: Shape) -> &'static str {
    match shape {
        Shape::Gauge => "Gauge",
        Shape::Counter { .. } => "Counter",
        Shape::UpDownCounter => "UpDownCounter",
        Shape::Histogram => "Histogram",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_is_about_a_metric_of_the_list() {
        let families: BTreeSet<_> = metrics().map(|metric| metric.family).collect();
        let rows = CONVENTIONS.iter().map(|row| row.family).chain(OLDER).chain(RATES);
        rows.for_each(|family| assert!(families.contains(family), "{family}"));
        let labels: BTreeSet<_> = metrics().flat_map(|metric| metric.labels).copied().collect();
        ATTRIBUTES.iter().for_each(|(label, _)| assert!(labels.contains(label), "{label}"));
        let units: BTreeSet<_> = metrics().filter_map(|metric| metric.unit).collect();
        assert_eq!(units, UNITS.iter().map(|(unit, _)| *unit).collect());
    }

    /// A metric must be one message, so rows of the same name have to be adjacent and alike.
    #[test]
    fn names_are_unique_or_follow_each_other() {
        let mut all: Vec<Named> = metrics().map(named).collect();
        all.dedup_by(|a, b| {
            let is_same = a.name == b.name;
            assert!(!is_same || (a.unit == b.unit && a.shape == b.shape), "{a:?} {b:?}");
            is_same
        });
        let names: BTreeSet<_> = all.iter().map(|named| &named.name).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all.len(), metrics().count() - 1, "one name has two rows: hw.temperature");
    }

    #[test]
    fn no_label_of_a_metric_shares_an_attribute_with_another() {
        for metric in metrics() {
            let attributes: BTreeSet<_> = metric.labels.iter().map(|label| attribute(label)).collect();
            assert_eq!(attributes.len(), metric.labels.len(), "{}", metric.family);
        }
    }

    #[test]
    fn own_names_follow_the_rule() {
        let of = |family: &str| named(metrics().find(|metric| metric.family == family).unwrap());
        let named = |name: &'static str, unit, shape| Named { name: name.into(), unit, shape, fixed: NONE };
        let counter = Shape::Counter { is_since_start: true };
        assert_eq!(of("gpuprobe_calls"), named("gpuprobe.calls", "", counter));
        assert_eq!(of("gpuprobe_copy_bytes"), named("gpuprobe.copy_bytes", "By", counter));
        assert_eq!(of("gpuprobe_build"), named("gpuprobe.build_info", "", Shape::Gauge));
        assert_eq!(of("process_max_fds"), named("gpuprobe.process_max_fds", "", Shape::Gauge));
        let traffic = named("gpuprobe.gpu_traffic_bytes_per_second", "By/s", Shape::Gauge);
        assert_eq!(of("gpuprobe_gpu_traffic_bytes_per_second"), traffic);
        let replays = Shape::Counter { is_since_start: false };
        assert_eq!(of("gpuprobe_gpu_pcie_replays"), named("gpuprobe.gpu_pcie_replays", "", replays));
    }
}
