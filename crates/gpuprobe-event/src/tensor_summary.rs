//! Tensors at the end of a recording.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::ids::Tgid;
use crate::memory_by_site::MemoryBySite;

/// Where the figures of tensors come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TensorSource {
    /// The framework reports its tensors.
    #[default]
    #[serde(rename = "reports")]
    Reports,
    /// The framework reports nothing, because each tensor is one allocation of the CUDA driver's own pool.
    #[serde(rename = "cudaMallocAsync")]
    CudaMallocAsync,
}

impl TensorSource {
    /// The word in metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reports => "reports",
            Self::CudaMallocAsync => "cudaMallocAsync",
        }
    }

    fn is_reports(&self) -> bool {
        *self == Self::Reports
    }
}

/// Tensors of one process on one GPU when it exited, or at the end of the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorUse {
    pub pid: Tgid,
    pub process: String,
    /// The GPU by the process's number.
    pub gpu: Option<u8>,
    /// Live tensors whose allocation was observed.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of all live tensors, by the framework's own account.
    pub in_use_bytes: u64,
    /// Device memory that the framework had reserved for tensors, if it reports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// The part of it that is free, but in segments with live tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragmented_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "TensorSource::is_reports")]
    pub source: TensorSource,
}

/// Tensors at the end of a recording, or when processes exited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSummary {
    /// By process and GPU, the most reserved bytes first.
    pub gpus: Vec<TensorUse>,
    /// Live tensors by call site.
    #[serde(default, skip_serializing_if = "MemoryBySite::is_empty")]
    pub by_site: MemoryBySite,
}

impl TensorUse {
    /// What is reserved and not in use.
    pub fn cached_bytes(&self) -> Option<u64> {
        Some(self.reserved_bytes?.saturating_sub(self.in_use_bytes))
    }

    /// What is reserved or, if that is not known, in use.
    fn known_bytes(&self) -> u64 {
        self.reserved_bytes.unwrap_or(self.in_use_bytes)
    }
}

impl TensorSummary {
    /// The most rows by process and GPU, because a line of a trace must not be too long to read.
    pub const MOST_ROWS: usize = 100;

    /// From these rows in any order.
    pub fn new(mut gpus: Vec<TensorUse>, by_site: MemoryBySite) -> Self {
        gpus.sort_by_key(|of| (Reverse(of.known_bytes()), of.pid, of.gpu));
        gpus.truncate(Self::MOST_ROWS);
        Self { gpus, by_site }
    }

    /// Whether no framework reported tensors.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.by_site.is_empty()
    }

    /// Removes other processes. Call sites that are not listed have no pid.
    pub fn retain(&mut self, has_pid: impl Fn(Tgid) -> bool) {
        self.gpus.retain(|gpu| has_pid(gpu.pid));
        self.by_site.sites.retain(|site| has_pid(site.pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_with_most_reserved_bytes_come_first_and_are_bounded() {
        let row = |n: u32| TensorUse {
            pid: Tgid(n),
            process: "p".to_owned(),
            gpu: Some(0),
            tensors: 1,
            bytes: 1,
            in_use_bytes: 1,
            reserved_bytes: Some(n.into()),
            fragmented_bytes: None,
            source: TensorSource::Reports,
        };
        let mut all = TensorSummary::new((0..150).map(row).collect(), MemoryBySite::default());
        assert_eq!((all.gpus.len(), all.gpus[0].reserved_bytes), (TensorSummary::MOST_ROWS, Some(149)));
        all.retain(|pid| pid == Tgid(149));
        assert_eq!((all.gpus.len(), all.is_empty()), (1, false));
        assert!(TensorSummary::default().is_empty());
    }

    #[test]
    fn rows_of_older_traces_can_be_read_and_rows_of_a_framework_look_the_same() {
        let old =
            r#"{"pid":7,"process":"p","gpu":0,"tensors":1,"bytes":2,"in_use_bytes":3,"reserved_bytes":4}"#;
        let read: TensorUse = serde_json::from_str(old).unwrap();
        assert_eq!((read.reserved_bytes, read.cached_bytes()), (Some(4), Some(1)));
        assert_eq!((read.fragmented_bytes, read.source), (None, TensorSource::Reports));
        assert_eq!(serde_json::to_string(&read).unwrap(), old);
        let other = TensorUse { reserved_bytes: None, source: TensorSource::CudaMallocAsync, ..read };
        let text = serde_json::to_string(&other).unwrap();
        assert!(text.ends_with(r#""in_use_bytes":3,"source":"cudaMallocAsync"}"#), "{text}");
        assert_eq!(serde_json::from_str::<TensorUse>(&text).unwrap(), other);
    }
}
