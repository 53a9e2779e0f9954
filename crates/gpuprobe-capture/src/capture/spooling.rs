//! Calls that are decoded later, because they come faster than they can be decoded.

use super::Capture;
use crate::error::CaptureError;
use crate::ring::spool_file::SpoolFile;

impl Capture {
    /// Spools records from now on while they come faster than they are taken: in memory, and in the file if there is one.
    pub fn spool_to(&mut self, file: Option<SpoolFile>) {
        self.ring.spool_to(file);
    }

    /// How many calls wait in the spool; `None` if nothing is spooled.
    pub fn spooled_calls(&self) -> Option<u64> {
        self.ring.spooled_calls()
    }

    /// Discards what is spooled, and counts it as lost.
    pub fn discard_spooled(&mut self) {
        self.ring.discard_spooled();
    }

    /// Ends observation at one instant, and removes the probes. If calls are spooled, they are to be taken next, before
    /// [`Capture::detach`], which keeps all that it takes in memory.
    pub fn detach_probes(&mut self) -> Result<u64, CaptureError> {
        let at_ns = self.stop()?;
        self.attacher.detach_probes();
        Ok(at_ns)
    }
}
