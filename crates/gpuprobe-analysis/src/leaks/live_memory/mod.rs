//! Who holds memory, from which places, and what grows: the kernel's rows of sites over time, with names to them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use gpuprobe_event::counters::{Allocation, ProcessKey, SiteMemory};
use gpuprobe_event::{Container, LiveSite, LossCause, Losses, MemoryBySite, SiteId, Tgid, Total};
use serde::Serialize;

use crate::leaks::call_sites::{Place, PlaceId, Places, distinct_names};
use crate::leaks::history::History;
use crate::leaks::verdict::{Growth, Judgement, Life, Rules, Verdict, judge};
use crate::process_info::ProcessInfo;
use crate::stats::loss_counts::LossCount;

/// Sites of one process whose ways are asked for, those that hold most first. What others hold is one sum.
const MOST_NAMED: usize = 64;
/// Places of one process with series of their own in metrics.
const MOST_SERIES: usize = 10;
/// Processes that ended and are still shown, where they are.
const MOST_ENDED: usize = 64;
/// For how long the ages of what is live are taken to stay as they were: there may be a million allocations to look at.
const DATES_LAST_NS: u64 = 5_000_000_000;

/// What one process holds from one place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceMemory {
    /// The function to show, and by whom it was called where several places have the same.
    pub name: String,
    /// The place.
    #[serde(skip)]
    pub place: Arc<Place>,
    /// Live now.
    pub live: Total,
    /// Allocations ever made there.
    pub allocations: u64,
    /// Of these, how many were freed by a call.
    pub frees: u64,
    /// Of these, how many ended with their context.
    pub ended: u64,
    /// Age of the oldest that is live, where that was asked for.
    pub oldest_age_ns: Option<u64>,
    /// What is thought of it.
    pub judgement: Judgement,
    /// Live bytes at the ends of [`ProcessPlaces::ends_ns`]; nothing where some of its sites are not followed.
    pub curve: Vec<u64>,
    /// It has series of its own in metrics.
    pub has_series: bool,
}

/// What one process holds, by place.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessPlaces {
    /// Its pid.
    pub pid: Tgid,
    /// Its name.
    pub name: String,
    /// The container it is in.
    pub container: Option<Container>,
    /// It has ended, and held this then.
    pub has_ended: bool,
    /// All that it holds.
    pub live: Total,
    /// Suspects first, those that grow fastest before others; then by what they hold.
    pub places: Vec<PlaceMemory>,
    /// Live at sites beyond those that are named one by one.
    pub other: Total,
    /// How many sites these are.
    pub other_sites: usize,
    /// Sites that hold something and could not be followed, because too many others do.
    pub not_followed: usize,
    /// When it began to be watched.
    pub began_ns: u64,
    /// When the points of the curves were taken.
    pub ends_ns: Vec<u64>,
}

/// What all processes hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryReport {
    /// When, on the clock of the rows.
    pub now_ns: u64,
    /// Those that hold most first.
    pub processes: Vec<ProcessPlaces>,
    /// What was lost that could have changed a verdict.
    pub missing: Vec<LossCount>,
}

impl MemoryReport {
    /// What is live, by call site, as a recording keeps it.
    pub fn by_site(&self) -> MemoryBySite {
        let site = |process: &ProcessPlaces, place: &PlaceMemory| LiveSite {
            pid: process.pid,
            process: process.name.clone(),
            call_site: place.name.clone(),
            allocations: place.live.count,
            bytes: place.live.bytes,
        };
        let of_process = |process: &ProcessPlaces| {
            process.places.iter().map(|place| site(process, place)).collect::<Vec<_>>()
        };
        let others = self.processes.iter().map(|process| process.other_sites as u64).sum();
        MemoryBySite::new(self.processes.iter().flat_map(of_process).collect(), others)
    }

    /// Sites that could not be followed, in all processes.
    pub fn not_followed(&self) -> usize {
        self.processes.iter().map(|process| process.not_followed).sum()
    }

    /// Whether nothing is missing that could have changed a verdict.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.not_followed() == 0
    }
}

