//! The number of a process in its job.

use serde::Serialize;

/// The number of a process among those of its job, from its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// The variable that has it: `RANK`, `OMPI_COMM_WORLD_RANK`, `SLURM_PROCID` or `LOCAL_RANK`.
    pub variable: String,
    pub number: u32,
}

impl Rank {
    /// Whether it is the number on the host only, which other hosts have, too.
    pub fn is_local(&self) -> bool {
        self.variable.contains("LOCAL")
    }
}
