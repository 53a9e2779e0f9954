//! What NCCL itself says about a job.

use serde::Serialize;

/// The answer of a RAS service of NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NcclStatus {
    /// Where the service listens.
    pub address: String,
    /// Its lines, without control characters.
    pub text: String,
    /// The end is missing: the answer was too long, or took too long.
    pub is_cut: bool,
}
