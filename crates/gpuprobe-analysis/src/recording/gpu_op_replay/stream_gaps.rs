//! Gaps: from the return of a launch or a wait to the start of the next launch on that stream.

use std::collections::HashMap;

use gpuprobe_event::counters::GapKind;
use gpuprobe_event::event::Name;
use gpuprobe_event::{Call, Class, Tgid, Tid, catalogue};

use super::op::GpuOp;
use super::stream_idle::{IdleSummary, IdleTracker, LongestCall};
use crate::gpu_ops::gaps::{Gap, Gaps, SHORT_GAP_LOG2};
use crate::gpu_ops::streams::stream_of;
use crate::stats::buckets::bucket;

/// Streams that are followed; gaps of others are not counted.
const MOST_STREAMS: usize = 8192;
const MOST_THREADS: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct StreamGapTracker {
    gaps: Gaps,
    streams: HashMap<(Tgid, u64), Stream>,
    /// When a wait for all streams of a process last ended.
    process_waits: HashMap<Tgid, u64>,
    /// When the last wait of each thread ended.
    thread_waits: HashMap<(Tgid, Tid), u64>,
    /// The longest call of each thread since it last launched or waited.
    longest_calls: HashMap<(Tgid, Tid), LongestCall>,
    /// The time in short gaps after waits, of the stream of each process where it is longest.
    after_waits: HashMap<Tgid, u64>,
    /// The sum of the same over exited processes.
    after_waits_exited_ns: u64,
    idle: IdleTracker,
}

/// When the last launch on a stream returned, and the last wait for the stream.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    launched_ns: Option<u64>,
    synced_ns: Option<u64>,
    has_gaps: bool,
    /// A lower bound for the sum of its short gaps after waits.
    after_waits_ns: u64,
}

impl StreamGapTracker {
    pub(super) fn gaps(&self) -> Gaps {
        let after_waits_ns =
            self.after_waits.values().copied().fold(self.after_waits_exited_ns, u64::saturating_add);
        Gaps { after_waits_ns, ..self.gaps.clone() }
    }

    pub(super) fn idle(&self) -> IdleSummary {
        self.idle.report()
    }

    /// Settles a process that exited or runs another program.
    pub(super) fn clear(&mut self, tgid: Tgid) {
        self.streams.retain(|(of, _), _| *of != tgid);
        self.longest_calls.retain(|(of, _), _| *of != tgid);
        self.thread_waits.retain(|(of, _), _| *of != tgid);
        self.process_waits.remove(&tgid);
        self.idle.clear(tgid);
        let most_ns = self.after_waits.remove(&tgid).unwrap_or(0);
        self.after_waits_exited_ns = self.after_waits_exited_ns.saturating_add(most_ns);
    }

    /// Takes in a call that is no GPU operation: a wait, or the destruction of a stream.
    pub(super) fn feed(&mut self, call: &Call) {
        if call.failed() || call.duration_ns().is_none() {
            return;
        }
        match call.class {
            Class::Sync => self.sync(call),
            Class::Stream if is_destroy(call) => {
                let stream = stream_of(call).unwrap_or(0);
                self.streams.remove(&(call.tgid, stream));
                self.idle.forget(call.tgid, stream);
            }
            _ => {}
        }
    }

    fn sync(&mut self, call: &Call) {
        let at_ns = end_of(call.start_ns, call.duration_ns().unwrap_or(0));
        let thread = (call.tgid, call.tid);
        // a wait ends when the CUDA driver's call returns, not the runtime's call around it
        if call.api.is_above() && self.thread_waits.get(&thread).is_some_and(|end_ns| *end_ns > call.start_ns)
        {
            return;
        }
        if self.thread_waits.len() < MOST_THREADS || self.thread_waits.contains_key(&thread) {
            self.thread_waits.insert(thread, at_ns);
        }
        self.idle.wait(call);
        if call.stream.is_none() {
            if self.process_waits.len() < MOST_STREAMS || self.process_waits.contains_key(&call.tgid) {
                self.process_waits.insert(call.tgid, at_ns);
            }
        } else if let Some(stream) = self.streams.get_mut(&(call.tgid, stream_of(call).unwrap_or(0))) {
            stream.synced_ns = Some(at_ns);
        }
        self.longest_calls.remove(&thread);
    }

