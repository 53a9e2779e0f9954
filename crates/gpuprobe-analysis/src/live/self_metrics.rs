//! The resources of gpuprobe itself, the requests to its endpoint, what it pushes and what it records. The caller fills these in.

use serde::Serialize;

/// The resources of the gpuprobe process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SelfMetrics {
    /// CPU time of all its threads, user and system.
    pub cpu_ns: u64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// The limit of open file descriptors; `None` if there is none.
    pub most_files: Option<u64>,
    /// When it started, in nanoseconds since 1970.
    pub started_unix_ns: u64,
}

/// Requests to the endpoint since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Complete requests by status.
    pub requests: Vec<Answered>,
    /// Connections that were closed or rejected, every reason once; empty if there is no endpoint.
    pub refused: Vec<Refused>,
}

/// Requests with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Answered {
    pub code: u16,
    pub requests: u64,
}

/// Connections that were closed for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// One of a fixed set of words.
    pub reason: &'static str,
    pub connections: u64,
}

/// What was pushed to a receiver of OTLP since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// Every signal and result once.
    pub requests: Vec<PushedRequests>,
    /// Data points and log records that were lost, every signal and cause once.
    pub dropped: Vec<PushedItems>,
    /// Those that the receiver took, every signal once.
    pub delivered: Vec<PushedItems>,
    /// Those that wait in the queue now, every signal once.
    pub waiting: Vec<PushedItems>,
}

/// Requests with one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PushedRequests {
    /// `metrics` or `logs`.
    pub signal: &'static str,
    /// One of a fixed set of words.
    pub result: &'static str,
    pub requests: u64,
}

/// Data points of metrics, or log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PushedItems {
    /// `metrics` or `logs`.
    pub signal: &'static str,
    /// Why they were lost, one of a fixed set of words; empty if they were not.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub cause: &'static str,
    pub items: u64,
}

/// Recordings on demand since the start, and those in the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recordings {
    pub made: u64,
    pub failed: u64,
    /// Deleted because the directory had reached its size limit.
    pub deleted: u64,
    /// The size of all recordings in the directory.
    pub stored_bytes: u64,
}
