//! Reads the tables of tensors.

use std::collections::HashSet;

use gpuprobe_event::counters::{Allocation, DeviceRange, LiveTotals, ProcessKey, TensorMemory};
use gpuprobe_event::{SiteId, Space, TensorSource};

use super::map_io;
use super::memory_tables::gpu;
use super::process_rows::{HasProcess, remove_of};
use super::table_reader::TableReader;
use crate::error::CaptureError;
use crate::wire::{MapName, gp_context_key, gp_live_key, gp_mapped, gp_tensor, gp_tensors};

impl TableReader {
    /// The tensors of every process, a row for each GPU.
    pub(crate) fn tensors(&self) -> Result<Vec<TensorMemory>, CaptureError> {
        if !self.has_tensors {
            return Ok(Vec::new());
        }
        let rows = map_io::entries(&self.map(MapName::TensorAccounts)?)?;
        let mut rows: Vec<_> = rows.into_iter().map(account).collect();
        rows.sort_unstable_by_key(|row| (row.process, row.gpu));
        Ok(rows)
    }

    /// Every live tensor.
    pub(crate) fn live_tensors(&self, site: impl Fn(u32) -> SiteId) -> Result<Vec<Allocation>, CaptureError> {
        if !self.has_tensors {
            return Ok(Vec::new());
        }
        let rows = map_io::entries(&self.map(MapName::Tensors)?)?;
        Ok(rows.into_iter().map(|row| tensor(row, &site)).collect())
    }

    /// The addresses of device memory: allocations, and mappings of physical memory.
    pub(crate) fn device_ranges(&self) -> Result<Vec<DeviceRange>, CaptureError> {
        if !self.has_tensors {
            return Ok(Vec::new());
        }
        let allocations = self.allocations(|_| SiteId::UNKNOWN)?.into_iter();
        let allocated = allocations
            .filter(|allocation| allocation.space == Space::Device)
            .map(|a| DeviceRange { process: a.process, start: a.ptr, bytes: a.bytes, is_mapping: false });
        let mapped = map_io::entries::<gp_live_key, gp_mapped>(&self.map(MapName::Mapped)?)?;
        let mapped = mapped.into_iter().map(|(key, row)| DeviceRange {
            process: key.process(),
            start: key.pointer,
            bytes: row.bytes,
            is_mapping: true,
        });
        Ok(allocated.chain(mapped).collect())
    }

    /// Removes the accounts of exited processes, and adds the processes that have live tensors.
    pub(crate) fn remove_tensors(
        &self,
        exited: &HashSet<ProcessKey>,
        with_live: &mut HashSet<ProcessKey>,
    ) -> Result<(), CaptureError> {
        let left = self.tensors()?.into_iter().filter(|row| row.live.live_allocations > 0);
        with_live.extend(left.map(|row| row.process).filter(|process| exited.contains(process)));
        if self.has_tensors {
            remove_of::<gp_context_key>(&self.map(MapName::TensorAccounts)?, exited)?;
        }
        Ok(())
    }

    /// Removes the live tensors of exited processes.
    pub(crate) fn release_tensors(&self, exited: &HashSet<ProcessKey>) -> Result<(), CaptureError> {
        if self.has_tensors {
            remove_of::<gp_live_key>(&self.map(MapName::Tensors)?, exited)?;
        }
        Ok(())
    }
}

fn account((key, row): (gp_context_key, gp_tensors)) -> TensorMemory {
    TensorMemory {
        process: key.process(),
        gpu: u32::try_from(key.id).ok().and_then(gpu),
        live: LiveTotals { live_bytes: row.live_bytes, live_allocations: row.live_tensors },
        allocations: row.allocations,
        allocated_bytes: row.allocated_bytes,
        frees: row.frees,
        unknown_frees: row.unknown_frees,
        replaced: row.replaced,
        in_use_bytes: row.in_use_bytes,
        reserved_bytes: Some(row.reserved_bytes),
        source: TensorSource::Reports,
    }
}

fn tensor((key, row): (gp_live_key, gp_tensor), site: impl Fn(u32) -> SiteId) -> Allocation {
    Allocation {
        process: key.process(),
        ptr: key.pointer,
        bytes: row.bytes,
        space: Space::Device,
        gpu: gpu(row.device),
        since_ns: row.since_ns,
        site: site(row.site),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_number_is_no_gpu() {
        let of =
            |id| account((gp_context_key { id, ..gp_context_key::default() }, gp_tensors::default())).gpu;
        assert_eq!((of(0), of(63), of(255), of(1 << 40)), (Some(0), Some(63), None, None));
    }

    #[test]
    fn cached_bytes_are_reserved_and_not_in_use() {
        let of = |in_use_bytes, reserved_bytes| {
            let row = gp_tensors { in_use_bytes, reserved_bytes, ..gp_tensors::default() };
            account((gp_context_key::default(), row)).cached_bytes()
        };
        assert_eq!((of(3, 10), of(10, 3)), (Some(7), Some(0)));
    }
}
