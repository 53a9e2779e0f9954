//! Requests that wait to be sent.

use bytes::Bytes;

use crate::http::gzip;

/// What a request contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Metrics,
    Logs,
}

impl Signal {
    pub(super) const ALL: [Self; 2] = [Self::Metrics, Self::Logs];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// A request, compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) signal: Signal,
    pub(super) body: Bytes,
    /// Data points or log records in it.
    pub(super) items: u64,
}

impl Payload {
    pub(super) fn new(signal: Signal, message: &[u8], items: u64) -> Self {
        Self { signal, body: gzip(message), items }
    }
}
