//! The resources of gpuprobe itself and the requests to its endpoint. The caller fills these in.

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
