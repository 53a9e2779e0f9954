//! Tables of indexed rows: a hash map has the index of each key's row in an array, and a stack has the unused
//! indices.

use std::collections::HashSet;

use gpuprobe_event::counters::ProcessKey;
use libbpf_rs::{Map, MapCore, MapFlags};

use super::map_io::{self, WRITE};
use crate::error::CaptureError;
use crate::tables::process_rows::HasProcess;
use crate::wire::{Wire, as_bytes, from_bytes};

/// If the array has so many rows for each row in use, rows are looked up one by one.
const SPARSE: usize = 16;

/// The three maps of a table.
pub(crate) struct IndexedTable<'o> {
    pub(crate) index: Map<'o>,
    pub(crate) rows: Map<'o>,
    pub(crate) unused: Map<'o>,
}

impl IndexedTable<'_> {
    /// Calls `then` with every row in use.
    pub(crate) fn each<K: Wire>(&self, then: impl FnMut(K, &[u8])) -> Result<(), CaptureError> {
        self.read_rows(&map_io::entries::<K, u32>(&self.index)?, then)
    }

    /// All rows in use.
    pub(crate) fn entries<K: Wire, V: Wire>(&self) -> Result<Vec<(K, V)>, CaptureError> {
        let mut all = Vec::new();
        self.each(|key, row| all.push((key, from_bytes(row))))?;
        Ok(all)
    }

    fn read_rows<K: Wire>(
        &self,
        entries: &[(K, u32)],
        mut then: impl FnMut(K, &[u8]),
    ) -> Result<(), CaptureError> {
        let rows = entries.iter().map(|(_, row)| *row as usize + 1).max().unwrap_or(0);
        if rows > SPARSE * entries.len() {
            for (key, row) in entries {
                if let Some(row) = map_io::row_of(&self.rows, *row)? {
                    then(*key, &row);
                }
            }
            return Ok(());
        }
        let (bytes, all) = (map_io::value_bytes(&self.rows)?, map_io::first_rows(&self.rows, rows)?);
        for (key, row) in entries {
            let at = *row as usize * bytes;
            then(*key, all.get(at..at + bytes).unwrap_or_default());
        }
        Ok(())
    }

    /// Calls `then` with the rows of exited processes, and frees them.
    pub(crate) fn take<K: Wire + HasProcess>(
        &self,
        exited: &HashSet<ProcessKey>,
        then: impl FnMut(K, &[u8]),
    ) -> Result<(), CaptureError> {
        let mut entries = map_io::entries::<K, u32>(&self.index)?;
        entries.retain(|(key, _)| exited.contains(&key.process()));
        self.read_rows(&entries, then)?;
        let keys: Vec<u8> = entries.iter().flat_map(|(key, _)| as_bytes(key)).copied().collect();
        map_io::delete_all(&self.index, &keys)?;
        for (_, row) in entries {
            // cleared here: a BPF program could clear only the copy of its CPU
            map_io::clear_row(&self.rows, row)?;
            let pushed = self.unused.update(&[], &row.to_ne_bytes(), MapFlags::ANY);
            pushed.map_err(CaptureError::bpf(WRITE))?;
        }
        Ok(())
    }
}
