//! Selects the processes whose rows are read.

use std::collections::HashSet;

use gpuprobe_event::counters::ProcessKey;
use libbpf_rs::Map;

use super::indexed_table::IndexedTable;
use super::map_io;
use super::process_rows::HasProcess;
use crate::error::CaptureError;
use crate::wire::{Wire, as_bytes};

/// The processes whose rows are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProcessFilter<'a> {
    All,
    /// Only these. Their rows are removed after they are read.
    Exited(&'a HashSet<ProcessKey>),
}

impl ProcessFilter<'_> {
    /// Calls `then` with each selected row of an indexed table.
    pub(crate) fn each<K: HasProcess>(
        self,
        table: &IndexedTable<'_>,
        then: impl FnMut(K, &[u8]),
    ) -> Result<(), CaptureError> {
        match self {
            Self::All => table.each(then),
            Self::Exited(exited) => table.take(exited, then),
        }
    }

    fn includes(self, process: ProcessKey) -> bool {
        match self {
            Self::All => true,
            Self::Exited(exited) => exited.contains(&process),
        }
    }
}

/// The selected entries of a hash map whose values are the rows.
pub(crate) fn hash_rows<K: HasProcess, V: Wire>(
    map: &Map<'_>,
    filter: ProcessFilter<'_>,
) -> Result<Vec<(K, V)>, CaptureError> {
    let mut entries = map_io::entries::<K, V>(map)?;
    entries.retain(|(key, _)| filter.includes(key.process()));
    if matches!(filter, ProcessFilter::Exited(_)) {
        let keys: Vec<u8> = entries.iter().flat_map(|(key, _)| as_bytes(key).to_vec()).collect();
        map_io::delete_all(map, &keys)?;
    }
    Ok(entries)
}
