//! The tables of call sites: writes the comparisons that recognise stacks, and reads the memory that is counted by
//! site.

use std::collections::HashSet;

use gpuprobe_event::counters::{ProcessKey, SiteMemory};
use libbpf_rs::{MapCore, MapFlags};

use super::map_io::READ;
use super::memory_tables::site_rows;
use super::process_rows::remove_of;
use super::table_reader::TableReader;
use crate::error::CaptureError;
use crate::stacks::call_sites::{CallSites, SiteKind, SiteRow};
use crate::stacks::site_tree::Change;
use crate::wire::{MapName, as_bytes, from_bytes, gp_site_key};

impl TableReader {
    /// What every process has by call site, of these kinds.
    pub(crate) fn sites(
        &self,
        sites: &CallSites,
        is_wanted: impl Fn(SiteKind) -> bool,
    ) -> Result<Vec<SiteMemory>, CaptureError> {
        let (rows, _) = site_rows(&self.map(MapName::Sites)?, &self.context_rows()?)?;
        Ok(sites.sum(&rows, is_wanted))
    }

    /// Removes the site rows of exited processes and returns those of memory.
    pub(crate) fn take_sites(
        &self,
        sites: &mut CallSites,
        exited: &HashSet<ProcessKey>,
    ) -> Result<Vec<SiteMemory>, CaptureError> {
        let mut rows = self.sites(sites, SiteKind::is_memory)?;
        rows.retain(|row| exited.contains(&row.process));
        remove_of::<gp_site_key>(&self.map(MapName::Sites)?, exited)?;
        sites.forget(exited);
        Ok(rows)
    }

    /// Writes newly learned stacks to the maps, and folds rows that cannot change any more.
    pub(crate) fn write_sites(&mut self, sites: &mut CallSites) -> Result<(), CaptureError> {
        let changes = sites.take_changes();
        if !changes.is_empty() {
            let (roots, nodes) = (self.map(MapName::SiteRoots)?, self.map(MapName::SiteNodes)?);
            let mut refused = 0;
            for change in changes {
                let written = match change {
                    Change::Node(index, node) => {
                        nodes.update(&index.to_ne_bytes(), as_bytes(&node), MapFlags::ANY)
                    }
                    Change::Root(key, root) => roots.update(as_bytes(&key), as_bytes(&root), MapFlags::ANY),
                    // the map may never have had room for it
                    Change::RemoveRoot(key) => roots.delete(as_bytes(&key)).or(Ok(())),
                };
                // the BPF programs do not know this stack then, and send it again
                refused += u64::from(written.is_err());
            }
            self.refused_sites += refused;
        }
        if self.has_sites && sites.should_fold() {
            self.fold_sites(sites)?;
        }
        Ok(())
    }

    /// Removes the rows of sites that cannot change any more, and keeps their counts in user space.
    fn fold_sites(&self, sites: &mut CallSites) -> Result<(), CaptureError> {
        let (rows, keys) = site_rows(&self.map(MapName::Sites)?, &self.context_rows()?)?;
        let keys = keys.chunks_exact(size_of::<gp_site_key>());
        for (row, key) in rows.into_iter().zip(keys) {
            if !sites.is_final(&row) {
                continue;
            }
            // its last value, which may be more than was read above
            let last = self.map(MapName::Sites)?.lookup_and_delete(key).map_err(CaptureError::bpf(READ))?;
            if let Some(last) = last {
                sites.fold(&SiteRow { counts: from_bytes(&last), ..row });
            }
        }
        sites.note_folded();
        Ok(())
    }
}
