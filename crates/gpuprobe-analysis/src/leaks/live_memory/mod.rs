//! Live memory by process and call site: follows the site rows of the BPF side over time, names the call sites and
//! judges which of them leak.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::counters::{Allocation, ProcessKey, SiteMemory};
use gpuprobe_event::{Container, LiveSite, LossCause, Losses, MemoryBySite, SiteId, Tgid, Total};
use serde::Serialize;

use crate::leaks::call_sites::{CallSite, CallSiteId, CallSites, distinct_names};
use crate::leaks::history::History;
use crate::leaks::verdict::{Growth, Judgement, Life, Rules, Verdict, judge};
use crate::process_info::ProcessInfo;
use crate::stats::loss_counts::LossCount;

/// Sites of one process whose stacks are resolved, those with most live memory first. All others are one sum.
const MOST_NAMED: usize = 64;
/// Call sites of one process with metric series of their own.
const MOST_SERIES: usize = 10;
/// Exited processes that are still shown, if any are.
const MOST_EXITED: usize = 64;
/// How long the ages of live allocations are reused. Reading them again can mean reading a million allocations.
const DATES_LAST_NS: u64 = 5_000_000_000;

/// Live memory of one process from one call site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallSiteMemory {
    /// The function to show, followed by its callers if several call sites have the same function.
    pub name: String,
    #[serde(skip)]
    pub call_site: Arc<CallSite>,
    pub live: Total,
    /// All allocations made there.
    pub allocations: u64,
    /// How many of `allocations` were freed by a call.
    pub frees: u64,
    /// How many of `allocations` were freed with their context.
    pub freed_with_context: u64,
    /// The age of the oldest live allocation, if ages were read.
    pub oldest_age_ns: Option<u64>,
    pub judgement: Judgement,
    /// Live bytes at the times in [`ProcessCallSites::ends_ns`]; empty if some of its sites have no history.
    pub curve: Vec<u64>,
    /// It has metric series of its own.
    pub has_series: bool,
}

/// Live memory of one process by call site.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessCallSites {
    pub pid: Tgid,
    /// Distinguishes processes with the same pid: see [`ProcessKey`].
    #[serde(skip)]
    pub instance: u64,
    pub name: String,
    pub container: Option<Container>,
    /// The process has exited; the figures are those at its exit.
    pub has_exited: bool,
    /// All its live memory.
    pub live: Total,
    /// Suspects first, sorted by growth; then the others by live memory.
    pub call_sites: Vec<CallSiteMemory>,
    /// Live memory of sites that are not listed in `call_sites`.
    pub other: Total,
    /// The number of these sites.
    pub other_sites: usize,
    /// Sites with live memory but no history, because there are too many sites.
    pub not_followed: usize,
    /// The start of observation.
    pub began_ns: u64,
    /// The times of the points of the curves.
    pub ends_ns: Vec<u64>,
}

/// Live memory of all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryReport {
    /// The time of the report, on the clock of the rows.
    pub now_ns: u64,
    /// Sorted by live memory, largest first.
    pub processes: Vec<ProcessCallSites>,
    /// Losses that could have changed a verdict.
    pub losses_affecting_verdicts: Vec<LossCount>,
}

impl ProcessCallSites {
    pub fn key(&self) -> ProcessKey {
        ProcessKey { tgid: self.pid, instance: self.instance }
    }
}

impl MemoryReport {
    /// Live memory by call site, in the form of a recording.
    pub fn by_site(&self) -> MemoryBySite {
        by_site(self.processes.iter())
    }

    /// Sites without a history in all processes.
    pub fn not_followed(&self) -> usize {
        self.processes.iter().map(|process| process.not_followed).sum()
    }

    /// Whether no loss could have changed a verdict.
    pub fn is_complete(&self) -> bool {
        self.losses_affecting_verdicts.is_empty() && self.not_followed() == 0
    }
}

/// The live memory of these processes by call site, in the form of a recording.
pub(crate) fn by_site<'a>(processes: impl Iterator<Item = &'a ProcessCallSites> + Clone) -> MemoryBySite {
    let site = |process: &ProcessCallSites, call_site: &CallSiteMemory| LiveSite {
        pid: process.pid,
        process: process.name.clone(),
        call_site: call_site.name.clone(),
        allocations: call_site.live.count,
        bytes: call_site.live.bytes,
    };
    let of_process = |process: &ProcessCallSites| {
        process.call_sites.iter().map(|call_site| site(process, call_site)).collect::<Vec<_>>()
    };
    let others = processes.clone().map(|process| process.other_sites as u64).sum();
    MemoryBySite::new(processes.flat_map(of_process).collect(), others)
}

