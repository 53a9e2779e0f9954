//! Live memory by the call sites of its allocations.

use serde::{Deserialize, Serialize};

use crate::ids::Tgid;

/// Live memory of one process at one call site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSite {
    pub pid: Tgid,
    pub process: String,
    /// The innermost frames that distinguish the call site from others.
    pub call_site: String,
    /// Live allocations that were made there.
    pub allocations: u64,
    /// Their total bytes.
    pub bytes: u64,
}

/// Memory that was live when processes exited, or at the end of the recording, by call site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBySite {
    /// The call sites with the most bytes, in that order.
    pub sites: Vec<LiveSite>,
    /// The number of further call sites.
    pub other_sites: u64,
}

impl MemoryBySite {
    /// The most call sites that are listed, because a line of a trace must not be too long to read.
    pub const MOST_SITES: usize = 100;

    /// From these call sites in any order, and a number of others.
    pub fn new(mut sites: Vec<LiveSite>, other_sites: u64) -> Self {
        sites.retain(|site| site.allocations > 0);
        sites.sort_by(|a, b| (b.bytes, &a.call_site, a.pid).cmp(&(a.bytes, &b.call_site, b.pid)));
        let cut = sites.len().saturating_sub(Self::MOST_SITES) as u64;
        sites.truncate(Self::MOST_SITES);
        Self { sites, other_sites: other_sites.saturating_add(cut) }
    }

    /// Whether no memory was live.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty() && self.other_sites == 0
    }

    /// Whether there are several processes.
    pub fn has_several_processes(&self) -> bool {
        self.sites.iter().any(|site| Some(site.pid) != self.sites.first().map(|first| first.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_listed_and_the_others_counted() {
        let site = |n: u64| LiveSite {
            pid: Tgid(1),
            process: "p".to_owned(),
            call_site: n.to_string(),
            allocations: n.min(1),
            bytes: n,
        };
        let all = MemoryBySite::new((0..150).map(site).collect(), 3);
        assert_eq!((all.sites.len(), all.other_sites), (MemoryBySite::MOST_SITES, 52));
        assert_eq!(all.sites[0].bytes, 149);
        assert!(!all.is_empty() && !all.has_several_processes());
        assert!(MemoryBySite::new(vec![site(0)], 0).is_empty(), "nothing is live there");
    }
}
