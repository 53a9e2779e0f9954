//! Live memory by call site over time, from the calls of a trace.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Call, Effect, Event, LiveSite, MemoryBySite, ProcessChange, Tgid};
use serde::Serialize;

use crate::leaks::call_sites::{CallSite, CallSiteId, UNKNOWN, distinct_names};
use crate::recording::recorded_sites::RecordedSites;
use crate::stats::bins::{BinValue, Bins};
use crate::stats::trend::Span;

/// Call sites with a curve of their own. Memory of further ones counts as of an unknown call site, one per process.
const MOST_CURVES: usize = 1024;
const MOST_BINS: usize = 256;
/// Call sites that are reported for each process.
const MOST_SHOWN: usize = 8;

/// Live memory of one call site over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteCurve {
    pub tgid: Tgid,
    /// The innermost frames that distinguish the call site from others.
    pub call_site: String,
    pub peak: u64,
    live: Bins<Option<Span>, MOST_BINS>,
}

impl SiteCurve {
    /// Live bytes at the ends of this many columns between two times.
    pub fn columns(&self, (from_ns, to_ns): (u64, u64), columns: usize) -> Vec<u64> {
        let span = u128::from(to_ns.saturating_sub(from_ns).max(1));
        let mut bins = self.live.iter().peekable();
        let mut live = 0;
        let value = |column: usize| {
            let passed = span * (column as u128 + 1) / columns.max(1) as u128;
            let until_ns = from_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
            while let Some((_, bin)) = bins.next_if(|(times, _)| times.start < until_ns) {
                live = bin.map_or(live, |bin| bin.last);
            }
            live
        };
        (0..columns).map(value).collect()
    }
}

/// Live memory by call site.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SiteMemoryReport {
    /// The call sites of each process with the highest peaks, in that order.
    pub curves: Vec<SiteCurve>,
    /// Live right before processes exited, or at the end of the trace.
    pub at_end: MemoryBySite,
    /// Bytes that were freed, but the trace does not say from which call site. They remain in the curves.
    pub unattributed: u64,
}

#[derive(Debug, Default)]
struct Site {
    process: Arc<str>,
    bytes: u64,
    allocations: u64,
    peak: u64,
    live: Bins<Option<Span>, MOST_BINS>,
    /// Bytes and allocations right before its process exited.
    at_exit: Option<(u64, u64)>,
}

type Key = (Tgid, Option<CallSiteId>);

/// Collects a [`SiteMemoryReport`].
#[derive(Debug, Default)]
pub(crate) struct SiteMemory {
    sites_of_trace: RecordedSites,
    sites: HashMap<Key, Site>,
    unattributed: u64,
}

impl SiteMemory {
    pub(crate) fn feed(&mut self, event: &Event) {
        match event {
            Event::Call(call) if call.took_effect() => self.call(call),
            Event::Process(process) if process.change != ProcessChange::Start => {
                for (_, site) in self.sites.iter_mut().filter(|((tgid, _), _)| *tgid == process.tgid) {
                    site.at_exit = Some((site.bytes, site.allocations));
                    site.set(process.at_ns, 0, 0);
                }
            }
            _ => {}
        }
    }

    fn call(&mut self, call: &Call) {
        let at_ns = call.start_ns.saturating_add(call.duration_ns().unwrap_or(0));
        match &call.effect {
            Effect::Alloc(allocation) => {
                let Some(site) = allocation.site else { return };
                self.unattributed(allocation.replaced.map_or(0, |replaced| replaced.bytes));
                let mut key = (call.tgid, self.sites_of_trace.call_site(site, call.stack.as_deref()));
                if self.sites.len() >= MOST_CURVES && !self.sites.contains_key(&key) {
                    key.1 = None;
                }
                let site = self.sites.entry(key).or_default();
                site.process = Arc::clone(&call.process);
                let bytes = site.bytes.saturating_add(allocation.bytes);
                site.set(at_ns, bytes, site.allocations + 1);
            }
            Effect::Free(free) => {
                let Some(freed) = &free.freed else { return };
                let id = free.site.and_then(|site| self.sites_of_trace.decided(site));
                let site = id.and_then(|id| self.sites.get_mut(&(call.tgid, id)));
                let Some(site) = site else { return self.unattributed(freed.bytes) };
                let bytes = site.bytes.saturating_sub(freed.bytes);
                site.set(at_ns, bytes, site.allocations.saturating_sub(freed.allocations));
            }
            Effect::ContextEnd(freed) => {
                let bytes = freed.iter().fold(0, |sum: u64, amount| sum.saturating_add(amount.bytes));
                let of_process = self.sites.iter_mut().filter(|((tgid, _), _)| *tgid == call.tgid);
                let mut sites: Vec<_> = of_process.map(|(_, site)| site).collect();
                let live = sites.iter().fold(0, |sum: u64, site| sum.saturating_add(site.bytes));
                // the trace only has the sum of what was freed
                if bytes >= live {
                    sites.iter_mut().for_each(|site| site.set(at_ns, 0, 0));
                } else {
                    self.unattributed(bytes);
                }
            }
            _ => {}
        }
    }