/// The losses that affect live memory or its call sites.
pub fn losses_affecting_verdicts(losses: &Losses) -> Vec<LossCount> {
    use LossCause::{
        CountersFull, DiskFull, ExitedBeforeAttach, ForgottenEarly, LateAttach, LostMapping, LostName,
        OutputFull, OverBudget, RingFull, Undecodable, UnmatchedReturn,
    };
    let harmless = |cause: &LossCause| {
        // memory is counted in BPF tables and needs no call records; memory from before the probes were attached is no
        // growth; and the budget never removes the probes of memory functions
        matches!(
            cause,
            RingFull
                | Undecodable
                | CountersFull
                | LostName
                | OutputFull
                | DiskFull
                | ForgottenEarly
                | LateAttach
                | ExitedBeforeAttach
                | LostMapping
                | UnmatchedReturn
                | OverBudget
        )
    };
    losses
        .iter()
        .filter(|(cause, _)| !harmless(cause))
        .map(|(cause, count)| LossCount { cause, count })
        .collect()
}

/// The latest rows of one process and its history.
#[derive(Clone, Debug)]
struct Process {
    info: ProcessInfo,
    history: History,
    now: BTreeMap<SiteId, SiteNow>,
    /// Call sites with metric series. A call site keeps its series while it is near the top, so that series do not
    /// come and go.
    with_series: HashSet<CallSiteId>,
    /// When the oldest live allocation of each site was made.
    oldest_ns: HashMap<SiteId, u64>,
    /// The time at which `oldest_ns` was updated.
    dated_ns: u64,
}

/// The figures of one site, summed over GPUs.
#[derive(Clone, Copy, Debug, Default)]
struct SiteNow {
    live: Total,
    allocations: u64,
    freed_with_context: u64,
}

impl SiteNow {
    fn add(&mut self, row: &SiteMemory) {
        self.live.count += row.live.live_allocations;
        self.live.bytes = self.live.bytes.saturating_add(row.live.live_bytes);
        self.allocations += row.allocations;
        self.freed_with_context += row.freed_with_context_allocations;
    }
}

/// Follows the live memory of all processes.
#[derive(Debug)]
pub struct LiveMemory {
    rules: Rules,
    /// Exited processes are kept with the figures at their exit.
    keeps_exited: bool,
    processes: BTreeMap<ProcessKey, Process>,
    call_sites: CallSites,
    /// The time of the latest rows. A process that is new in the next rows had no memory then.
    fed_ns: Option<u64>,
    /// The time of the rows for which ages were last read.
    dated_ns: Option<u64>,
}

