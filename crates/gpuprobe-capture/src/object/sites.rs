//! What the kernel side and user space tell each other about where allocations come from.

use std::sync::Arc;

use gpuprobe_event::counters::SiteMemory;
use gpuprobe_event::{Frame, SiteId};
use libbpf_rs::{MapCore, MapFlags};

use super::Capture;
use crate::batch::READ;
use crate::counters;
use crate::error::CaptureError;
use crate::paths::Change;
use crate::sites::Row;
use crate::wire::{MapName, as_bytes, from_bytes, gp_site_key};

impl Capture {
    /// What every process holds from every site.
    pub fn sites(&self) -> Result<Vec<SiteMemory>, CaptureError> {
        let (rows, _) = counters::site_rows(&self.map(MapName::Sites)?, &self.context_rows()?)?;
        Ok(self.decoder.sites.sum(&rows))
    }

    /// The way to a site, innermost first; empty where it is not known. The first time may take long.
    pub fn frames_of(&mut self, site: SiteId) -> Arc<[Frame]> {
        self.decoder.frames_of(site)
    }

    /// Tells the kernel side which ways are known, and keeps what is counted under numbers that are over.
    pub(super) fn tell_ways(&mut self) -> Result<(), CaptureError> {
        let changes = self.decoder.sites.take_changes();
        if !changes.is_empty() {
            let (ways, nodes) = (self.map(MapName::Ways)?, self.map(MapName::SiteNodes)?);
            let mut refused = 0;
            for change in changes {
                let written = match change {
                    Change::Node(index, node) => {
                        nodes.update(&index.to_ne_bytes(), as_bytes(&node), MapFlags::ANY)
                    }
                    Change::Way(key, way) => ways.update(as_bytes(&key), as_bytes(&way), MapFlags::ANY),
                    // it may never have got there
                    Change::Gone(key) => ways.delete(as_bytes(&key)).or(Ok(())),
                };
                // then it is not known to the kernel side, and its stacks come again
                refused += u64::from(written.is_err());
            }
            self.refused_ways += refused;
        }
        if self.has_sites && self.decoder.sites.should_fold() {
            self.fold_sites()?;
        }
        Ok(())
    }

    /// Takes out the rows of sites that are done, and keeps what they say.
    fn fold_sites(&mut self) -> Result<(), CaptureError> {
        let (rows, keys) = counters::site_rows(&self.map(MapName::Sites)?, &self.context_rows()?)?;
        let keys = keys.chunks_exact(size_of::<gp_site_key>());
        for (row, key) in rows.into_iter().zip(keys) {
            if !self.decoder.sites.is_done(&row) {
                continue;
            }
            // what it says at its end, which may be more than was read
            let last = self.map(MapName::Sites)?.lookup_and_delete(key).map_err(CaptureError::bpf(READ))?;
            if let Some(last) = last {
                self.decoder.sites.keep(&Row { counts: from_bytes(&last), ..row });
            }
        }
        self.decoder.sites.folded();
        Ok(())
    }
}
