//! Tensors at the end of a recording.

use serde::{Deserialize, Serialize};

use crate::ids::Tgid;
use crate::memory_by_site::MemoryBySite;

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
    /// Device memory that the framework had reserved for tensors.
    pub reserved_bytes: u64,
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

impl TensorSummary {
    /// The most rows by process and GPU, because a line of a trace must not be too long to read.
    pub const MOST_ROWS: usize = 100;

    /// From these rows in any order.
    pub fn new(mut gpus: Vec<TensorUse>, by_site: MemoryBySite) -> Self {
        gpus.sort_by(|a, b| (b.reserved_bytes, a.pid, a.gpu).cmp(&(a.reserved_bytes, b.pid, b.gpu)));
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
            reserved_bytes: n.into(),
        };
        let mut all = TensorSummary::new((0..150).map(row).collect(), MemoryBySite::default());
        assert_eq!((all.gpus.len(), all.gpus[0].reserved_bytes), (TensorSummary::MOST_ROWS, 149));
        all.retain(|pid| pid == Tgid(149));
        assert_eq!((all.gpus.len(), all.is_empty()), (1, false));
        assert!(TensorSummary::default().is_empty());
    }
}
