//! A probe point in a file, and what a probe there costs.

/// A probe point in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePoint {
    /// The file offset of the probe.
    pub offset: u64,
    /// The file offset of the function's first instruction.
    pub entry: u64,
    pub cost: ProbeCost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeCost {
    /// About 1 us for an entry and return pair.
    Emulated,
    /// About 6 us in a virtual machine.
    SingleStepped,
}
