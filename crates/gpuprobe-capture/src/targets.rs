//! The processes that are watched, as another process can read them.

use libbpf_rs::{MapCore, MapHandle};

use crate::error::CaptureError;

/// The map of targets of some capture, held open: it stays when whoever made it is killed.
#[derive(Debug)]
pub struct TargetList {
    map: MapHandle,
}

impl TargetList {
    /// By the id that [`crate::Capture::targets_id`] gave.
    pub fn open(id: u32) -> Result<Self, CaptureError> {
        let map = MapHandle::from_map_id(id).map_err(CaptureError::bpf("open the map of targets"))?;
        Ok(Self { map })
    }

    /// The processes in it now.
    pub fn tgids(&self) -> Vec<u32> {
        self.map.keys().filter_map(|k| Some(u32::from_ne_bytes(*k.first_chunk()?))).collect()
    }
}