impl LiveMemory {
    /// Changes the rules.
    pub fn judge_by(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// With `keeps_exited`, exited processes are kept with the figures at their exit.
    pub fn new(rules: Rules, keeps_exited: bool) -> Self {
        Self {
            rules,
            keeps_exited,
            processes: BTreeMap::new(),
            call_sites: CallSites::default(),
            fed_ns: None,
            dated_ns: None,
        }
    }

    pub fn keeps_exited(&self) -> bool {
        self.keeps_exited
    }

    /// Whether a process has, or had, live memory.
    pub fn has(&self, process: ProcessKey) -> bool {
        self.processes.contains_key(&process)
    }

    /// Takes in the rows of the BPF side. `infos` has all running processes, and exited ones that still have rows.
    pub fn feed(&mut self, rows: &[SiteMemory], infos: &HashMap<ProcessKey, ProcessInfo>, now_ns: u64) {
        let mut by_process: HashMap<ProcessKey, Vec<&SiteMemory>> = HashMap::new();
        rows.iter().for_each(|row| by_process.entry(row.process).or_default().push(row));
        let began_ns = self.fed_ns.replace(now_ns).unwrap_or(now_ns);
        for (key, rows) in by_process {
            // rows of an unknown process are left over from its exit
            let Some(info) = infos.get(&key) else { continue };
            let process = self.processes.entry(key).or_insert_with(|| Process::new(began_ns));
            process.feed(&rows, info, now_ns);
        }
        let keeps_exited = self.keeps_exited;
        self.processes.retain(|key, process| match infos.get(key) {
            Some(info) => keeps_exited || info.exited_at_ns.is_none(),
            None => {
                process.info.exited_at_ns.get_or_insert(now_ns);
                keeps_exited
            }
        });
        self.forget_exited();
        let sites = self.processes.values().flat_map(|process| process.now.keys().copied()).collect();
        self.call_sites.keep(&sites);
    }

    fn forget_exited(&mut self) {
        let exit = |(key, process): (&ProcessKey, &Process)| Some((process.info.exited_at_ns?, *key));
        let mut exited: Vec<_> = self.processes.iter().filter_map(exit).collect();
        exited.sort_unstable();
        let many = exited.len().saturating_sub(MOST_EXITED);
        exited.iter().take(many).for_each(|(_, key)| drop(self.processes.remove(key)));
    }

    /// Updates the ages of live allocations. `since_start` converts their times to the clock of the rows.
    pub fn set_ages(&mut self, allocations: &[Allocation], since_start: impl Fn(u64) -> u64) {
        self.dated_ns = self.fed_ns;
        for process in self.processes.values_mut().filter(|process| process.info.exited_at_ns.is_none()) {
            process.oldest_ns.clear();
            process.dated_ns = self.fed_ns.unwrap_or_default();
        }
        for allocation in allocations {
            let Some(process) = self.processes.get_mut(&allocation.process) else { continue };
            let since_ns = since_start(allocation.since_ns);
            let oldest = process.oldest_ns.entry(allocation.site).or_insert(since_ns);
            *oldest = since_ns.min(*oldest);
        }
    }

    /// Whether ages should be read: a report has a suspect, and the known ages are old. If all live allocations of the
    /// suspect are young, it is no leak.
    pub fn wants_ages(&self, report: &MemoryReport) -> bool {
        let age_ns = self.dated_ns.zip(self.fed_ns).map(|(dated, fed)| fed.saturating_sub(dated));
        let mut running = report.processes.iter().filter(|process| !process.has_exited);
        age_ns.is_none_or(|age_ns| age_ns >= DATES_LAST_NS)
            && running.any(|process| process.call_sites.iter().any(CallSiteMemory::is_suspect))
    }

    /// The sites whose stacks should be resolved: for each process the suspects first, then those with most live
    /// memory.
    pub fn unnamed(&self) -> Vec<SiteId> {
        let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
        for process in self.processes.values() {
            let mut sites: Vec<_> = process.now.iter().collect();
            let suspects =
                |site: SiteId| process.judge([site].into_iter(), self.rules).verdict == Verdict::Suspect;
            sites.sort_by_cached_key(|(site, now)| (Reverse((suspects(**site), now.live.bytes)), **site));
            let first = sites.iter().take(MOST_NAMED).map(|(site, _)| **site);
            wanted.extend(first.filter(|site| !self.call_sites.is_named(*site) && seen.insert(*site)));
        }
        wanted
    }

    /// Sets the stack of a site, innermost frame first.
    pub fn name(&mut self, site: SiteId, frames: Vec<gpuprobe_event::Frame>) {
        self.call_sites.name(site, frames);
    }

    pub fn report(&mut self, losses: &Losses, now_ns: u64) -> MemoryReport {
        let (rules, call_sites) = (self.rules, &self.call_sites);
        let report =
            |(key, process): (&ProcessKey, &mut Process)| process.report(*key, call_sites, rules, now_ns);
        let mut processes: Vec<_> = self.processes.iter_mut().map(report).collect();
        processes.sort_by_key(|p| (p.has_exited, Reverse(p.live.bytes), p.pid));
        MemoryReport { now_ns, processes, losses_affecting_verdicts: losses_affecting_verdicts(losses) }
    }
}

impl Process {
    fn new(began_ns: u64) -> Self {
        Self {
            info: ProcessInfo::default(),
            history: History::new(began_ns),
            now: BTreeMap::new(),
            with_series: HashSet::new(),
            oldest_ns: HashMap::new(),
            dated_ns: began_ns,
        }
    }

    fn feed(&mut self, rows: &[&SiteMemory], info: &ProcessInfo, now_ns: u64) {
        // an exited process keeps the figures at its exit
        if self.info.exited_at_ns.is_some() {
            return;
        }
        self.info = info.clone();
        self.now.clear();
        rows.iter().for_each(|row| self.now.entry(row.site).or_default().add(row));
        self.history.sample(rows.iter().copied(), now_ns);
    }

    fn judge(&self, mut sites: impl Iterator<Item = SiteId> + Clone, rules: Rules) -> Judgement {
        let history = &self.history;
        let points = history.sum(sites.clone());
        // until ages are read again, assume that the oldest allocation is as old as it was then
        let now_ns = history.ends_ns().last().copied().unwrap_or_default();
        let since_ns = now_ns.saturating_sub(self.dated_ns).min(DATES_LAST_NS);
        let oldest_ns = sites.clone().filter_map(|site| self.oldest_ns.get(&site)).min();
        let life = Life {
            began_ns: history.began_ns(),
            ends_ns: history.ends_ns(),
            points: &points,
            oldest_ns: oldest_ns.map(|oldest| oldest.saturating_add(since_ns)),
        };
        let judgement = judge(&life, rules);
        // sites with a history suffice for a suspicion, but not for any other verdict
        match judgement.verdict {
            Verdict::Suspect => judgement,
            _ if sites.any(|site| history.is_not_followed(site)) => {
                Judgement { verdict: Verdict::NotFollowed, growth: Growth::default() }
            }
            _ => judgement,
        }
    }

