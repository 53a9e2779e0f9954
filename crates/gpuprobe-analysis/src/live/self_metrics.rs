//! What gpuprobe itself takes up, and what its endpoint has answered. Others read these numbers and fill them in.

use serde::Serialize;

/// The process that watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnProcess {
    /// Time on CPUs, of all its threads, in user space and in the kernel.
    pub cpu_ns: u64,
    /// Memory in use.
    pub resident_bytes: u64,
    /// Addresses in use, with memory behind them or not.
    pub virtual_bytes: u64,
    /// Open descriptors.
    pub open_files: u64,
    /// How many it may open; `None` where there is no limit.
    pub most_files: Option<u64>,
    /// When it began, in nanoseconds since 1970.
    pub started_unix_ns: u64,
}

/// What the endpoint did, since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Requests that came whole, by the status of their answer.
    pub requests: Vec<Answered>,
    /// Connections that were cut or turned away, every reason once; empty where there is no endpoint.
    pub refused: Vec<Refused>,
}

/// Requests with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// The status.
    pub code: u16,
    /// How many.
    pub requests: u64,
}

/// Connections that ended for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Why, in a word of a fixed set.
    pub reason: &'static str,
    /// How many.
    pub connections: u64,
}
