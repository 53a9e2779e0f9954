//! The process of a table row, and the removal of rows by process.

use std::collections::HashSet;

use gpuprobe_event::Tgid;
use gpuprobe_event::counters::ProcessKey;
use libbpf_rs::{Map, MapCore};

use super::map_io;
use crate::error::CaptureError;
use crate::wire::{
    Wire, from_bytes, gp_command_key, gp_context_key, gp_copy_key, gp_count_key, gp_failure_key,
    gp_launch_key, gp_live_key, gp_physical, gp_process_key, gp_range_key, gp_site_key,
};

pub(crate) fn process_of(tgid: u32, instance: u64) -> ProcessKey {
    ProcessKey { tgid: Tgid(tgid), instance }
}

/// Removes the rows of exited processes from a table whose keys contain the process, in one pass. Returns how many
/// there were.
pub(crate) fn remove_of<K: HasProcess>(
    map: &impl MapCore,
    exited: &HashSet<ProcessKey>,
) -> Result<usize, CaptureError> {
    remove(map, |key, _| exited.contains(&from_bytes::<K>(key).process()))
}

/// Removes the physical memory of exited processes: its rows contain the process, the keys do not.
pub(crate) fn remove_physical(map: &Map<'_>, exited: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
    remove(map, |_, value| {
        let row: gp_physical = from_bytes(value);
        exited.contains(&process_of(row.tgid, row.instance))
    })
}

fn remove(map: &impl MapCore, should_remove: impl Fn(&[u8], &[u8]) -> bool) -> Result<usize, CaptureError> {
    let (mut keys, mut count) = (Vec::new(), 0);
    map_io::each_entry(map, |key, value| {
        if should_remove(key, value) {
            keys.extend_from_slice(key);
            count += 1;
        }
    })?;
    map_io::delete_all(map, &keys)?;
    Ok(count)
}

/// A key that contains a process.
pub(crate) trait HasProcess: Wire {
    fn process(&self) -> ProcessKey;
}

impl HasProcess for gp_live_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_site_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_count_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_failure_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_process_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_context_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_launch_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_command_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_copy_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}

impl HasProcess for gp_range_key {
    fn process(&self) -> ProcessKey {
        process_of(self.tgid, self.instance)
    }
}
