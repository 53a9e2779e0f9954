//! Writes a snapshot as requests of OTLP metrics.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_analysis::Snapshot;

use super::baselines::{Baselines, Buckets, Point, Temporality, Totals};
use super::label_text::pairs;
use super::message::{Attribute, Resource, item, key_value, metric, point};
use super::names::{Named, Shape, attribute, is_integer, named};
use super::payload::{Payload, Signal};
use crate::metrics::{BOUNDS, Metric, Samples, Series, SeriesPlan, each_metric};
use crate::proto::{self, begin, bytes, double, end, fixed64, text, uint};

/// Some receivers refuse requests of more than 4 MiB.
const MOST_BYTES: usize = 3 << 20;

/// The label of sums over series that have ended, and the labels that such sums do not have.
const ENDED: &str = "ended";
const NOT_IN_SUMS: [&str; 6] = [ENDED, "pid", "container_id", "container", "pod", "namespace"];

/// Writes snapshots as requests, and keeps what is needed for start times and differences.
#[derive(Debug)]
pub(super) struct MetricsWriter {
    resource: Resource,
    baselines: Baselines,
    /// A request is ended at this size.
    most_bytes: usize,
}

impl MetricsWriter {
    pub(super) fn new(resource: Resource, temporality: Temporality, start_ns: u64) -> Self {
        Self { resource, baselines: Baselines::new(temporality, start_ns), most_bytes: MOST_BYTES }
    }

    /// All metrics of a snapshot, as one or more requests.
    pub(super) fn write(&mut self, snapshot: &Snapshot, plan: &Arc<SeriesPlan>) -> Vec<Payload> {
        let now_ns = snapshot_ns(snapshot);
        self.baselines.begin(now_ns);
        let gpus = GpuIds::of(snapshot);
        let mut requests = Requests {
            resource: &self.resource,
            most_bytes: self.most_bytes,
            is_delta: self.baselines.temporality() == Temporality::Delta,
            metrics: Vec::new(),
            points: Vec::new(),
            counted: (0, 0),
            done: Vec::new(),
        };
        let mut current: Option<(Named, &'static Metric)> = None;
        each_metric(snapshot, plan, |metric, samples| {
            if samples.is_empty() {
                return;
            }
            let named = named(metric);
            // two metrics may have one name, and are then one message
            if let Some((before, first)) = current.take().filter(|(before, _)| before.name != named.name) {
                requests.end_metric(&before, first);
            }
            let series = AllSeries { metric, named: &named, samples, gpus: &gpus, now_ns };
            series.write(&mut self.baselines, &mut requests);
            current = Some((named, metric));
        });
        if let Some((before, first)) = current {
            requests.end_metric(&before, first);
        }
        self.baselines.end();
        requests.finish()
    }
}

/// The time of a snapshot, with the digits that /metrics shows.
pub(super) fn snapshot_ns(snapshot: &Snapshot) -> u64 {
    // converting a float to an integer saturates
    (snapshot.unix_seconds * 1e9) as u64
}

/// The requests of one snapshot while they are written.
struct Requests<'a> {
    resource: &'a Resource,
    most_bytes: usize,
    is_delta: bool,
    /// Finished metrics of the current request.
    metrics: Vec<u8>,
    /// Points of the current metric.
    points: Vec<u8>,
    /// Points in the finished metrics, and in the current one.
    counted: (u64, u64),
    done: Vec<Payload>,
}

impl Requests<'_> {
    /// Ends a point of a metric. Begins another request if this one is large.
    fn end_point(&mut self, named: &Named, metric: &Metric) {
        self.counted.1 += 1;
        if self.metrics.len() + self.points.len() > self.most_bytes {
            self.end_metric(named, metric);
            self.end_request();
        }
    }

    fn end_metric(&mut self, named: &Named, metric: &Metric) {
        if self.points.is_empty() {
            return;
        }
        let mut out = Vec::with_capacity(self.points.len() + 256);
        text(&mut out, metric::NAME, &named.name);
        text(&mut out, metric::DESCRIPTION, metric.help);
        if !named.unit.is_empty() {
            text(&mut out, metric::UNIT, named.unit);
        }
        let temporality = if self.is_delta { metric::DELTA } else { metric::CUMULATIVE };
        let data = begin(
            &mut out,
            match named.shape {
                Shape::Gauge => metric::GAUGE,
                Shape::Counter { .. } | Shape::UpDownCounter => metric::SUM,
                Shape::Histogram => metric::HISTOGRAM,
            },
        );
        out.append(&mut self.points);
        match named.shape {
            Shape::Gauge => {}
            Shape::Counter { .. } => {
                uint(&mut out, metric::TEMPORALITY, temporality);
                uint(&mut out, metric::IS_MONOTONIC, 1);
            }
            // what rises and falls is always a total, as in the SDKs
            Shape::UpDownCounter => uint(&mut out, metric::TEMPORALITY, metric::CUMULATIVE),
            Shape::Histogram => uint(&mut out, metric::TEMPORALITY, temporality),
        }
        end(&mut out, data);
        item(&mut self.metrics, &out);
        self.counted = (self.counted.0 + self.counted.1, 0);
    }

    fn end_request(&mut self) {
        if !self.metrics.is_empty() {
            let body = self.resource.request(&self.metrics);
            self.done.push(Payload::new(Signal::Metrics, &body, self.counted.0));
        }
        self.metrics.clear();
        self.counted.0 = 0;
    }

    fn finish(mut self) -> Vec<Payload> {
        self.end_request();
        self.done
    }
}

