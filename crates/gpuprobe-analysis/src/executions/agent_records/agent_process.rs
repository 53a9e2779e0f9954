//! What the agent of one process reports.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use gpuprobe_event::agent::{Activity, ActivityKind, AgentState, BatchHeader, Collection, RangeRecord};
use gpuprobe_event::{AgentEvent, Event, Execution, ExecutionKind, RangeEvent, SubmittingCall, Tgid, Tid};

use crate::executions::matching::{Correlated, Found, Matcher, direction};

/// Activities wait so long for others with lower correlation ids, which may arrive later: CUPTI delivers an activity
/// when it has ended.
const SETTLE_NS: u64 = 1_000_000_000;
/// What has a name waits so long for it.
const NAME_WAIT_NS: u64 = 5_000_000_000;
/// Activities that wait. With more, they are matched at once.
const MOST_WAITING: usize = 1 << 17;
const MOST_RANGES: usize = 1 << 16;

/// Names by the ids that the agent gives them.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashMap<u64, Arc<str>>,
    bytes: usize,
}

impl Names {
    const MOST_BYTES: usize = 16 << 20;

    /// What does not fit is not known.
    pub(super) fn insert(&mut self, id: u64, name: &str) {
        if self.bytes < Self::MOST_BYTES && self.names.get(&id).is_none_or(|known| **known != *name) {
            self.bytes += name.len() + size_of::<(u64, Arc<str>)>();
            self.names.insert(id, Arc::from(name));
        }
    }

    fn get(&self, id: u64) -> Option<&Arc<str>> {
        self.names.get(&id)
    }
}

#[derive(Debug, Default)]
struct Waiting {
    activities: Vec<Activity>,
    arrived_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct AgentProcess {
    pub(super) name: Arc<str>,
    pub(super) matcher: Matcher,
    pub(super) names: Names,
    /// With the time of their arrival.
    pub(super) ranges: VecDeque<(RangeRecord, u64)>,
    /// By correlation id, which counts on where 32 bits end.
    waiting: BTreeMap<u64, Waiting>,
    waiting_activities: usize,
    last_correlation: Option<u64>,
    /// Of the last batch.
    header: Option<BatchHeader>,
    /// The last state. The agent sends it again and again, for others that begin to listen.
    last_state: Option<AgentState>,
    /// Executions without times.
    without_times: u64,
}

impl AgentProcess {
    pub(super) fn is_full(&self) -> bool {
        self.waiting_activities >= MOST_WAITING || self.ranges.len() >= MOST_RANGES
    }

    pub(super) fn take_without_times(&mut self) -> u64 {
        std::mem::take(&mut self.without_times)
    }

    /// Notices what was lost before this batch.
    pub(super) fn header(&mut self, header: &BatchHeader, now_ns: u64) {
        let before = self.header.replace(*header);
        // the counts are those since the process started
        let Some(before) = before else { return };
        let batches = header.sequence.saturating_sub(before.sequence).saturating_sub(1);
        let lost = header.dropped.saturating_sub(before.dropped).saturating_add(batches);
        if lost > 0 {
            self.matcher.lost_executions(now_ns);
        }
    }

    pub(super) fn activity(&mut self, mut activity: Activity, origin_ns: u64, now_ns: u64) {
        if activity.end_ns > 0 {
            // 0 means that there are no times
            activity.start_ns = activity.start_ns.saturating_sub(origin_ns).max(1);
            activity.end_ns = activity.end_ns.saturating_sub(origin_ns).max(activity.start_ns);
        }
        let id = self.unwrapped(activity.correlation);
        let waiting = self.waiting.entry(id).or_default();
        waiting.arrived_ns = now_ns;
        waiting.activities.push(activity);
        self.waiting_activities += 1;
    }

    /// The correlation id with the bits that 32 bits do not have.
    fn unwrapped(&mut self, correlation: u32) -> u64 {
        // leaves room for earlier ones
        const FIRST: u64 = 1 << 32;
        let Some(last) = self.last_correlation else {
            let id = FIRST + u64::from(correlation);
            self.last_correlation = Some(id);
            return id;
        };
        let distance = correlation.wrapping_sub(last as u32).cast_signed();
        let id = last.saturating_add_signed(distance.into());
        self.last_correlation = Some(last.max(id));
        id
    }

    pub(super) fn state(&mut self, tgid: Tgid, state: &AgentState, origin_ns: u64, events: &mut Vec<Event>) {
        if self.last_state.as_ref() == Some(state) {
            return;
        }
        self.last_state = Some(state.clone());
        let since = |ns: u64| ns.saturating_sub(origin_ns);
        let (begin_ns, end_ns) = (since(state.begin_ns), since(state.end_ns.max(state.begin_ns)));
        if state.collection == Collection::Collecting {
            // what was collected before has arrived
            self.flush(tgid, origin_ns, events);
            self.matcher.began(begin_ns, end_ns);
        } else {
            self.matcher.ended(end_ns);
        }
        events.push(Event::Agent(Box::new(AgentEvent {
            id: 0,
            tgid,
            tid: Tid(state.tid),
            process: Arc::clone(&self.name),
            begin_ns,
            end_ns,
            collection: state.collection,
            graphs: state.graphs,
            code: state.code,
            text: Arc::from(&*state.text),
        })));
    }

    /// Gives out everything that waits.
    pub(super) fn flush(&mut self, tgid: Tgid, origin_ns: u64, events: &mut Vec<Event>) {
        self.settle(tgid, origin_ns, None, u64::MAX, events);
    }

