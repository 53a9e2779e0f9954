//! Size limits of a trace.

/// Number of segments of a trace with a size limit.
const SEGMENTS: u64 = 4;

/// Size limits of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// All segments together.
    pub(crate) total: Option<u64>,
    /// One segment.
    pub(crate) segment: Option<u64>,
    /// The user did not ask for `total`: it is dropped if the trace cannot be split into segments.
    pub(crate) is_default: bool,
    /// The trace is not split: the recording ends when it has reached `total`.
    pub(crate) in_one_file: bool,
}

impl Limits {
    /// The limit of one segment; `None` if the trace is not split.
    pub(super) fn segment(self) -> Option<u64> {
        if self.in_one_file {
            return None;
        }
        let most = self.total.map(|total| total / 2);
        let segment = self.segment.or(self.total.map(|total| total / SEGMENTS));
        // there must be room for one complete segment and the one being written
        segment.map(|segment| most.map_or(segment, |most| segment.min(most)))
    }
}
