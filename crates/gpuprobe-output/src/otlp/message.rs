//! The parts of OTLP messages that metrics and logs share, and the field numbers of its protobuf definitions.

use crate::proto::{self, begin, end, text, uint};

/// Field numbers of opentelemetry.proto.metrics.v1.
pub(super) mod metric {
    pub(crate) const NAME: u32 = 1;
    pub(crate) const DESCRIPTION: u32 = 2;
    pub(crate) const UNIT: u32 = 3;
    pub(crate) const GAUGE: u32 = 5;
    pub(crate) const SUM: u32 = 7;
    pub(crate) const HISTOGRAM: u32 = 9;
    /// The same in Gauge, Sum and Histogram.
    pub(crate) const DATA_POINTS: u32 = 1;
    pub(crate) const TEMPORALITY: u32 = 2;
    pub(crate) const IS_MONOTONIC: u32 = 3;
    pub(crate) const DELTA: u64 = 1;
    pub(crate) const CUMULATIVE: u64 = 2;
}

/// Fields of NumberDataPoint and HistogramDataPoint. The first two are the same in both.
pub(super) mod point {
    pub(crate) const START: u32 = 2;
    pub(crate) const TIME: u32 = 3;
    pub(crate) const AS_DOUBLE: u32 = 4;
    pub(crate) const AS_INT: u32 = 6;
    pub(crate) const ATTRIBUTES: u32 = 7;
    pub(crate) const COUNT: u32 = 4;
    pub(crate) const SUM: u32 = 5;
    pub(crate) const BUCKET_COUNTS: u32 = 6;
    pub(crate) const BOUNDS: u32 = 7;
    pub(crate) const HISTOGRAM_ATTRIBUTES: u32 = 9;
}

/// Fields of LogRecord.
pub(super) mod record {
    pub(crate) const TIME: u32 = 1;
    pub(crate) const SEVERITY: u32 = 2;
    pub(crate) const SEVERITY_TEXT: u32 = 3;
    pub(crate) const BODY: u32 = 5;
    pub(crate) const ATTRIBUTES: u32 = 6;
    pub(crate) const OBSERVED: u32 = 11;
    pub(crate) const EVENT_NAME: u32 = 12;
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute<'a> {
    Text(&'a str),
    Integer(u64),
}

/// Appends a KeyValue.
pub(super) fn key_value(out: &mut Vec<u8>, field: u32, key: &str, value: Attribute<'_>) {
    let pair = begin(out, field);
    text(out, 1, key);
    any_value(out, 2, value);
    end(out, pair);
}

/// Appends an AnyValue.
pub(super) fn any_value(out: &mut Vec<u8>, field: u32, value: Attribute<'_>) {
    let any = begin(out, field);
    match value {
        Attribute::Text(value) => text(out, 1, value),
        Attribute::Integer(value) => uint(out, 3, value),
    }
    end(out, any);
}

/// The attributes of the resource that all points and records are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource(Vec<(String, String)>);

impl Resource {
    /// Attributes by name. If a name is given twice, the later value counts.
    pub fn new(attributes: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut all: Vec<(String, String)> = Vec::new();
        for (key, value) in attributes {
            match all.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => all.push((key, value)),
            }
        }
        all.retain(|(_, value)| !value.is_empty());
        Self(all)
    }

    /// A request of one resource and one scope with these metrics or records: both kinds of requests have the same
    /// field numbers down to them.
    pub(super) fn request(&self, items: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(items.len() + 1024);
        let of_resource = begin(&mut out, 1);
        let resource = begin(&mut out, 1);
        for (key, value) in &self.0 {
            key_value(&mut out, 1, key, Attribute::Text(value));
        }
        end(&mut out, resource);
        let of_scope = begin(&mut out, 2);
        let scope = begin(&mut out, 1);
        text(&mut out, 1, "gpuprobe");
        text(&mut out, 2, env!("CARGO_PKG_VERSION"));
        end(&mut out, scope);
        out.extend_from_slice(items);
        end(&mut out, of_scope);
        end(&mut out, of_resource);
        out
    }
}

/// Appends a metric or a record to those of a scope.
pub(super) fn item(out: &mut Vec<u8>, content: &[u8]) {
    proto::bytes(out, 2, content);
}