    /// Gives out what has waited long enough, or everything if no time is given. All calls before `calls_ns` are known:
    /// what started later waits for the call that submitted it.
    pub(super) fn settle(
        &mut self,
        tgid: Tgid,
        origin_ns: u64,
        now_ns: Option<u64>,
        calls_ns: u64,
        events: &mut Vec<Event>,
    ) {
        let first = events.len();
        let count = self.settled(now_ns, calls_ns);
        if count > 0 {
            self.executions(tgid, count, events);
        }
        self.ranges(tgid, origin_ns, now_ns, events);
        if let Some(new) = events.get_mut(first..) {
            new.sort_by_key(|event| match event {
                Event::Execution(execution) => execution.end_ns,
                Event::Range(range) => range.end_ns,
                _ => 0,
            });
        }
    }

    /// How many correlation ids wait no longer.
    fn settled(&self, now_ns: Option<u64>, calls_ns: u64) -> usize {
        let Some(now_ns) = now_ns else { return self.waiting.len() };
        let waits_for_call =
            |waiting: &Waiting| waiting.activities.iter().any(|activity| activity.start_ns > calls_ns);
        let is_settled = |waiting: &Waiting| waiting.arrived_ns.saturating_add(SETTLE_NS) <= now_ns;
        let last = self.waiting.iter().rev().find(|(_, waiting)| is_settled(waiting));
        let Some((last, _)) = last else { return 0 };
        let misses_name = |waiting: &Waiting| {
            let is_unknown =
                |activity: &Activity| activity.name != 0 && self.names.get(activity.name).is_none();
            waiting.arrived_ns.saturating_add(NAME_WAIT_NS) > now_ns
                && waiting.activities.iter().any(is_unknown)
        };
        self.waiting
            .range(..=last)
            .take_while(|(_, waiting)| !misses_name(waiting) && !waits_for_call(waiting))
            .count()
    }

    fn executions(&mut self, tgid: Tgid, count: usize, events: &mut Vec<Event>) {
        let ahead = self.waiting.iter().take(count + Matcher::AHEAD);
        let all: Vec<Correlated> = ahead.map(|(id, waiting)| self.correlated(*id, waiting)).collect();
        let found = self.matcher.matched(&all, count);
        for (one, found) in all.into_iter().zip(found) {
            self.waiting.remove(&one.id);
            for (activity, name) in one.activities {
                self.waiting_activities -= 1;
                if activity.end_ns == 0 {
                    self.without_times += 1;
                    continue;
                }
                events.push(Event::Execution(Box::new(self.execution(tgid, &activity, name, found))));
            }
        }
    }

    fn correlated(&self, id: u64, waiting: &Waiting) -> Correlated {
        let named = |activity: &Activity| (*activity, self.names.get(activity.name).cloned());
        Correlated { id, activities: waiting.activities.iter().map(named).collect() }
    }

    fn execution(
        &self,
        tgid: Tgid,
        activity: &Activity,
        name: Option<Arc<str>>,
        found: Option<Found>,
    ) -> Execution {
        let submission = |found: Found| SubmittingCall {
            call: found.call,
            tid: found.tid,
            queued_ns: activity.start_ns.saturating_sub(found.start_ns),
        };
        Execution {
            id: 0,
            tgid,
            process: Arc::clone(&self.name),
            kind: match activity.kind {
                ActivityKind::Kernel => ExecutionKind::Kernel {
                    name,
                    grid: activity.grid,
                    block: activity.block,
                    shared_bytes: activity.shared_bytes,
                },
                ActivityKind::Copy => {
                    ExecutionKind::Copy { direction: direction(activity.copy_kind), bytes: activity.bytes }
                }
                ActivityKind::Memset => ExecutionKind::Memset { bytes: activity.bytes },
                ActivityKind::Graph => ExecutionKind::Graph,
            },
            start_ns: activity.start_ns,
            end_ns: activity.end_ns,
            gpu: activity.device,
            context: activity.context,
            stream: activity.stream,
            correlation: activity.correlation,
            graph: Some(activity.graph).filter(|graph| *graph != 0),
            submission: found.map(submission),
        }
    }

    fn ranges(&mut self, tgid: Tgid, origin_ns: u64, now_ns: Option<u64>, events: &mut Vec<Event>) {
        let is_named = |id: u64| id == 0 || self.names.get(id).is_some();
        let is_settled = |(range, arrived_ns): &(RangeRecord, u64)| {
            let has_waited = now_ns.is_none_or(|now_ns| arrived_ns.saturating_add(NAME_WAIT_NS) <= now_ns);
            has_waited || (is_named(range.name) && is_named(range.domain))
        };
        let count = self.ranges.iter().take_while(|range| is_settled(range)).count();
        for (range, _) in self.ranges.drain(..count) {
            let start_ns = range.start_ns.saturating_sub(origin_ns);
            events.push(Event::Range(Box::new(RangeEvent {
                id: 0,
                tgid,
                tid: Tid(range.tid),
                process: Arc::clone(&self.name),
                kind: range.kind,
                start_ns,
                end_ns: range.end_ns.saturating_sub(origin_ns).max(start_ns),
                domain: self.names.get(range.domain).cloned(),
                name: self.names.get(range.name).cloned().unwrap_or_default(),
                color: range.color,
            })));
        }
    }
}
