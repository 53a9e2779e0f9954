//! Launches and waits by call site, for recordings with stacks of calls.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Call, Class, Effect, Tgid};
use serde::Serialize;

use crate::leaks::call_sites::{CallSite, CallSiteId, UNKNOWN, distinct_names};
use crate::recording::recorded_sites::RecordedSites;

/// Pairs of a process and a call site that are distinguished. Further ones are counted as of an unknown call site, one
/// per process.
const MOST_SITES: usize = 4096;

/// How many CUDA kernels and graphs a call launched: only at the outermost call that launches, if it succeeded and was
/// not captured.
pub fn launches(call: &Call) -> u64 {
    if call.nested || !call.took_effect() {
        return 0;
    }
    match &call.effect {
        Effect::Launch(launch) if !launch.captured => launch.kernels,
        Effect::GraphLaunch(launch) if !launch.captured => 1,
        _ => 0,
    }
}

/// The time that a call waited for the GPU; `None` if it is not a call that waits, or did not return.
pub fn waiting_ns(call: &Call) -> Option<u64> {
    call.duration_ns().filter(|_| call.class == Class::Sync)
}

/// Launches and waits of one process at one call site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SiteCalls {
    pub pid: Tgid,
    pub process: Arc<str>,
    /// The innermost frames that distinguish the call site from others.
    pub call_site: String,
    /// CUDA kernels and graphs.
    pub launches: u64,
    pub waits: u64,
    pub waiting_ns: u64,
}

/// Launches and waits by call site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallsBySite {
    /// The call sites that launch, the one with most launches first.
    pub launches: Vec<SiteCalls>,
    /// The call sites that wait, the one with most waiting time first.
    pub waits: Vec<SiteCalls>,
}

impl CallsBySite {
    pub fn is_empty(&self) -> bool {
        self.launches.is_empty() && self.waits.is_empty()
    }

    /// Whether the call sites are in more than one process.
    pub fn has_several_processes(&self) -> bool {
        let mut pids = self.launches.iter().chain(&self.waits).map(|site| site.pid);
        let first = pids.next();
        pids.any(|pid| Some(pid) != first)
    }
}

/// Collects [`CallsBySite`].
#[derive(Debug, Default)]
pub(crate) struct SiteCallTotals {
    sites_of_trace: RecordedSites,
    totals: HashMap<(Tgid, Option<CallSiteId>), SiteCalls>,
    /// Some launch or wait had a call site: stacks were asked for.
    has_sites: bool,
}

impl SiteCallTotals {
    pub(crate) fn feed(&mut self, call: &Call) {
        let (launches, mut waiting_ns) = (launches(call), waiting_ns(call));
        let site = call.call_site();
        // a call inside the one that the program made has no call site
        if site.is_none() && call.parent.is_some() {
            waiting_ns = None;
        }
        if launches == 0 && waiting_ns.is_none() {
            return;
        }
        self.has_sites |= site.is_some();
        let mut key =
            (call.tgid, site.and_then(|site| self.sites_of_trace.call_site(site, call.stack.as_deref())));
        if self.totals.len() >= MOST_SITES && !self.totals.contains_key(&key) {
            key.1 = None;
        }
        let total = self.totals.entry(key).or_default();
        total.process = Arc::clone(&call.process);
        let weight = u64::from(call.weight);
        total.launches = total.launches.saturating_add(launches.saturating_mul(weight));
        total.waits += if waiting_ns.is_some() { weight } else { 0 };
        let waiting_ns = waiting_ns.unwrap_or(0).saturating_mul(weight);
        total.waiting_ns = total.waiting_ns.saturating_add(waiting_ns);
    }