/// What was lost that live memory and its places are made of.
pub fn missing(losses: &Losses) -> Vec<LossCount> {
    use LossCause::{
        CountersFull, ForgottenEarly, GoneBeforeAttach, LateAttach, LostMapping, LostName, OutputFull,
        OverBudget, RingFull, Undecodable, UnmatchedReturn,
    };
    let harmless = |cause: &LossCause| {
        // memory is kept in the kernel, and needs no record of a call; what began before the probes is nobody's growth,
        // and no function that memory is made of is ever left out
        matches!(
            cause,
            RingFull
                | Undecodable
                | CountersFull
                | LostName
                | OutputFull
                | ForgottenEarly
                | LateAttach
                | GoneBeforeAttach
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

/// The latest rows of one process, and what came before them.
#[derive(Clone, Debug)]
struct Holder {
    info: ProcessInfo,
    history: History,
    now: BTreeMap<SiteId, SiteNow>,
    /// Places with series. Who has one keeps it as long as it is near the first, so that series do not come and go.
    seats: HashSet<PlaceId>,
    oldest_ns: HashMap<SiteId, u64>,
    /// The time of the rows by which `oldest_ns` was noted.
    dated_ns: u64,
}

/// What one site holds on all GPUs, and did.
#[derive(Clone, Copy, Debug, Default)]
struct SiteNow {
    live: Total,
    allocations: u64,
    ended: u64,
}

impl SiteNow {
    fn add(&mut self, row: &SiteMemory) {
        self.live.count += row.held.live_allocations;
        self.live.bytes = self.live.bytes.saturating_add(row.held.live_bytes);
        self.allocations += row.allocations;
        self.ended += row.ended_allocations;
    }
}

/// Follows what processes hold.
#[derive(Debug)]
pub struct Holdings {
    rules: Rules,
    /// Processes that ended are kept as they were then.
    keeps_ended: bool,
    holders: BTreeMap<ProcessKey, Holder>,
    places: Places,
    /// When the rows were last taken in: whoever is new had nothing then.
    fed_ns: Option<u64>,
    /// The time of the rows when it was last noted how old what is live is.
    dated_ns: Option<u64>,
}

impl Holdings {
    /// Judges by these rules from now on.
    pub fn judge_by(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Nobody yet. With `keeps_ended`, processes that end stay as they were.
    pub fn new(rules: Rules, keeps_ended: bool) -> Self {
        Self {
            rules,
            keeps_ended,
            holders: BTreeMap::new(),
            places: Places::default(),
            fed_ns: None,
            dated_ns: None,
        }
    }

    /// Whether processes that ended stay as they were.
    pub fn keeps_ended(&self) -> bool {
        self.keeps_ended
    }

    /// Takes in the kernel's rows. `processes` names those that run, and those that ended and still have rows.
    pub fn feed(&mut self, rows: &[SiteMemory], processes: &HashMap<ProcessKey, ProcessInfo>, now_ns: u64) {
        let mut by_process: HashMap<ProcessKey, Vec<&SiteMemory>> = HashMap::new();
        rows.iter().for_each(|row| by_process.entry(row.process).or_default().push(row));
        let began_ns = self.fed_ns.replace(now_ns).unwrap_or(now_ns);
        for (key, rows) in by_process {
            // the rows of one that nobody knows of are left over from its end
            let Some(info) = processes.get(&key) else { continue };
            let holder = self.holders.entry(key).or_insert_with(|| Holder::new(began_ns));
            holder.feed(&rows, info, now_ns);
        }
        let keeps_ended = self.keeps_ended;
        self.holders.retain(|key, holder| match processes.get(key) {
            Some(info) => keeps_ended || info.exited_at_ns.is_none(),
            None => {
                holder.info.exited_at_ns.get_or_insert(now_ns);
                keeps_ended
            }
        });
        self.forget_ended();
        let sites = self.holders.values().flat_map(|holder| holder.now.keys().copied()).collect();
        self.places.keep(&sites);
    }

    fn forget_ended(&mut self) {
        let ended = |holder: &Holder| holder.info.exited_at_ns;
        let mut over: Vec<_> =
            self.holders.iter().filter_map(|(key, holder)| Some((ended(holder)?, *key))).collect();
        over.sort_unstable();
        let many = over.len().saturating_sub(MOST_ENDED);
        over.iter().take(many).for_each(|(_, key)| drop(self.holders.remove(key)));
    }

    /// Notes how old what is live is. Times are on the clock of the rows.
    pub fn date(&mut self, allocations: &[Allocation], since_start: impl Fn(u64) -> u64) {
        self.dated_ns = self.fed_ns;
        for holder in self.holders.values_mut().filter(|h| h.info.exited_at_ns.is_none()) {
            holder.oldest_ns.clear();
            holder.dated_ns = self.fed_ns.unwrap_or_default();
        }
        for allocation in allocations {
            let Some(holder) = self.holders.get_mut(&allocation.process) else { continue };
            let since_ns = since_start(allocation.since_ns);
            let oldest = holder.oldest_ns.entry(allocation.site).or_insert(since_ns);
            *oldest = since_ns.min(*oldest);
        }
    }

    /// Whether somebody is accused in a report and what is live has not been dated of late: it may all be young, and then
    /// it is no leak.
    pub fn wants_dates(&self, report: &MemoryReport) -> bool {
        let age_ns = self.dated_ns.zip(self.fed_ns).map(|(dated, fed)| fed.saturating_sub(dated));
        let mut running = report.processes.iter().filter(|process| !process.has_ended);
        age_ns.is_none_or(|age_ns| age_ns >= DATES_LAST_NS)
            && running.any(|process| process.places.iter().any(PlaceMemory::is_suspect))
    }

    /// The sites whose ways should be asked for: of each process those that grow, then those that hold most.
    pub fn unnamed(&self) -> Vec<SiteId> {
        let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
        for holder in self.holders.values() {
            let mut sites: Vec<_> = holder.now.iter().collect();
            let suspects =
                |site: SiteId| holder.judge([site].into_iter(), self.rules).verdict == Verdict::Suspect;
            sites.sort_by_cached_key(|(site, now)| (Reverse((suspects(**site), now.live.bytes)), **site));
            let first = sites.iter().take(MOST_NAMED).map(|(site, _)| **site);
            wanted.extend(first.filter(|site| !self.places.is_named(*site) && seen.insert(*site)));
        }
        wanted
    }

    /// Takes in the way to a site.
    pub fn name(&mut self, site: SiteId, frames: Vec<gpuprobe_event::Frame>) {
        self.places.name(site, frames);
    }

    /// How everything stands.
    pub fn report(&mut self, losses: &Losses, now_ns: u64) -> MemoryReport {
        let (rules, places) = (self.rules, &self.places);
        let mut processes: Vec<_> =
            self.holders.iter_mut().map(|(key, holder)| holder.report(*key, places, rules, now_ns)).collect();
        processes.sort_by_key(|p| (p.has_ended, Reverse(p.live.bytes), p.pid));
        MemoryReport { now_ns, processes, missing: missing(losses) }
    }
}

impl Holder {
    fn new(began_ns: u64) -> Self {
        Self {
            info: ProcessInfo::default(),
            history: History::new(began_ns),
            now: BTreeMap::new(),
            seats: HashSet::new(),
            oldest_ns: HashMap::new(),
            dated_ns: began_ns,
        }
    }

    fn feed(&mut self, rows: &[&SiteMemory], info: &ProcessInfo, now_ns: u64) {
        // what it held when it ended is what is shown of it
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
        // what was young when it was dated is not held to have aged since, as long as it is not dated again
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
        // those that are followed are enough to accuse, and not enough to acquit
        match judgement.verdict {
            Verdict::Suspect => judgement,
            _ if sites.any(|site| history.is_not_followed(site)) => {
                Judgement { verdict: Verdict::NotFollowed, growth: Growth::default() }
            }
            _ => judgement,
        }
    }

    fn report(&mut self, key: ProcessKey, names: &Places, rules: Rules, now_ns: u64) -> ProcessPlaces {
        let mut groups: BTreeMap<PlaceId, Vec<SiteId>> = BTreeMap::new();
        let (mut live, mut other, mut other_sites) = (Total::default(), Total::default(), 0);
        for (site, now) in &self.now {
            live = live.plus(now.live);
            match names.of(*site) {
                Some(place) => groups.entry(place).or_default().push(*site),
                None => {
                    other = other.plus(now.live);
                    other_sites += usize::from(now.live.count > 0);
                }
            }
        }
        let mut places: Vec<(PlaceId, PlaceMemory)> = groups
            .iter()
            .filter_map(|(id, sites)| Some((*id, self.place(sites, names.get(*id)?, rules, now_ns))))
            .collect();
        places.sort_by_key(|(_, place)| Reverse(place.live.bytes));
        places.sort_by(|(_, a), (_, b)| b.urgency().total_cmp(&a.urgency()));
        self.take_seats(&places);
        places.iter_mut().for_each(|(id, place)| place.has_series = self.seats.contains(id));
        let mut places: Vec<PlaceMemory> = places.into_iter().map(|(_, place)| place).collect();
        let all: Vec<Arc<Place>> = places.iter().map(|p| Arc::clone(&p.place)).collect();
        places.iter_mut().zip(distinct_names(&all)).for_each(|(place, name)| place.name = name);
        ProcessPlaces {
            pid: key.tgid,
            name: self.info.name.clone(),
            container: self.info.container.clone(),
            has_ended: self.info.exited_at_ns.is_some(),
            live,
            places,
            other,
            other_sites,
            not_followed: self.history.not_followed(),
            began_ns: self.history.began_ns(),
            ends_ns: self.history.ends_ns().to_vec(),
        }
    }

    fn place(&self, sites: &[SiteId], place: &Arc<Place>, rules: Rules, now_ns: u64) -> PlaceMemory {
        let mut sum = SiteNow::default();
        for now in sites.iter().filter_map(|site| self.now.get(site)) {
            sum.live = sum.live.plus(now.live);
            sum.allocations = sum.allocations.saturating_add(now.allocations);
            sum.ended = sum.ended.saturating_add(now.ended);
        }
        let at_ns = self.info.exited_at_ns.unwrap_or(now_ns);
        let oldest_ns = sites.iter().filter_map(|site| self.oldest_ns.get(site)).min();
        let is_followed = !sites.iter().any(|site| self.history.is_not_followed(*site));
        let points = self.history.sum(sites.iter().copied());
        PlaceMemory {
            name: String::new(),
            place: Arc::clone(place),
            live: sum.live,
            allocations: sum.allocations,
            frees: sum.allocations.saturating_sub(sum.live.count).saturating_sub(sum.ended),
            ended: sum.ended,
            oldest_age_ns: oldest_ns.filter(|_| sum.live.count > 0).map(|since| at_ns.saturating_sub(*since)),
            judgement: self.judge(sites.iter().copied(), rules),
            curve: points.iter().filter(|_| is_followed).map(|point| point.last_bytes).collect(),
            has_series: false,
        }
    }

    /// Gives series to the first places that hold something.
    fn take_seats(&mut self, places: &[(PlaceId, PlaceMemory)]) {
        let holds = places.iter().filter(|(_, place)| place.live.count > 0).map(|(id, _)| *id);
        let near: HashSet<PlaceId> = holds.clone().take(2 * MOST_SERIES).collect();
        self.seats.retain(|id| near.contains(id));
        for id in holds {
            if self.seats.len() >= MOST_SERIES {
                break;
            }
            self.seats.insert(id);
        }
    }
}

impl PlaceMemory {
    /// It is accused.
    pub fn is_suspect(&self) -> bool {
        self.judgement.verdict == Verdict::Suspect
    }

    /// Suspects by the rate at which they grow; others are as they come.
    fn urgency(&self) -> f64 {
        if self.is_suspect() { self.judgement.growth.rate() } else { 0.0 }
    }
}

#[cfg(test)]
mod tests;