    /// Takes in a call that the host makes between two launches.
    pub(super) fn meanwhile(&mut self, call: &Call) {
        let Some(ns) = call.duration_ns() else { return };
        let thread = (call.tgid, call.tid);
        let is_full = self.longest_calls.len() >= MOST_THREADS;
        match self.longest_calls.get_mut(&thread) {
            Some(longest) if ns < longest.ns => {}
            None if is_full => {}
            _ => {
                let name = in_catalogue(&call.name);
                self.longest_calls.insert(thread, LongestCall { name, ns, start_ns: call.start_ns });
            }
        }
    }

    /// Takes in a copy or a memset that succeeded. It ends no gap, but the stream is not idle.
    pub(super) fn copy(&mut self, op: &GpuOp) {
        self.idle.submit(op, self.longest_calls.get(&(op.tgid, op.tid)).copied());
    }

    /// Takes in a launch that succeeded. The time before the first launch on a stream is no gap.
    pub(super) fn launch(&mut self, op: &GpuOp) {
        let meanwhile = self.longest_calls.remove(&(op.tgid, op.tid));
        let key = (op.tgid, op.stream);
        self.idle.submit(op, meanwhile);
        if self.streams.len() >= MOST_STREAMS && !self.streams.contains_key(&key) {
            return;
        }
        let waited = self.process_waits.get(&op.tgid).copied();
        let stream = self.streams.entry(key).or_default();
        let end_ns = end_of(op.start_ns, op.duration_ns);
        // the record of a launch without a return probe may come after later ones of other threads
        let Some(launched) = stream.launched_ns.replace(stream.launched_ns.unwrap_or(0).max(end_ns)) else {
            return;
        };
        let synced = stream.synced_ns.max(waited).filter(|synced| *synced >= launched);
        let kind = if synced.is_some() { GapKind::AfterSync } else { GapKind::AfterLaunch };
        let since_ns = synced.unwrap_or(launched);
        // a launch of another thread overlaps this one
        if op.start_ns <= since_ns {
            return;
        }
        let meanwhile = meanwhile.filter(|longest| longest.start_ns >= since_ns);
        self.gaps.streams += u64::from(!stream.has_gaps);
        stream.has_gaps = true;
        let ns = op.start_ns - since_ns;
        let length = bucket(ns);
        if kind == GapKind::AfterSync && (1..SHORT_GAP_LOG2).contains(&length) {
            stream.after_waits_ns = stream.after_waits_ns.saturating_add(1 << length);
            if self.after_waits.len() < MOST_STREAMS || self.after_waits.contains_key(&op.tgid) {
                let most_ns = self.after_waits.entry(op.tgid).or_default();
                *most_ns = stream.after_waits_ns.max(*most_ns);
            }
        }
        self.gaps.add_gap(Gap {
            ns,
            since_ns,
            stream: op.stream,
            kind,
            meanwhile: meanwhile.and_then(|longest| longest.name),
        });
    }
}

fn end_of(start_ns: u64, duration_ns: u64) -> u64 {
    start_ns.saturating_add(duration_ns)
}

fn is_destroy(call: &Call) -> bool {
    let function = catalogue().lookup(call.api, None, &call.name);
    function.is_some_and(|f| f.roles.op == Some("destroy"))
}

/// The name of a function of the catalogue.
fn in_catalogue(name: &Name) -> Option<&'static str> {
    match name {
        Name::Borrowed(name) => Some(name),
        Name::Owned(_) => None,
    }
}