    pub(crate) fn report(&self) -> CallsBySite {
        if !self.has_sites {
            return CallsBySite::default();
        }
        let mut all: Vec<_> = self.totals.iter().collect();
        // the unknown call site comes last among equals
        all.sort_by_key(|((pid, id), _)| (*pid, id.is_none(), *id));
        let sites: Vec<Arc<CallSite>> =
            all.iter().map(|((_, id), _)| self.sites_of_trace.stack(*id)).collect();
        let named = all.into_iter().zip(distinct_names(&sites)).map(|(((pid, id), total), name)| {
            let call_site = if id.is_some() { name } else { UNKNOWN.to_owned() };
            SiteCalls { pid: *pid, call_site, ..total.clone() }
        });
        let named: Vec<_> = named.collect();
        let most = |figure: fn(&SiteCalls) -> (u64, u64)| {
            let mut sites: Vec<_> = named.iter().filter(|site| figure(site) != (0, 0)).cloned().collect();
            sites.sort_by_key(|site| Reverse(figure(site)));
            sites
        };
        CallsBySite {
            launches: most(|site| (site.launches, 0)),
            waits: most(|site| (site.waiting_ns, site.waits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Launch, SiteId};

    use super::*;
    use crate::samples::{call, inside, launch, nested, took};

    fn at(site: u32, frame: &str, call: Call) -> Call {
        let stack = [format!("{frame}+0x5 (app)"), "main+0x9 (app)".to_owned()];
        Call { site: Some(SiteId(site)), stack: Some(stack.into()), ..call }
    }

    fn wait(ns: u64) -> Call {
        Call { class: Class::Sync, ..took(call(Api::Runtime, "cudaDeviceSynchronize", 0), ns) }
    }

    fn fed(calls: &[Call]) -> CallsBySite {
        let mut totals = SiteCallTotals::default();
        calls.iter().for_each(|call| totals.feed(call));
        totals.report()
    }

    fn shown(sites: &[SiteCalls]) -> Vec<(&str, u64, u64, u64)> {
        sites.iter().map(|s| (s.call_site.as_str(), s.launches, s.waits, s.waiting_ns)).collect()
    }

    #[test]
    fn launches_and_waits_are_summed_by_call_site() {
        let step = || launch("cudaLaunchKernel", Some(7));
        let calls = fed(&[
            at(1, "forward", step()),
            at(2, "backward", step()),
            // another stack that reads the same
            at(3, "backward", step()),
            at(4, "step", wait(500)),
            inside(wait(400), 1),
            step(),
            at(5, "evaluate", wait(700)),
        ]);
        assert_eq!(
            shown(&calls.launches),
            [("backward+0x5 (app)", 2, 0, 0), ("forward+0x5 (app)", 1, 0, 0), (UNKNOWN, 1, 0, 0)]
        );
        assert_eq!(shown(&calls.waits), [("evaluate+0x5 (app)", 0, 1, 700), ("step+0x5 (app)", 0, 1, 500)]);
        assert!(!calls.has_several_processes());
    }

    #[test]
    fn a_recording_without_stacks_of_calls_has_none() {
        assert!(fed(&[launch("cudaLaunchKernel", Some(7)), wait(5)]).is_empty());
    }

    #[test]
    fn only_what_was_launched_counts() {
        let step = launch("cudaLaunchKernel", Some(7));
        let with = |captured, kernels| Effect::Launch(Launch { captured, kernels, ..Launch::default() });
        assert_eq!(launches(&step), 1);
        assert_eq!(launches(&nested(step.clone(), 1)), 0);
        assert_eq!(launches(&Call { status: Some(700), ..step.clone() }), 0);
        assert_eq!(launches(&Call { effect: with(true, 1), ..step.clone() }), 0);
        assert_eq!(launches(&Call { effect: with(false, 4), ..step }), 4);
        assert_eq!((launches(&wait(5)), waiting_ns(&wait(5))), (0, Some(5)));
    }

    #[test]
    fn the_number_of_call_sites_is_bounded() {
        let mut totals = SiteCallTotals::default();
        let many = u32::try_from(crate::recording::recorded_sites::MOST_IDS).unwrap() + 10;
        for site in 1..=many {
            totals.feed(&at(site, &format!("f{site}"), launch("cudaLaunchKernel", None)));
        }
        let report = totals.report();
        assert!(report.launches.len() <= MOST_SITES + 1);
        assert_eq!(report.launches[0].call_site, UNKNOWN);
        assert_eq!(report.launches.iter().map(|site| site.launches).sum::<u64>(), u64::from(many));
    }
}
