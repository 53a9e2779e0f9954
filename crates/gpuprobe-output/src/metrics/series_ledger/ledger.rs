//! Decides from snapshot to snapshot which processes have series of their own, and keeps the sums over the others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gpuprobe_analysis::{ProcessSnapshot, Snapshot};

use super::super::labels::clean;
use super::super::process_series::{
    Aggregate, BoundedLabels, Member, NamePart, OwnLabels, OwnPart, ProcessLabels, SeriesPlan, Totals,
};
use super::counted::counted;
use super::silent::Silent;

/// How many series processes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesSettings {
    /// Which processes have common series.
    pub aggregate: Aggregate,
    /// Running processes with series of their own.
    pub most: usize,
    /// Exited processes with series of their own, beyond the running ones.
    pub most_exited: usize,
    /// Series end, and processes are chosen again, at most once in this time.
    pub change_every: Duration,
}

impl Default for SeriesSettings {
    fn default() -> Self {
        let (aggregate, change_every) = (Aggregate::Process, Duration::from_secs(300));
        Self { aggregate, most: usize::MAX, most_exited: usize::MAX, change_every }
    }
}

/// Names with sums of their own. Any process can take any name, so further ones share [`OTHER`].
const MOST_NAMES: usize = 64;
const OTHER: &str = "other";
/// A running process takes the series of another only if it has so many times its live bytes: series that come and go
/// cost more than they tell.
const CLEARLY_MORE: u64 = 2;
/// Series are chosen so many times as often if there is no room for new ones.
const SOONER: u32 = 5;
/// The endpoint counts as scraped regularly after this many scrapes with at least [`BETWEEN_SCRAPES`] between them...
const SCRAPES: u32 = 3;
const BETWEEN_SCRAPES: f64 = 5.0;
/// ...until there was none for this long. Prometheus scrapes once a minute by default.
const SCRAPED_FOR: f64 = 150.0;

/// Series of their own.
#[derive(Clone, Debug)]
struct OwnSeries {
    /// The name of its first process.
    name: String,
    /// What the series has beyond the counters of processes in the snapshot.
    past: Arc<Totals>,
    /// Kernels and commands with series.
    bounded: Arc<BoundedLabels>,
    /// The snapshot in which it began.
    since: u64,
    /// The snapshot in which a process of it was counted for the last time.
    last: u64,
}

impl OwnSeries {
    /// Counters as they are in the series.
    fn in_series(&mut self, totals: &Totals) -> Totals {
        totals.bounded(Arc::make_mut(&mut self.bounded))
    }
}

#[derive(Clone, Debug, Default)]
struct NameSums {
    counted: Arc<Totals>,
    ended: Arc<Totals>,
    /// When `ended` changed last, in seconds since 1970: the label `ended`, which so differs from those before a restart.
    ended_at: u64,
    bounded: Arc<BoundedLabels>,
}

impl NameSums {
    /// Counters as they are in this sum.
    fn in_sum(&mut self, totals: &Totals) -> Totals {
        totals.bounded(Arc::make_mut(&mut self.bounded))
    }
}

/// The processes of a snapshot that share series.
#[derive(Clone, Debug, Default)]
struct Group<'a> {
    processes: Vec<&'a ProcessSnapshot>,
    is_running: bool,
    live_bytes: u64,
    calls: u64,
}

/// When the endpoint was scraped.
#[derive(Clone, Copy, Debug, Default)]
struct Scrapes {
    /// The newest snapshot that was scraped.
    newest: Option<u64>,
    counted: u32,
    last: f64,
}

impl Scrapes {
    fn take(&mut self, newest: Option<u64>, now: f64) {
        if newest <= self.newest {
            return;
        }
        self.newest = newest;
        if self.counted == 0 || now - self.last >= BETWEEN_SCRAPES {
            let is_regular = now - self.last < SCRAPED_FOR;
            self.counted = if is_regular { self.counted.saturating_add(1) } else { 1 };
            self.last = now;
        }
    }

    fn are_regular(&self, now: f64) -> bool {
        self.counted >= SCRAPES && now - self.last < SCRAPED_FOR
    }

    fn have_seen(&self, snapshot: u64) -> bool {
        self.newest.is_some_and(|newest| newest >= snapshot)
    }
}

/// Takes the series that this is true of.
fn take_if(
    all: &mut BTreeMap<ProcessLabels, OwnSeries>,
    is_taken: impl Fn(&ProcessLabels, &OwnSeries) -> bool,
) -> Vec<(ProcessLabels, OwnSeries)> {
    let taken = all.iter().filter(|(labels, own)| is_taken(labels, own)).map(|(labels, _)| labels.clone());
    let taken: Vec<_> = taken.collect();
    taken.into_iter().filter_map(|labels| all.remove_entry(&labels)).collect()
}

