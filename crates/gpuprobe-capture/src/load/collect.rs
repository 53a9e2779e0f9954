//! What probes collect.

/// What the probes of a function do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Count in the kernel: nothing to lose, a fixed cost.
    Count,
    /// One record a call.
    Stream,
    /// Both, so that they can be compared.
    CountAndStream,
    /// Count failures that no call inside is the cause of.
    Failures,
    /// Count calls as they begin, and nothing else: there is no return probe, which saves a third.
    Entries,
    /// Only what other calls need: names of kernels, which context is current, what is captured.
    Aside,
}

/// Which work is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountedOps {
    pub(crate) launches: bool,
    pub(crate) copies: bool,
    /// What is asked of the driver.
    pub(crate) device_calls: bool,
    /// In rows of tables.
    pub(crate) rows: bool,
    /// The records of calls tell what became of their work.
    pub(crate) annotate_records: bool,
}

impl CountedOps {
    /// Whether there are rows of launches.
    pub(crate) fn launch_rows(self) -> bool {
        self.launches && self.rows
    }
}
