//! Calls that have begun and not returned.

use gpuprobe_event::Call;
use gpuprobe_event::counters::PendingCall;

use super::Capture;
use crate::error::CaptureError;

impl Capture {
    /// Calls that are open now, of all threads, outer ones before those made inside them.
    pub fn open_calls(&mut self) -> Result<Vec<Call>, CaptureError> {
        self.ring.open_calls()
    }

    /// The outermost call of every thread, if it has been open for more than a second. This visits every thread of the
    /// host.
    pub fn pending_calls(&self) -> Result<Vec<PendingCall>, CaptureError> {
        self.tables.pending_calls(self.clock)
    }
}