/// The series of processes, from snapshot to snapshot.
#[derive(Debug, Default)]
pub struct SeriesLedger {
    settings: SeriesSettings,
    own: BTreeMap<ProcessLabels, OwnSeries>,
    /// Processes of the snapshot before that are in the sums.
    summed: BTreeSet<ProcessLabels>,
    sums: BTreeMap<String, NameSums>,
    /// Processes without counted calls that have series of their own.
    silent: BTreeSet<ProcessLabels>,
    scrapes: Scrapes,
    /// When series were chosen again last, in seconds since 1970.
    changed: f64,
}

impl SeriesLedger {
    /// Without processes.
    pub fn new(settings: SeriesSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Applies other settings from the next snapshot on. Which processes have common series can change only before the first
    /// one.
    pub fn set(&mut self, settings: SeriesSettings) {
        let has_begun = !self.own.is_empty() || !self.sums.is_empty();
        let aggregate = if has_begun { self.settings.aggregate } else { settings.aggregate };
        self.settings = SeriesSettings { aggregate, ..settings };
    }

    /// The series for a snapshot, which has this number. `scraped`: the newest one that was scraped.
    pub(crate) fn take(&mut self, snapshot: &Snapshot, number: u64, scraped: Option<u64>) -> SeriesPlan {
        let now = snapshot.unix_seconds;
        self.scrapes.take(scraped, now);
        self.take_summed_up(snapshot, number);
        let groups = self.groups(snapshot);
        self.drop_unseen(&groups, now);
        // the clock may be set back
        if (now - self.changed).abs() >= self.change_every().as_secs_f64() {
            self.end_series(&groups, now);
            self.replace_small(&groups, snapshot);
            self.changed = now;
        }
        self.begin_series(&groups, snapshot, number, now);
        self.plan(&groups, Silent::of(snapshot))
    }

    /// Series end sooner if there is no room for new ones.
    fn change_every(&self) -> Duration {
        let SeriesSettings { most, most_exited, change_every, .. } = self.settings;
        let is_full = self.own.len() >= most.saturating_add(most_exited);
        if is_full { change_every / SOONER } else { change_every }
    }

    fn labels_of(&self, process: &ProcessSnapshot) -> ProcessLabels {
        ProcessLabels::new(self.settings.aggregate, process.pid, &process.name, process.container.as_ref())
    }

    /// Adds processes that were in the snapshot before and no longer are.
    fn take_summed_up(&mut self, snapshot: &Snapshot, number: u64) {
        for process in &snapshot.summed_up {
            let labels = self.labels_of(process);
            match self.own.get_mut(&labels) {
                Some(own) => {
                    own.last = number;
                    let totals = own.in_series(&counted(process, snapshot.has_tensors));
                    Arc::make_mut(&mut own.past).add(&totals);
                }
                None => self.count(process, snapshot.has_tensors, Totals::add),
            }
        }
    }

    /// Adds the counters of a process to the sum of its name, or subtracts them.
    fn count(&mut self, process: &ProcessSnapshot, has_tensors: bool, change: fn(&mut Totals, &Totals)) {
        let sums = self.sums_of(&process.name);
        let totals = sums.in_sum(&counted(process, has_tensors));
        change(Arc::make_mut(&mut sums.counted), &totals);
    }

    /// Adds to the sum over series that have ended.
    fn end(&mut self, name: &str, totals: &Totals, now: f64) {
        let sums = self.sums_of(name);
        let totals = sums.in_sum(totals);
        Arc::make_mut(&mut sums.ended).add(&totals);
        // the clock may be set back, and changes may come within a second
        sums.ended_at = (now as u64).max(sums.ended_at + 1);
    }

    fn sums_of(&mut self, name: &str) -> &mut NameSums {
        // names that are written in the same way are the same
        let name = clean(name);
        let most = if self.has_only_sums() { self.settings.most.max(MOST_NAMES) } else { MOST_NAMES };
        let has_room = self.sums.len() < most || self.sums.contains_key(&name);
        // series without a name are those of processes outside of containers, with `--aggregate container`
        let has_own = has_room && !name.is_empty();
        self.sums.entry(if has_own { name } else { OTHER.to_owned() }).or_default()
    }

    /// Own series would have the labels of the sums.
    fn has_only_sums(&self) -> bool {
        self.settings.aggregate == Aggregate::Name
    }

    /// Whether several processes may share own series.
    fn are_shared(&self) -> bool {
        self.settings.aggregate != Aggregate::Process
    }

    fn groups<'a>(&self, snapshot: &'a Snapshot) -> BTreeMap<ProcessLabels, Group<'a>> {
        let mut groups: BTreeMap<ProcessLabels, Group<'a>> = BTreeMap::new();
        for process in &snapshot.processes {
            let group = groups.entry(self.labels_of(process)).or_default();
            group.is_running |= process.exited_at_ns.is_none();
            let live = process.memory.live.iter().map(|live| live.amount.bytes);
            group.live_bytes = live.fold(group.live_bytes, u64::saturating_add);
            let calls = process.functions.iter().map(|function| function.calls);
            group.calls = calls.fold(group.calls, u64::saturating_add);
            group.processes.push(process);
        }
        groups
    }

    /// Series of processes that exited before they were scraped are not begun: their first sample would be their last, and
    /// no rate would see it. In the sum of their name it is an increase.
    fn drop_unseen(&mut self, groups: &BTreeMap<ProcessLabels, Group<'_>>, now: f64) {
        if !self.scrapes.are_regular(now) {
            return;
        }
        let runs = |labels: &ProcessLabels| groups.get(labels).is_some_and(|group| group.is_running);
        let scrapes = self.scrapes;
        let is_unseen =
            |labels: &ProcessLabels, own: &OwnSeries| !runs(labels) && !scrapes.have_seen(own.since);
        let unseen = take_if(&mut self.own, is_unseen);
        for (labels, own) in unseen {
            let sums = self.sums_of(&own.name);
            let past = sums.in_sum(&own.past);
            Arc::make_mut(&mut sums.counted).add(&past);
            self.summed.insert(labels);
        }
    }

    /// Ends the series of processes that are no longer in the snapshot.
    fn end_series(&mut self, groups: &BTreeMap<ProcessLabels, Group<'_>>, now: f64) {
        let (scrapes, regular) = (self.scrapes, self.scrapes.are_regular(now));
        // the last value must be seen before it is in the sum
        let is_over = |labels: &ProcessLabels, own: &OwnSeries| {
            !groups.contains_key(labels) && (!regular || scrapes.have_seen(own.last))
        };
        let gone = take_if(&mut self.own, is_over);
        let mut by_name: BTreeMap<String, Totals> = BTreeMap::new();
        for (_, own) in gone {
            by_name.entry(own.name).or_default().add(&own.past);
        }
        by_name.iter().for_each(|(name, totals)| self.end(name, totals, now));
    }

    /// Ends the series of the smallest running processes if others have far more live bytes.
    fn replace_small(&mut self, groups: &BTreeMap<ProcessLabels, Group<'_>>, snapshot: &Snapshot) {
        let running = |(_, group): &(&ProcessLabels, &Group<'_>)| group.is_running;
        let (mut listed, mut others): (Vec<_>, Vec<_>) =
            groups.iter().filter(running).partition(|(labels, _)| self.own.contains_key(*labels));
        let free = self.settings.most.saturating_sub(listed.len());
        listed.sort_by_key(|(_, group)| (group.live_bytes, group.calls));
        // the settings may have changed
        let too_many = listed.len().saturating_sub(self.settings.most);
        for (labels, group) in listed.drain(..too_many) {
            self.end_running(labels, group, snapshot);
        }
        others.sort_by_key(|(_, group)| Reverse((group.live_bytes, group.calls)));
        for ((labels, small), (_, large)) in listed.into_iter().zip(others.into_iter().skip(free)) {
            if large.live_bytes > small.live_bytes.saturating_mul(CLEARLY_MORE) {
                self.end_running(labels, small, snapshot);
            }
        }
    }

    /// Moves what the series of running processes have so far to those that have ended. What they count from now on is in
    /// the sum of their name.
    fn end_running(&mut self, labels: &ProcessLabels, group: &Group<'_>, snapshot: &Snapshot) {
        let Some(mut own) = self.own.remove(labels) else { return };
        let mut value = own.past.as_ref().clone();
        for process in &group.processes {
            value.add(&own.in_series(&counted(process, snapshot.has_tensors)));
            self.count(process, snapshot.has_tensors, Totals::subtract);
        }
        self.end(&own.name, &value, snapshot.unix_seconds);
        self.summed.insert(labels.clone());
    }

    /// Begins series of processes while there is room, the largest first.
    fn begin_series(
        &mut self,
        groups: &BTreeMap<ProcessLabels, Group<'_>>,
        snapshot: &Snapshot,
        number: u64,
        now: f64,
    ) {
        let SeriesSettings { most, most_exited, .. } = self.settings;
        let is_listed_and_runs =
            |labels: &ProcessLabels| groups.get(labels).is_some_and(|group| group.is_running);
        let mut running = self.own.keys().filter(|labels| is_listed_and_runs(labels)).count();
        let mut others: Vec<_> =
            groups.iter().filter(|(labels, _)| !self.own.contains_key(*labels)).collect();
        others.sort_by_key(|(_, group)| Reverse((group.is_running, group.live_bytes, group.calls)));
        let regular = self.scrapes.are_regular(now);
        let before = std::mem::take(&mut self.summed);
        for (labels, group) in others {
            let was_summed = before.contains(labels);
            let exited_late = !group.is_running && (regular || was_summed);
            let is_full =
                self.own.len() >= most.saturating_add(most_exited) || (group.is_running && running >= most);
            if self.has_only_sums() || is_full || exited_late {
                self.summed.insert(labels.clone());
                continue;
            }
            running += usize::from(group.is_running);
            let name = group.processes.first().map(|process| process.name.clone()).unwrap_or_default();
            let bounded =
                if self.are_shared() { BoundedLabels::default() } else { BoundedLabels::of_process() };
            let bounded = Arc::new(bounded);
            let mut own = OwnSeries { name, past: Arc::default(), bounded, since: number, last: number };
            // what it counted so far stays in the sum of its name
            for process in group.processes.iter().filter(|_| was_summed) {
                self.count(process, snapshot.has_tensors, Totals::add);
                let totals = own.in_series(&counted(process, snapshot.has_tensors));
                Arc::make_mut(&mut own.past).subtract(&totals);
            }
            self.own.insert(labels.clone(), own);
        }
    }

    /// Own series for processes without counted calls, while there is room: those that had them, then those with most memory.
    fn choose_silent(&mut self, groups: &BTreeMap<ProcessLabels, Group<'_>>, silent: &[Silent]) {
        let running =
            groups.iter().filter(|(labels, group)| group.is_running && self.own.contains_key(*labels));
        let room = self.settings.most.saturating_sub(running.count());
        let mut sizes: BTreeMap<ProcessLabels, u64> = BTreeMap::new();
        for process in silent.iter().filter(|_| !self.has_only_sums()) {
            let size = sizes.entry(process.labels(self.settings.aggregate)).or_default();
            *size = size.saturating_add(process.bytes);
        }
        let mut all: Vec<_> =
            sizes.into_iter().filter(|(labels, _)| !self.own.contains_key(labels)).collect();
        all.sort_by_key(|(labels, bytes)| Reverse((self.silent.contains(labels), *bytes)));
        self.silent = all.into_iter().take(room).map(|(labels, _)| labels).collect();
    }

    fn has_own(&self, labels: &ProcessLabels) -> bool {
        self.own.contains_key(labels) || self.silent.contains(labels)
    }

    fn plan(&mut self, groups: &BTreeMap<ProcessLabels, Group<'_>>, silent: Vec<Silent>) -> SeriesPlan {
        self.choose_silent(groups, &silent);
        for process in &silent {
            if !self.has_own(&process.labels(self.settings.aggregate)) {
                self.sums_of(&process.name);
            }
        }
        // kernels and commands of every process that shares series
        for (labels, group) in groups {
            for process in &group.processes {
                match self.own.get_mut(labels) {
                    Some(own) => Arc::make_mut(&mut own.bounded).note(process),
                    None => Arc::make_mut(&mut self.sums_of(&process.name).bounded).note(process),
                }
            }
        }
        let names: Vec<String> = self.sums.keys().cloned().collect();
        let other = names.iter().position(|name| name == OTHER).unwrap_or_default();
        let sum_of = |name: &str| names.binary_search(&clean(name)).unwrap_or(other);
        let mut members: HashMap<_, Vec<Member>> = HashMap::new();
        for (labels, group) in groups {
            let own = self.own.get(labels).map(|own| OwnLabels {
                process: Arc::new(labels.clone()),
                is_shared: self.are_shared(),
                bounded: Some(Arc::clone(&own.bounded)),
            });
            for process in &group.processes {
                let (name, container) = (process.name.clone(), process.container.clone());
                let member = Member { sum: sum_of(&name), name, container, own: own.clone() };
                members.entry(process.pid).or_default().push(member);
            }
        }
        for process in silent {
            let labels = process.labels(self.settings.aggregate);
            let own = self.has_own(&labels).then(|| OwnLabels {
                process: Arc::new(labels),
                is_shared: self.are_shared(),
                bounded: None,
            });
            let Silent { pid, name, container, .. } = process;
            members.entry(pid).or_default().push(Member { sum: sum_of(&name), name, container, own });
        }
        let own = self.own.iter().filter(|(_, own)| !own.past.is_empty());
        let own_part = |(labels, own): (&ProcessLabels, &OwnSeries)| OwnPart {
            labels: Arc::new(labels.clone()),
            past: Arc::clone(&own.past),
        };
        let sum_part = |(name, sums): (&String, &NameSums)| NamePart {
            labels: ProcessLabels::of_name(name),
            counted: Arc::clone(&sums.counted),
            ended: Arc::clone(&sums.ended),
            ended_at: sums.ended_at.to_string(),
            bounded: Arc::clone(&sums.bounded),
        };
        SeriesPlan {
            aggregate: self.settings.aggregate,
            members,
            own: own.map(own_part).collect(),
            sums: self.sums.iter().map(sum_part).collect(),
        }
    }
}
