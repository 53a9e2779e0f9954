//! What probes collect.

/// What the probes of a function collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Counts in the kernel: nothing can be lost, at a fixed cost.
    Count,
    /// One record for each call.
    Stream,
    /// Both, so that they can be compared.
    CountAndStream,
    /// Counts failures that are not caused by a failed inner call.
    Failures,
    /// Counts calls at their entry, and nothing else. Without a return probe this costs a third less.
    EntryCount,
    /// Accounts for the tensors that a framework reports at the entry of its function, and nothing else.
    Tensors,
    /// State-only probe: collects only what other calls need, such as kernel names, the current context and captures.
    StateOnly,
}

/// Which GPU operations are counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CountedOps {
    pub(crate) launches: bool,
    pub(crate) copies: bool,
    /// System calls on NVIDIA device files.
    pub(crate) device_calls: bool,
    /// In rows of tables.
    pub(crate) rows: bool,
    /// The records of calls are annotated with the outcome of their GPU operation.
    pub(crate) annotate_records: bool,
    /// Streamed launches, copies and waits have a call site.
    pub(crate) call_sites: bool,
    /// Not every return of a launch is probed.
    pub(crate) samples_launch_returns: bool,
}

impl CountedOps {
    /// Whether launches are counted in rows.
    pub(crate) fn launch_rows(self) -> bool {
        self.launches && self.rows
    }
}
