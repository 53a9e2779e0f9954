//! A framework ran out of memory on a GPU.

use std::sync::Arc;

use serde::Serialize;

use crate::ids::{SiteId, Tgid, Tid};

/// An allocation of a tensor for which a GPU had no room, with all figures that are known of that moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutOfMemoryEvent {
    /// Unique in its recording.
    pub id: u64,
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    pub tgid: Tgid,
    pub tid: Tid,
    pub process: Arc<str>,
    /// The GPU by the process's number.
    pub gpu: Option<u8>,
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes of live tensors on that GPU, by the framework's own account.
    pub in_use_bytes: u64,
    /// Device memory that the framework had reserved there.
    pub reserved_bytes: u64,
    /// Free device memory of the GPU, if NVML was read.
    pub free_bytes: Option<u64>,
    /// The call site of the allocation, until its name is known.
    #[serde(skip)]
    pub site: SiteId,
    /// The name of the call site; empty if its stack is not known.
    pub call_site: Arc<str>,
    /// The call sites with most bytes of live tensors in the process, the largest first.
    pub largest: Vec<TensorHolder>,
    /// Other processes on the GPU, if NVML was read.
    pub others: Vec<GpuHolder>,
}

impl OutOfMemoryEvent {
    /// The most call sites that are listed.
    pub const MOST_HOLDERS: usize = 10;
}

/// Live tensors of a call site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorHolder {
    pub call_site: Arc<str>,
    pub tensors: u64,
    pub bytes: u64,
}

/// Another process with memory on the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuHolder {
    pub tgid: Tgid,
    pub process: Arc<str>,
    pub bytes: u64,
}

#[cfg(test)]
impl OutOfMemoryEvent {
    /// An event with every field.
    pub(crate) fn sample() -> Self {
        let holder = |bytes| TensorHolder { call_site: Arc::from("keep (train.py:3)"), tensors: 2, bytes };
        Self {
            id: 20,
            at_ns: 7,
            tgid: Tgid(100),
            tid: Tid(101),
            process: Arc::from("python"),
            gpu: Some(1),
            requested_bytes: 1 << 40,
            in_use_bytes: 3,
            reserved_bytes: 4,
            free_bytes: Some(5),
            site: SiteId::UNKNOWN,
            call_site: Arc::from("step (train.py:9)"),
            largest: vec![holder(2), holder(1)],
            others: vec![GpuHolder { tgid: Tgid(8), process: Arc::from("other"), bytes: 6 }],
        }
    }
}
