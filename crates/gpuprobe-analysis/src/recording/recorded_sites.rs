//! The call sites of a trace by their site ids. A trace has the stack of a site with one of its calls.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Frame, SiteId};

use crate::leaks::call_sites::{CallSite, CallSiteId, CallSites};

/// Site ids that are distinguished. Further ones have an unknown call site.
pub(super) const MOST_IDS: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct RecordedSites {
    call_sites: CallSites,
    ids: HashMap<SiteId, Option<CallSiteId>>,
}

impl RecordedSites {
    /// The call site of a site id, `None` if it is not known. Decided once, so that a free finds its allocation.
    pub(super) fn call_site(&mut self, site: SiteId, stack: Option<&[String]>) -> Option<CallSiteId> {
        if let Some(known) = self.ids.get(&site) {
            return *known;
        }
        if self.ids.len() >= MOST_IDS {
            return None;
        }
        if let Some(stack) = stack {
            self.call_sites.name(site, stack.iter().map(|frame| Frame::of_text(frame)).collect());
        }
        let call_site = self.call_sites.of(site);
        self.ids.insert(site, call_site);
        call_site
    }

    /// What was decided about a site id; `None` if nothing yet.
    pub(super) fn decided(&self, site: SiteId) -> Option<Option<CallSiteId>> {
        self.ids.get(&site).copied()
    }

    /// The stack of a call site; an empty one if it is not known.
    pub(super) fn stack(&self, id: Option<CallSiteId>) -> Arc<CallSite> {
        id.and_then(|id| self.call_sites.get(id)).cloned().unwrap_or_default()
    }
}