    fn report(
        &mut self,
        key: ProcessKey,
        call_sites: &CallSites,
        rules: Rules,
        now_ns: u64,
    ) -> ProcessCallSites {
        let mut groups: BTreeMap<CallSiteId, Vec<SiteId>> = BTreeMap::new();
        let (mut live, mut other, mut other_sites) = (Total::default(), Total::default(), 0);
        for (site, now) in &self.now {
            live = live.plus(now.live);
            match call_sites.of(*site) {
                Some(id) => groups.entry(id).or_default().push(*site),
                None => {
                    other = other.plus(now.live);
                    other_sites += usize::from(now.live.count > 0);
                }
            }
        }
        let mut call_sites: Vec<(CallSiteId, CallSiteMemory)> = groups
            .iter()
            .filter_map(|(id, sites)| Some((*id, self.call_site(sites, call_sites.get(*id)?, rules, now_ns))))
            .collect();
        call_sites.sort_by_key(|(_, call_site)| Reverse(call_site.live.bytes));
        call_sites.sort_by(|(_, a), (_, b)| b.urgency().total_cmp(&a.urgency()));
        self.assign_series(&call_sites);
        call_sites
            .iter_mut()
            .for_each(|(id, call_site)| call_site.has_series = self.with_series.contains(id));
        let mut call_sites: Vec<CallSiteMemory> =
            call_sites.into_iter().map(|(_, call_site)| call_site).collect();
        let all: Vec<Arc<CallSite>> = call_sites.iter().map(|p| Arc::clone(&p.call_site)).collect();
        call_sites.iter_mut().zip(distinct_names(&all)).for_each(|(call_site, name)| call_site.name = name);
        ProcessCallSites {
            pid: key.tgid,
            instance: key.instance,
            name: self.info.name.clone(),
            container: self.info.container.clone(),
            has_exited: self.info.exited_at_ns.is_some(),
            live,
            call_sites,
            other,
            other_sites,
            not_followed: self.history.not_followed(),
            began_ns: self.history.began_ns(),
            ends_ns: self.history.ends_ns().to_vec(),
        }
    }

    fn call_site(
        &self,
        sites: &[SiteId],
        call_site: &Arc<CallSite>,
        rules: Rules,
        now_ns: u64,
    ) -> CallSiteMemory {
        let mut sum = SiteNow::default();
        for now in sites.iter().filter_map(|site| self.now.get(site)) {
            sum.live = sum.live.plus(now.live);
            sum.allocations = sum.allocations.saturating_add(now.allocations);
            sum.freed_with_context = sum.freed_with_context.saturating_add(now.freed_with_context);
        }
        let at_ns = self.info.exited_at_ns.unwrap_or(now_ns);
        let oldest_ns = sites.iter().filter_map(|site| self.oldest_ns.get(site)).min();
        let is_followed = !sites.iter().any(|site| self.history.is_not_followed(*site));
        let points = self.history.sum(sites.iter().copied());
        CallSiteMemory {
            name: String::new(),
            call_site: Arc::clone(call_site),
            live: sum.live,
            allocations: sum.allocations,
            frees: sum.allocations.saturating_sub(sum.live.count).saturating_sub(sum.freed_with_context),
            freed_with_context: sum.freed_with_context,
            oldest_age_ns: oldest_ns.filter(|_| sum.live.count > 0).map(|since| at_ns.saturating_sub(*since)),
            judgement: self.judge(sites.iter().copied(), rules),
            curve: points.iter().filter(|_| is_followed).map(|point| point.last_bytes).collect(),
            has_series: false,
        }
    }

    /// Assigns metric series to the first call sites with live memory.
    fn assign_series(&mut self, call_sites: &[(CallSiteId, CallSiteMemory)]) {
        let live = call_sites.iter().filter(|(_, call_site)| call_site.live.count > 0).map(|(id, _)| *id);
        let near: HashSet<CallSiteId> = live.clone().take(2 * MOST_SERIES).collect();
        self.with_series.retain(|id| near.contains(id));
        for id in live {
            if self.with_series.len() >= MOST_SERIES {
                break;
            }
            self.with_series.insert(id);
        }
    }
}

impl CallSiteMemory {
    pub fn is_suspect(&self) -> bool {
        self.judgement.verdict == Verdict::Suspect
    }

    /// The growth rate of a suspect; 0 for all others.
    fn urgency(&self) -> f64 {
        if self.is_suspect() { self.judgement.growth.rate() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests;
