//! Writes metrics in the two text formats. They differ in family names, units, types and the end mark.

use std::sync::LazyLock;

use super::labels::put;
use super::metric::{Kind, Metric};
use super::samples::{Distribution, Samples, Series};

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// OpenMetrics text 1.0.
    OpenMetrics,
}

impl Format {
    /// The HTTP content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Upper bounds of the written buckets as powers of two nanoseconds: 1 us to 1 s in factors of four. All 32 buckets of
/// the BPF tables, for every function of every process, would be more than most Prometheus servers can keep.
pub(crate) const BOUNDS: [usize; 11] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
/// One bucket below each bound, and one above all of them.
pub(crate) const BUCKETS: usize = BOUNDS.len() + 1;
/// The bounds in seconds, as text.
static LE: LazyLock<[String; BOUNDS.len()]> =
    LazyLock::new(|| BOUNDS.map(|bound| ((1_u64 << bound) as f64 / 1e9).to_string()));

/// Writes a metric with all its series; nothing if it has none.
pub(super) fn metric(out: &mut String, metric: &Metric, samples: &Samples, format: Format) {
    if samples.is_empty() {
        return;
    }
    head(out, metric, format);
    let name = sample_name(metric);
    let mut writer = Writer { out, line: String::new(), digits: itoa::Buffer::new() };
    for (labels, value) in samples.series() {
        match value {
            Series::Decimal(n, places) => {
                writer.begin(&name, "", labels);
                writer.end(n, places);
            }
            Series::Histogram(distribution) => writer.histogram(metric.family, labels, distribution),
        }
    }
}

/// The HELP, TYPE and UNIT lines. OpenMetrics uses the family name, the older format only sample names.
fn head(out: &mut String, metric: &Metric, format: Format) {
    let (name, kind) = match (format, metric.kind) {
        (Format::OpenMetrics, kind) => (metric.family.to_owned(), kind),
        (Format::Prometheus, Kind::Info) => (sample_name(metric), Kind::Gauge),
        (Format::Prometheus, kind) => (sample_name(metric), kind),
    };
    put(out, format_args!("# HELP {name} {}\n# TYPE {name} {}\n", metric.help, kind_word(kind)));
    if let (Format::OpenMetrics, Some(unit)) = (format, metric.unit) {
        put(out, format_args!("# UNIT {name} {unit}\n"));
    }
}

/// How many values of a distribution are between two bounds each.
pub(crate) fn bucket_counts(distribution: &Distribution) -> [u64; BUCKETS] {
    let (mut rest, mut from) = (distribution.latency.as_slice(), 0);
    let mut bounds = BOUNDS.into_iter();
    std::array::from_fn(|_| {
        // bucket i of the BPF table ends at 2^(i+1) ns, so buckets below a bound are under 2^bound ns
        let bound = bounds.next().unwrap_or(distribution.latency.len());
        let (these, after) = rest.split_at((bound - from).min(rest.len()));
        (rest, from) = (after, bound);
        these.iter().fold(0_u64, |sum, n| sum.saturating_add(*n))
    })
}

pub(super) fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Info => "info",
    }
}

pub(crate) fn sample_name(metric: &Metric) -> String {
    let suffix = match metric.kind {
        Kind::Counter => "_total",
        Kind::Info => "_info",
        Kind::Gauge | Kind::Histogram => "",
    };
    format!("{}{suffix}", metric.family)
}

/// Writes samples. There may be hundreds of thousands, so the common part of lines is formatted once.
struct Writer<'a> {
    out: &'a mut String,
    /// A line of a histogram up to the bound of its bucket.
    line: String,
    digits: itoa::Buffer,
}

impl Writer<'_> {
    /// A line up to its value.
    fn begin(&mut self, name: &str, suffix: &str, labels: &str) {
        self.out.push_str(name);
        self.out.push_str(suffix);
        if !labels.is_empty() {
            self.out.push('{');
            self.out.push_str(labels);
            self.out.push('}');
        }
        self.out.push(' ');
    }

    /// A number with its decimal places.
    fn end(&mut self, n: u64, places: u8) {
        let factor = 10_u64.pow(places.into());
        self.out.push_str(self.digits.format(n / factor));
        if places > 0 {
            put(self.out, format_args!(".{:0width$}", n % factor, width = usize::from(places)));
        }
        self.out.push('\n');
    }

    fn histogram(&mut self, family: &str, labels: &str, distribution: &Distribution) {
        self.line.clear();
        let comma = if labels.is_empty() { "" } else { "," };
        put(&mut self.line, format_args!("{family}_bucket{{{labels}{comma}le=\""));
        let mut below = 0_u64;
        for (count, le) in bucket_counts(distribution).into_iter().zip(LE.iter()) {
            below = below.saturating_add(count);
            self.bucket(le, below);
        }
        self.bucket("+Inf", distribution.count);
        self.begin(family, "_sum", labels);
        self.end(distribution.sum_ns, 9);
        self.begin(family, "_count", labels);
        self.end(distribution.count, 0);
    }

    fn bucket(&mut self, le: &str, n: u64) {
        self.out.push_str(&self.line);
        self.out.push_str(le);
        self.out.push_str("\"} ");
        self.end(n, 0);
    }
}
