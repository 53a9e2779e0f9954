//! Gaps: from the return of a launch or of a wait to the beginning of the next launch on that stream.

use std::collections::HashMap;

use gpuprobe_event::counters::GapKind;
use gpuprobe_event::event::Name;
use gpuprobe_event::{Api, Call, Class, Tgid, Tid, catalogue};

use super::op::Given;
use crate::gpu_ops::gaps::{Gap, Gaps, SHORT_GAP_LOG2};
use crate::gpu_ops::streams::stream_of;
use crate::stats::buckets::bucket;

/// Streams and threads that are followed; gaps of more of them are not told.
const MOST_STREAMS: usize = 8192;
const MOST_THREADS: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct Idle {
    gaps: Gaps,
    streams: HashMap<(Tgid, u64), Stream>,
    /// When all streams of a process were last waited for.
    waits: HashMap<Tgid, u64>,
    /// When the last wait of each thread ended.
    waited: HashMap<(Tgid, Tid), u64>,
    threads: HashMap<(Tgid, Tid), Meanwhile>,
    /// How long that stream of a process was idle which was so for longest.
    idlest: HashMap<Tgid, u64>,
    /// The same, of all that ended.
    idlest_ended_ns: u64,
}

/// When the last launch on a stream returned, and the last wait for it.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    launched_ns: Option<u64>,
    synced_ns: Option<u64>,
    has_gaps: bool,
    /// What its short gaps after waits come to at least.
    idle_ns: u64,
}

/// The longest call of a thread since it launched or waited.
#[derive(Clone, Copy, Debug)]
struct Meanwhile {
    name: Option<&'static str>,
    ns: u64,
    since_ns: u64,
}

impl Idle {
    pub(super) fn gaps(&self) -> Gaps {
        let idle_ns = self.idlest.values().copied().fold(self.idlest_ended_ns, u64::saturating_add);
        Gaps { idle_ns, ..self.gaps.clone() }
    }

    /// A process has ended, or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        self.streams.retain(|(of, _), _| *of != tgid);
        self.threads.retain(|(of, _), _| *of != tgid);
        self.waited.retain(|(of, _), _| *of != tgid);
        self.waits.remove(&tgid);
        let idlest_ns = self.idlest.remove(&tgid).unwrap_or(0);
        self.idlest_ended_ns = self.idlest_ended_ns.saturating_add(idlest_ns);
    }

    /// A call that gave no work: waits, and ends of streams.
    pub(super) fn feed(&mut self, call: &Call) {
        if call.failed() || call.duration_ns().is_none() {
            return;
        }
        match call.class {
            Class::Sync => self.sync(call),
            Class::Stream if is_destroy(call) => {
                self.streams.remove(&(call.tgid, stream_of(call).unwrap_or(0)));
            }
            _ => {}
        }
    }

    fn sync(&mut self, call: &Call) {
        let at_ns = end_of(call.start_ns, call.duration_ns().unwrap_or(0));
        let thread = (call.tgid, call.tid);
        // a wait ends with the driver's call, not with the runtime's around it
        if call.api == Api::Runtime
            && self.waited.get(&thread).is_some_and(|ended_ns| *ended_ns > call.start_ns)
        {
            return;
        }
        if self.waited.len() < MOST_THREADS || self.waited.contains_key(&thread) {
            self.waited.insert(thread, at_ns);
        }
        if call.stream.is_none() {
            if self.waits.len() < MOST_STREAMS || self.waits.contains_key(&call.tgid) {
                self.waits.insert(call.tgid, at_ns);
            }
        } else if let Some(stream) = self.streams.get_mut(&(call.tgid, stream_of(call).unwrap_or(0))) {
            stream.synced_ns = Some(at_ns);
        }
        self.threads.remove(&thread);
    }

    /// What the host does between two launches.
    pub(super) fn meanwhile(&mut self, call: &Call) {
        let Some(ns) = call.duration_ns() else { return };
        let thread = (call.tgid, call.tid);
        let is_full = self.threads.len() >= MOST_THREADS;
        match self.threads.get_mut(&thread) {
            Some(longest) if ns < longest.ns => {}
            None if is_full => {}
            _ => {
                let name = in_catalogue(&call.name);
                self.threads.insert(thread, Meanwhile { name, ns, since_ns: call.start_ns });
            }
        }
    }

    /// A launch that ran. What was idle before the first one of a stream is not its own idleness.
    pub(super) fn launch(&mut self, given: &Given) {
        let meanwhile = self.threads.remove(&(given.tgid, given.tid));
        let key = (given.tgid, given.stream);
        if self.streams.len() >= MOST_STREAMS && !self.streams.contains_key(&key) {
            return;
        }
        let waited = self.waits.get(&given.tgid).copied();
        let stream = self.streams.entry(key).or_default();
        let launched = stream.launched_ns.replace(end_of(given.start_ns, given.duration_ns));
        let Some(launched) = launched else { return };
        let synced = stream.synced_ns.max(waited).filter(|synced| *synced >= launched);
        let kind = if synced.is_some() { GapKind::AfterSync } else { GapKind::AfterLaunch };
        let since_ns = synced.unwrap_or(launched);
        // another thread's launch has not begun after this one
        if given.start_ns <= since_ns {
            return;
        }
        let meanwhile = meanwhile.filter(|longest| longest.since_ns >= since_ns);
        self.gaps.streams += u64::from(!stream.has_gaps);
        stream.has_gaps = true;
        let ns = given.start_ns - since_ns;
        let length = bucket(ns);
        if kind == GapKind::AfterSync && (1..SHORT_GAP_LOG2).contains(&length) {
            stream.idle_ns = stream.idle_ns.saturating_add(1 << length);
            if self.idlest.len() < MOST_STREAMS || self.idlest.contains_key(&given.tgid) {
                let idlest_ns = self.idlest.entry(given.tgid).or_default();
                *idlest_ns = stream.idle_ns.max(*idlest_ns);
            }
        }
        self.gaps.add_gap(Gap {
            ns,
            since_ns,
            stream: given.stream,
            kind,
            meanwhile: meanwhile.and_then(|longest| longest.name),
        });
    }
}

/// When something was over.
fn end_of(start_ns: u64, duration_ns: u64) -> u64 {
    start_ns.saturating_add(duration_ns)
}

fn is_destroy(call: &Call) -> bool {
    let function = catalogue().lookup(call.api, None, &call.name);
    function.is_some_and(|f| f.roles.op == Some("destroy"))
}

/// The name of a function that is known.
fn in_catalogue(name: &Name) -> Option<&'static str> {
    match name {
        Name::Borrowed(name) => Some(name),
        Name::Owned(_) => None,
    }
}