/// All series of a metric.
struct AllSeries<'a> {
    metric: &'static Metric,
    named: &'a Named,
    samples: &'a Samples,
    gpus: &'a GpuIds,
    now_ns: u64,
}

impl AllSeries<'_> {
    fn write(&self, baselines: &mut Baselines, requests: &mut Requests<'_>) {
        let of_ended = |labels: &str| pairs(labels).any(|(label, _)| label == ENDED);
        let has_ended = self.metric.labels.contains(&ENDED);
        let mut sums = Vec::new();
        for (labels, series) in self.samples.series() {
            if has_ended && of_ended(labels) {
                sums.push((labels, series));
                continue;
            }
            let family = self.metric.family;
            let totals = Totals::from(series);
            let point = match self.named.shape {
                // the start of a gauge is not used
                Shape::Gauge | Shape::UpDownCounter => Some(Point { start_ns: 0, totals }),
                Shape::Counter { is_since_start } => baselines.point(family, labels, totals, is_since_start),
                Shape::Histogram => baselines.point(family, labels, totals, true),
            };
            self.end_point(requests, labels, point, series);
        }
        if sums.is_empty() {
            return;
        }
        let labels = self.metric.labels.iter().copied().filter(|label| !NOT_IN_SUMS.contains(label));
        let gone = baselines.gone(self.metric.family, labels.collect());
        for (labels, series) in sums {
            let point = baselines.point_of_ended(self.metric.family, labels, Totals::from(series), &gone);
            self.end_point(requests, labels, point, series);
        }
    }

    fn end_point(&self, requests: &mut Requests<'_>, labels: &str, point: Option<Point>, of: Series<'_>) {
        let places = match of {
            Series::Decimal(_, places) => places,
            Series::Histogram(_) => 0,
        };
        if let Some(point) = point {
            self.point(&mut requests.points, labels, &point, places);
            requests.end_point(self.named, self.metric);
        }
    }

    fn point(&self, out: &mut Vec<u8>, labels: &str, of: &Point, places: u8) {
        let data = begin(out, metric::DATA_POINTS);
        if of.start_ns > 0 {
            fixed64(out, point::START, of.start_ns);
        }
        fixed64(out, point::TIME, self.now_ns);
        let attributes = match &of.totals {
            Totals::Number(n) => {
                number(out, *n, places);
                point::ATTRIBUTES
            }
            Totals::Histogram(buckets) => {
                histogram(out, buckets);
                point::HISTOGRAM_ATTRIBUTES
            }
        };
        self.attributes(out, attributes, labels);
        end(out, data);
    }

    fn attributes(&self, out: &mut Vec<u8>, field: u32, labels: &str) {
        for (key, value) in self.named.fixed {
            key_value(out, field, key, Attribute::Text(value));
        }
        let (mut gpu, mut is_state, mut has_id, mut is_own_number) = (None, false, false, false);
        for (label, value) in pairs(labels) {
            has_id |= label == "uuid";
            // only GPUs have these two labels
            is_state |= matches!(label, "uuid" | "name");
            is_own_number |= label == "numbering";
            if label == "gpu" {
                gpu = self.gpus.0.get(&*value);
            }
            if value.is_empty() {
                continue;
            }
            let key = attribute(label);
            let number = if is_integer(&key) { value.parse().ok() } else { None };
            key_value(out, field, &key, number.map_or(Attribute::Text(&value), Attribute::Integer));
        }
        if is_state {
            key_value(out, field, "hw.type", Attribute::Text("gpu"));
        }
        if let Some(id) = gpu.filter(|_| !has_id && !is_own_number) {
            key_value(out, field, "hw.id", Attribute::Text(id));
        }
    }
}

/// A number with decimal places: an integer if it has none.
fn number(out: &mut Vec<u8>, n: u64, places: u8) {
    if places == 0 && i64::try_from(n).is_ok() {
        fixed64(out, point::AS_INT, n);
    } else {
        double(out, point::AS_DOUBLE, n as f64 / 10_f64.powi(places.into()));
    }
}

fn histogram(out: &mut Vec<u8>, buckets: &Buckets) {
    // a 0 is not written, as everywhere in this format
    if buckets.count > 0 {
        fixed64(out, point::COUNT, buckets.count);
    }
    double(out, point::SUM, buckets.sum_ns as f64 / 1e9);
    let counts: Vec<u8> = buckets.counts.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes(out, point::BUCKET_COUNTS, &counts);
    proto::head(out, point::BOUNDS, BOUNDS.len() * 8);
    for bound in BOUNDS {
        out.extend_from_slice(&((1_u64 << bound) as f64 / 1e9).to_bits().to_le_bytes());
    }
}

/// UUIDs of the host's GPUs by number.
struct GpuIds(HashMap<String, String>);

impl GpuIds {
    fn of(snapshot: &Snapshot) -> Self {
        let id = |gpu: &gpuprobe_event::HostGpu| Some((gpu.index.to_string(), gpu.uuid?.to_string()));
        Self(snapshot.gpus.iter().filter_map(id).collect())
    }
}

#[cfg(test)]
#[path = "points_tests.rs"]
pub(super) mod tests;