    fn unattributed(&mut self, bytes: u64) {
        self.unattributed = self.unattributed.saturating_add(bytes);
    }

    pub(crate) fn report(self) -> SiteMemoryReport {
        let mut sites: Vec<_> = self.sites.into_iter().filter(|(_, site)| site.peak > 0).collect();
        sites.sort_by_key(|(key, site)| (std::cmp::Reverse(site.peak), *key));
        let all: Vec<Arc<CallSite>> =
            sites.iter().map(|((_, id), _)| self.sites_of_trace.stack(*id)).collect();
        let names = distinct_names(&all);
        let (mut curves, mut live) = (Vec::new(), Vec::new());
        let mut shown: HashMap<Tgid, usize> = HashMap::new();
        for (((tgid, id), site), name) in sites.into_iter().zip(names) {
            let name = if id.is_some() { name } else { UNKNOWN.to_owned() };
            let (bytes, allocations) = site.at_exit.unwrap_or((site.bytes, site.allocations));
            let process = site.process.to_string();
            live.push(LiveSite { pid: tgid, process, call_site: name.clone(), allocations, bytes });
            let of_process = shown.entry(tgid).or_default();
            *of_process += 1;
            if *of_process <= MOST_SHOWN {
                curves.push(SiteCurve { tgid, call_site: name, peak: site.peak, live: site.live });
            }
        }
        let at_end = MemoryBySite::new(live, 0);
        SiteMemoryReport { curves, at_end, unattributed: self.unattributed }
    }
}

impl Site {
    fn set(&mut self, at_ns: u64, bytes: u64, allocations: u64) {
        (self.bytes, self.allocations) = (bytes, allocations);
        self.peak = self.peak.max(bytes);
        if let Some(bin) = self.live.at(at_ns) {
            bin.merge(&Some(Span { least: bytes, most: bytes, last: bytes }));
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{MemoryAmount, SiteId, Space};

    use super::*;
    use crate::samples::{alloc, call, free, process};

    fn at_site(mut call: Call, id: u32, frame: Option<&str>) -> Event {
        match &mut call.effect {
            Effect::Alloc(allocation) => allocation.site = Some(SiteId(id)),
            Effect::Free(free) => free.site = Some(SiteId(id)),
            _ => {}
        }
        call.stack = frame.map(|frame| [frame.to_owned(), "main+0x5 (app)".to_owned()].into());
        Event::Call(Box::new(call))
    }

    fn fed(events: &[Event]) -> SiteMemoryReport {
        let mut memory = SiteMemory::default();
        events.iter().for_each(|event| memory.feed(event));
        memory.report()
    }

    #[test]
    fn allocations_and_frees_change_the_curve_of_their_call_site() {
        let report = fed(&[
            at_site(alloc(0x10, 100, 1000), 1, Some("load+0x7 (app)")),
            at_site(alloc(0x20, 50, 2000), 2, Some("step+0x9 (app)")),
            at_site(alloc(0x30, 30, 3000), 1, None),
            at_site(free(0x10, Some(100), 4000), 1, None),
            Event::Process(process(ProcessChange::Exit, 9000, Some(0))),
        ]);
        let names: Vec<_> = report.curves.iter().map(|curve| (&*curve.call_site, curve.peak)).collect();
        assert_eq!(names, [("load+0x7 (app)", 130), ("step+0x9 (app)", 50)]);
        let columns = report.curves[0].columns((0, 10_000), 5);
        assert_eq!(columns, [100, 130, 30, 30, 0]);
        let end: Vec<_> = report.at_end.sites.iter().map(|s| (s.bytes, s.allocations)).collect();
        assert_eq!((end, report.unattributed), (vec![(50, 1), (30, 1)], 0));
    }

    #[test]
    fn what_has_no_call_site_is_counted() {
        let freed = vec![MemoryAmount { kind: Space::Device, allocations: 1, bytes: 60 }];
        let mut end = call(gpuprobe_event::Api::Runtime, "cudaDeviceReset", 0);
        end.effect = Effect::ContextEnd(freed);
        let report = fed(&[
            at_site(alloc(0x10, 100, 1000), 1, None),
            at_site(free(0x99, Some(7), 2000), 5, None),
            Event::Call(Box::new(end)),
        ]);
        assert_eq!((&*report.curves[0].call_site, report.unattributed), (UNKNOWN, 67));
    }

    #[test]
    fn the_end_of_a_context_with_all_memory_ends_all_curves() {
        let freed = vec![MemoryAmount { kind: Space::Device, allocations: 1, bytes: 100 }];
        let mut end = call(gpuprobe_event::Api::Runtime, "cudaDeviceReset", 0);
        (end.effect, end.start_ns) = (Effect::ContextEnd(freed), 5000);
        let report = fed(&[at_site(alloc(0x10, 100, 1000), 1, None), Event::Call(Box::new(end))]);
        assert_eq!((report.at_end.sites.len(), report.unattributed), (0, 0));
        assert_eq!(report.curves[0].columns((0, 10_000), 2), [100, 0]);
    }
}
