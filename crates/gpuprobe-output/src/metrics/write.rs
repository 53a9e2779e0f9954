//! Metrics in the two text formats. They differ in the names of families, in units, in kinds and in the end mark.

use std::fmt::{Arguments, Write};

use super::{Distribution, Kind, Metric, Samples, Value};

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// OpenMetrics text 1.0.
    OpenMetrics,
}

impl Format {
    /// What HTTP calls it.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Upper bounds of the buckets that are written, as powers of two nanoseconds: 1 us to 1 s by factors of four. All
/// 32 of the kernel's buckets for every function of every process would be more than most servers want to keep.
const BOUNDS: [usize; 11] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];

/// One metric with all its series; nothing where it has none.
pub(super) fn metric(out: &mut String, metric: &Metric, samples: &Samples, format: Format) {
    if samples.series.is_empty() {
        return;
    }
    head(out, metric, format);
    for (labels, value) in &samples.series {
        match value {
            Value::Decimal { n, places } => {
                let (name, labels) = (sample_name(metric), label_set(metric, labels, None));
                put(out, format_args!("{name}{labels} {}\n", decimal(*n, *places)));
            }
            Value::Histogram(distribution) => histogram(out, metric, labels, distribution),
        }
    }
}

/// The lines that say what a metric is. OpenMetrics names the family; the older format knows only sample names.
fn head(out: &mut String, metric: &Metric, format: Format) {
    let (name, kind) = match (format, metric.kind) {
        (Format::OpenMetrics, kind) => (metric.family.to_owned(), kind),
        (Format::Prometheus, Kind::Info) => (sample_name(metric), Kind::Gauge),
        (Format::Prometheus, kind) => (sample_name(metric), kind),
    };
    let word = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Info => "info",
    };
    put(out, format_args!("# HELP {name} {}\n# TYPE {name} {word}\n", metric.help));
    if let (Format::OpenMetrics, Some(unit)) = (format, metric.unit) {
        put(out, format_args!("# UNIT {name} {unit}\n"));
    }
}

fn sample_name(metric: &Metric) -> String {
    let suffix = match metric.kind {
        Kind::Counter => "_total",
        Kind::Info => "_info",
        Kind::Gauge | Kind::Histogram => "",
    };
    format!("{}{suffix}", metric.family)
}

fn histogram(out: &mut String, metric: &Metric, labels: &[String], distribution: &Distribution) {
    let family = metric.family;
    let mut bucket = |le: &str, n: u64| {
        put(out, format_args!("{family}_bucket{} {n}\n", label_set(metric, labels, Some(le))));
    };
    for bound in BOUNDS {
        // bucket i of the kernel ends at 2^(i+1) ns, so those below `bound` lie under 2^bound ns
        let below = distribution.latency[..bound].iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
        bucket(&((1_u64 << bound) as f64 / 1e9).to_string(), below);
    }
    bucket("+Inf", distribution.count);
    let labels = label_set(metric, labels, None);
    put(out, format_args!("{family}_sum{labels} {}\n", decimal(distribution.sum_ns, 9)));
    put(out, format_args!("{family}_count{labels} {}\n", distribution.count));
}

/// A number to the last digit of so many decimal places.
fn decimal(n: u64, places: usize) -> String {
    let digits = format!("{n:0width$}", width = places + 1);
    match digits.split_at(digits.len() - places) {
        (whole, "") => whole.to_owned(),
        (whole, rest) => format!("{whole}.{rest}"),
    }
}

/// Labels that most have no value for: they are left out then, which means the same.
const LEFT_OUT: [&str; 3] = ["container", "numbering", "uuid"];

/// `{name="value",...}`; nothing where there are none.
fn label_set(metric: &Metric, values: &[String], le: Option<&str>) -> String {
    let mut out = String::new();
    let own = metric.labels.iter().copied().zip(values.iter().map(String::as_str));
    let own = own.filter(|(name, value)| !value.is_empty() || !LEFT_OUT.contains(name));
    for (i, (name, value)) in own.chain(le.map(|le| ("le", le))).enumerate() {
        let before = if i == 0 { "{" } else { "," };
        put(&mut out, format_args!("{before}{name}=\""));
        escape(&mut out, value);
        out.push('"');
    }
    if !out.is_empty() {
        out.push('}');
    }
    out
}

/// A label's value without control characters. The formats allow them, but a NUL ends the text for some readers, so
/// one process could hide all the others by its name. Line feeds have an escape of their own and stay.
pub(super) fn clean(value: &str) -> String {
    value.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The three characters that both formats want escaped.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// Writing into a `String` cannot fail.
fn put(out: &mut String, text: Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok());
}
