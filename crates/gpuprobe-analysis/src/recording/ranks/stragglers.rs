//! Which ranks the others wait for: who came last to each collective, and what each rank did with its time.

use std::cmp::Reverse;
use std::collections::HashMap;

use gpuprobe_event::{Call, Class, Event, Outcome, Tgid};
use serde::Serialize;

use super::alignment::{AlignedRecording, Alignment};
use super::bounds::on_clocks;
use super::matching::{Arrival, Matched, Matcher};
use crate::recording::collectives::{Collective, Collectives};

/// Processes with a row.
const MOST_RANKS: usize = 8192;
/// Collectives that are shown one by one.
const MOST_LATE: usize = 8;
/// Ranks that are shown of one of them.
const MOST_ARRIVALS: usize = 64;

/// One rank, or a process without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankFigures {
    pub pid: Tgid,
    /// Its number in the job.
    pub rank: Option<u32>,
    /// Host and rank.
    pub name: String,
    /// Collectives that it made together with others that were observed.
    pub collectives: u64,
    /// How often it came last, later than clocks may be off.
    pub last: u64,
    /// By how much in all: each time, later than the middle one of the others.
    pub late_ns: u64,
    /// By how much at most.
    pub most_late_ns: u64,
    /// How much earlier than the last one it came, in all.
    pub ahead_ns: u64,
    /// Time in outermost calls.
    pub in_calls_ns: u64,
    /// Time in outermost calls that wait for the GPU.
    pub waiting_ns: u64,
    /// Time in outermost calls that launch CUDA kernels and graphs.
    pub launching_ns: u64,
}

/// A rank in a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CollectiveArrival {
    pub pid: Tgid,
    pub name: String,
    /// How much later than the first.
    pub after_first_ns: u64,
}

/// A collective that a rank came late to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LateCollective {
    /// The place of the communicator in [`Collectives::communicators`].
    pub communicator: usize,
    /// Its number in the communicator, from 1.
    pub number: u64,
    pub collective: Collective,
    /// When the last rank came.
    pub at_ns: u64,
    /// How much later than the middle one of the others.
    pub late_ns: u64,
    /// The ranks, the last one first.
    pub arrivals: Vec<CollectiveArrival>,
}

/// The ranks of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RanksReport {
    pub recordings: Vec<AlignedRecording>,
    /// Collectives that at least two observed ranks made.
    pub collectives: u64,
    /// Collectives among them of which the start on GPUs was recorded. For others, a rank comes when it makes the call.
    pub on_gpu: u64,
    /// Collectives to which the last rank was not later than clocks may be off.
    pub undecided: u64,
    /// Collectives in which ranks did not do the same, so that they were not compared.
    pub differing: u64,
    /// Collectives that some ranks made much later than others in the recordings, so that these were not compared.
    pub given_up: u64,
    /// Collectives that ended on a rank before another one had begun, by their times: clocks drift, or were set.
    pub contradicting: u64,
    pub most_contradicting_ns: u64,
    /// By how often they came last.
    pub ranks: Vec<RankFigures>,
    /// Calls and collectives of processes without a row.
    #[serde(rename = "calls_of_other_processes")]
    pub other_processes: u64,
    /// The collectives with the latest ranks.
    pub latest: Vec<LateCollective>,
}

/// Collects a [`RanksReport`] from placed events, merged by time.
#[derive(Debug)]
pub struct Stragglers {
    alignment: Alignment,
    matcher: Matcher,
    report: RanksReport,
    ranks: HashMap<Tgid, RankFigures>,
    matched: Vec<Matched>,
}

impl Stragglers {
    pub fn new(alignment: &Alignment) -> Self {
        let recordings = alignment.recordings().to_vec();
        Self {
            alignment: alignment.clone(),
            matcher: Matcher::default(),
            report: RanksReport { recordings, ..RanksReport::default() },
            ranks: HashMap::new(),
            matched: Vec::new(),
        }
    }

    /// Takes in an event that was placed and not yet renamed: communicators may be joined by the names of processes.
    pub fn feed(&mut self, event: &Event) {
        if let Event::Call(call) = event {
            self.time(call);
        }
        self.matcher.feed(event, &mut self.matched);
        self.compare();
    }

    /// The ranks, and the collectives of all recordings.
    pub fn finish(mut self) -> (RanksReport, Collectives) {
        self.matcher.finish(&mut self.matched);
        self.compare();
        let mut ranks: Vec<_> = self.ranks.into_values().collect();
        ranks.sort_by_key(|rank| (Reverse(rank.last), Reverse(rank.late_ns), rank.rank, rank.pid));
        let given_up = self.matcher.given_up;
        (RanksReport { ranks, given_up, ..self.report }, self.matcher.collectives())
    }

