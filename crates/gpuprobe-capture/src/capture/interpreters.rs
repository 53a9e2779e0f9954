//! The Python interpreters of observed processes.

use gpuprobe_event::Tgid;
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::wire::{MapName, as_bytes};

impl Capture {
    /// Writes where new interpreters keep their frames. Without that their frames are not walked.
    pub(super) fn write_pythons(&mut self) {
        let changes = self.ring.decoder.take_python_changes();
        self.unsupported_python.extend(changes.unsupported);
        let Ok(map) = self.tables.map(MapName::Pythons) else { return };
        for (tgid, python) in changes.interpreters {
            let key = tgid.0.to_ne_bytes();
            let written = match python {
                Some(python) => map.update(&key, as_bytes(&python), MapFlags::ANY),
                None => map.delete(&key).or(Ok(())),
            };
            self.refused_pythons += u64::from(written.is_err());
        }
    }

    /// Processes whose Python frames cannot be read, and why; each is returned once.
    pub fn take_unsupported_python(&mut self) -> Vec<(Tgid, String)> {
        std::mem::take(&mut self.unsupported_python)
    }
}
