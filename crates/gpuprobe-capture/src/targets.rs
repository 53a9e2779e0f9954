//! The processes that are watched, for a process that outlives the one that watches them.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::CaptureError;

/// The maps of some capture that say who is held, kept open: they stay when whoever made them is killed.
#[derive(Debug)]
pub struct TargetList {
    targets: MapHandle,
    held: MapHandle,
}

/// The ids of these maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetIds {
    /// Of the processes that are watched.
    pub targets: u32,
    /// Of the answers to those that wait.
    pub held: u32,
}

impl TargetList {
    /// By the ids that [`crate::Capture::target_ids`] gave.
    pub fn open(ids: TargetIds) -> Result<Self, CaptureError> {
        let open = |id| MapHandle::from_map_id(id).map_err(CaptureError::bpf("open the map of targets"));
        Ok(Self { targets: open(ids.targets)?, held: open(ids.held)? })
    }

    /// The processes that are watched.
    pub fn tgids(&self) -> Vec<u32> {
        self.targets.keys().filter_map(|k| Some(u32::from_ne_bytes(*k.first_chunk()?))).collect()
    }

    /// Answers every question of a process, those to come as well.
    pub fn let_go(&self, tgid: u32) {
        // it may end in this moment, and its row with it
        self.held.update(&tgid.to_ne_bytes(), &u64::MAX.to_ne_bytes(), MapFlags::ANY).ok();
    }
}