    fn time(&mut self, call: &Call) {
        let Outcome::Returned { duration_ns, .. } = call.outcome else { return };
        if call.parent.is_some() || call.is_in_linux() {
            return;
        }
        let ns = duration_ns.saturating_mul(call.weight.into());
        let Some(rank) = self.rank(call.tgid) else { return };
        rank.in_calls_ns = rank.in_calls_ns.saturating_add(ns);
        match call.class {
            Class::Sync => rank.waiting_ns = rank.waiting_ns.saturating_add(ns),
            Class::Launch | Class::GraphLaunch => rank.launching_ns = rank.launching_ns.saturating_add(ns),
            _ => {}
        }
    }

    fn rank(&mut self, tgid: Tgid) -> Option<&mut RankFigures> {
        if !self.ranks.contains_key(&tgid) {
            if self.ranks.len() >= MOST_RANKS {
                self.report.other_processes += 1;
                return None;
            }
            let (rank, name) = self.alignment.name_of(tgid);
            let name = name.unwrap_or_default().to_owned();
            self.ranks.insert(tgid, RankFigures { pid: tgid, rank, name, ..RankFigures::default() });
        }
        self.ranks.get_mut(&tgid)
    }

    fn compare(&mut self) {
        for matched in std::mem::take(&mut self.matched) {
            if matched.arrivals.len() < 2 {
                continue;
            }
            if matched.differs {
                self.report.differing += 1;
                continue;
            }
            self.check(&matched);
            self.arrivals(&matched);
        }
    }

    /// Counts a collective that ended before it had begun.
    fn check(&mut self, matched: &Matched) {
        let at = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let on = on_clocks(matched, |arrival, ns| (arrival.tgid.recording(), at(ns)));
        let apart = |(one, begin_ns): (usize, i64)| {
            let others = on.iter().filter(|(other, _)| **other != one);
            let first_end_ns = others.filter_map(|(_, of)| of.end_ns).min()?;
            Some(begin_ns.saturating_sub(first_end_ns))
        };
        let begun = on.iter().filter_map(|(recording, of)| Some((*recording, of.begin_ns?)));
        let most_ns = begun.filter_map(apart).max().unwrap_or(0);
        if most_ns > 0 {
            self.report.contradicting += 1;
            let most_ns = most_ns.unsigned_abs();
            self.report.most_contradicting_ns = self.report.most_contradicting_ns.max(most_ns);
        }
    }

    fn arrivals(&mut self, matched: &Matched) {
        let are_on_gpu = matched.arrivals.iter().all(|arrival| arrival.ran_ns.is_some());
        let came_ns = |arrival: &Arrival| arrival.ran_ns.filter(|_| are_on_gpu).unwrap_or(arrival.begin_ns);
        let mut arrivals: Vec<_> = matched.arrivals.iter().map(|of| (came_ns(of), of.tgid)).collect();
        arrivals.sort_unstable();
        let (Some(&(last_ns, last)), Some(&(first_ns, _))) = (arrivals.last(), arrivals.first()) else {
            return;
        };
        // the middle one of the others, of two the earlier one
        let middle_ns = arrivals.get((arrivals.len() - 2) / 2).map_or(last_ns, |(at_ns, _)| *at_ns);
        let late_ns = last_ns - middle_ns;
        self.report.collectives += 1;
        self.report.on_gpu += u64::from(are_on_gpu);
        for (at_ns, tgid) in &arrivals {
            let Some(rank) = self.rank(*tgid) else { continue };
            rank.collectives += 1;
            rank.ahead_ns = rank.ahead_ns.saturating_add(last_ns - at_ns);
        }
        if late_ns <= self.uncertainty_ns(&arrivals) {
            self.report.undecided += 1;
            return;
        }
        if let Some(rank) = self.rank(last) {
            rank.last += 1;
            rank.late_ns = rank.late_ns.saturating_add(late_ns);
            rank.most_late_ns = rank.most_late_ns.max(late_ns);
        }
        let latest = &mut self.report.latest;
        if latest.len() >= MOST_LATE && latest.last().is_some_and(|of| of.late_ns >= late_ns) {
            return;
        }
        let named = |(at_ns, tgid): &(u64, Tgid)| CollectiveArrival {
            pid: *tgid,
            name: self.alignment.process_name(*tgid).unwrap_or_default().to_owned(),
            after_first_ns: at_ns - first_ns,
        };
        latest.push(LateCollective {
            communicator: matched.communicator,
            number: matched.place.saturating_add(1),
            collective: matched.made,
            at_ns: last_ns,
            late_ns,
            arrivals: arrivals.iter().rev().take(MOST_ARRIVALS).map(named).collect(),
        });
        latest.sort_by_key(|of| Reverse(of.late_ns));
        latest.truncate(MOST_LATE);
    }

    /// How far the times of these may be off from each other. Where nothing shows it, times are taken as they are.
    fn uncertainty_ns(&self, arrivals: &[(u64, Tgid)]) -> u64 {
        let first = arrivals.first().map_or(0, |(_, tgid)| tgid.recording());
        if arrivals.iter().all(|(_, tgid)| tgid.recording() == first) {
            return 0;
        }
        let of = |tgid: &Tgid| self.report.recordings.get(tgid.recording())?.uncertainty_ns;
        arrivals.iter().filter_map(|(_, tgid)| of(tgid)).max().unwrap_or(0)
    }
}
