//! A simulated program with threads and streams. Activities arrive when they have ended, in batches.

use std::collections::HashMap;

use gpuprobe_event::agent::{Activity, ActivityKind, AgentState, Collection, GraphRecords};
use gpuprobe_event::counters::CopyDirection;
use gpuprobe_event::{Outcome, Tid};

use super::*;
use crate::samples::{copy, launch, of_kernel};

const PID: Tgid = Tgid(100);
/// Activities are flushed so often.
const FLUSH_NS: u64 = 100_000_000;

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

struct Simulation {
    numbers: Numbers,
    /// The time of each thread, and of each stream.
    threads: Vec<u64>,
    streams: Vec<u64>,
    calls: Vec<Call>,
    activities: Vec<Activity>,
    /// When each activity got its correlation id, and its call.
    submitted: Vec<(u64, u64)>,
    /// The call of each correlation id.
    truth: HashMap<u32, u64>,
    /// Each thread uses its own stream, and calls name it.
    has_named_streams: bool,
    /// Some copies need no GPU.
    has_idle_copies: bool,
}

/// How correlation ids ascend.
#[derive(Clone, Copy)]
enum Ids {
    /// By one for each submission.
    Counting,
    Sparse,
}

impl Simulation {
    /// `kernels` names; each thread waits for all streams every `wait` submissions on average.
    fn run(seed: u64, threads: usize, streams: usize, kernels: u64, wait: u64, count: usize) -> Self {
        Self::of(seed, (threads, streams, false), kernels, wait, count, Ids::Sparse)
    }

    fn of(
        seed: u64,
        (threads, streams, has_named_streams): (usize, usize, bool),
        kernels: u64,
        wait: u64,
        count: usize,
        ids: Ids,
    ) -> Self {
        let mut it = Self {
            numbers: Numbers(seed),
            threads: vec![1_000_000; threads],
            streams: vec![0; streams],
            calls: Vec::new(),
            activities: Vec::new(),
            submitted: Vec::new(),
            truth: HashMap::new(),
            has_named_streams,
            has_idle_copies: matches!(ids, Ids::Sparse),
        };
        for id in 0..count as u64 {
            // the thread that is first
            let thread = (0..threads).min_by_key(|thread| it.threads[*thread]).unwrap();
            if it.numbers.below(wait) == 0 {
                let done_ns = it.streams.iter().copied().max().unwrap();
                it.threads[thread] = it.threads[thread].max(done_ns) + 3_000;
                continue;
            }
            it.submit(id, thread, kernels);
        }
        it.number(ids);
        it
    }

    /// Gives correlation ids in the order of moments during the calls.
    fn number(&mut self, ids: Ids) {
        let mut order: Vec<_> = (0..self.submitted.len()).collect();
        order.sort_by_key(|at| self.submitted[*at].0);
        let mut correlation = 1000;
        for at in order {
            correlation += match ids {
                Ids::Counting => 1,
                Ids::Sparse => 1 + self.numbers.below(5) as u32,
            };
            self.activities[at].correlation = correlation;
            self.truth.insert(correlation, self.submitted[at].1);
        }
    }

    fn submit(&mut self, id: u64, thread: usize, kernels: u64) {
        let stream = match self.has_named_streams {
            true => thread % self.streams.len(),
            false => self.numbers.below(self.streams.len() as u64) as usize,
        };
        let (start_ns, duration_ns) = (self.threads[thread], 2_000 + self.numbers.below(4_000));
        self.threads[thread] = start_ns + duration_ns + self.numbers.below(6_000);
        let kind = self.numbers.below(40);
        let outcome = Outcome::Returned { value: 0, duration_ns };
        let (call, activity, gpu_ns) = if kind == 0 && self.has_idle_copies {
            // nothing is executed
            (copy(CopyDirection::HostToHost, 64, 0), None, 0)
        } else if kind == 1 {
            let bytes = 512 << self.numbers.below(4);
            let activity = Activity { kind: ActivityKind::Copy, copy_kind: 1, bytes, ..Activity::default() };
            (copy(CopyDirection::HostToDevice, bytes, 0), Some(activity), 5_000)
        } else {
            let name = self.numbers.below(kernels);
            let gpu_ns = 1_000 + name * 900 + if kind == 2 { 5_000_000 } else { 0 };
            // every fourth launch has no name
            let known = (!kind.is_multiple_of(4)).then(|| format!("k{name}"));
            let call = of_kernel(launch("cuLaunchKernel", None), known.as_deref());
            (call, Some(Activity { name: name + 1, ..Activity::default() }), gpu_ns)
        };
        let handle = self.has_named_streams.then_some(0x7f00 + 16 * stream as u64);
        self.calls.push(Call { id, start_ns, outcome, tid: Tid(thread as u32), stream: handle, ..call });
        let Some(activity) = activity else { return };
        let begin_ns = self.streams[stream].max(start_ns + 5_000 + self.numbers.below(2_000));
        self.streams[stream] = begin_ns + gpu_ns;
        self.activities.push(Activity {
            stream: stream as u32,
            start_ns: begin_ns,
            end_ns: begin_ns + gpu_ns,
            ..activity
        });
        self.submitted.push((start_ns + self.numbers.below(duration_ns), id));
    }

    /// Feeds everything in the order in which it arrives. Executions that were matched rightly, wrongly, and in all.
    fn matched(&mut self, is_lost: impl Fn(u64) -> bool) -> (usize, usize, usize) {
        self.calls.sort_by_key(|call| call.start_ns + call.duration_ns().unwrap_or(0));
        self.activities.sort_by_key(|activity| activity.end_ns);
        let mut records = AgentRecords::new(0);
        let mut header = BatchHeader::default();
        let process: Arc<str> = Arc::from("app");
        let names = (0..100).map(|id| AgentRecord::Name { id: id + 1, text: format!("k{id}") });
        let state = AgentState {
            collection: Collection::Collecting,
            graphs: GraphRecords::Whole,
            code: 0,
            tid: 1,
            begin_ns: 0,
            end_ns: 0,
            text: String::new(),
        };
        let first = std::iter::once(AgentRecord::State(state)).chain(names);
        records.batch((PID, &process), &header, first, 0, str::to_owned);
        let (mut calls, mut activities) = (self.calls.iter().peekable(), self.activities.iter().peekable());
        let (mut events, mut now_ns) = (Vec::new(), 0);
        while calls.peek().is_some() || activities.peek().is_some() {
            now_ns += FLUSH_NS;
            while let Some(call) = calls.next_if(|call| call.start_ns < now_ns) {
                records.call(call);
            }
            records.calls_are_known(now_ns);
            header.sequence += 1;
            let mut batch = Vec::new();
            while let Some(activity) = activities.next_if(|activity| activity.end_ns < now_ns) {
                batch.push(AgentRecord::Activity(*activity));
            }
            if !is_lost(header.sequence) {
                records.batch((PID, &process), &header, batch, now_ns, str::to_owned);
            }
            events.extend(records.settled(now_ns));
        }
        events.extend(records.finish());
        let (mut right, mut wrong, mut all) = (0, 0, 0);
        for event in events {
            let Event::Execution(execution) = event else { continue };
            let found = execution.submission.map(|by| by.call);
            let is_right = found == self.truth.get(&execution.correlation).copied();
            (right, wrong, all) =
                (right + usize::from(is_right), wrong + usize::from(found.is_some() && !is_right), all + 1);
        }
        (right, wrong, all)
    }
}

#[test]
fn one_thread_is_matched_completely() {
    for (seed, streams, kernels, wait) in [(1, 1, 30, 50), (2, 4, 30, 1000), (3, 4, 2, 20), (4, 2, 1, 30)] {
        let (right, wrong, all) = Simulation::run(seed, 1, streams, kernels, wait, 20_000).matched(|_| false);
        assert!(right * 1000 >= all * 999 && all > 15_000, "{seed}: {right} right, {wrong} wrong of {all}");
    }
}

#[test]
fn threads_with_overlapping_calls_are_matched() {
    for (seed, threads, kernels) in [(1, 2, 30), (2, 4, 30), (3, 2, 5)] {
        let (right, wrong, all) = Simulation::run(seed, threads, 3, kernels, 100, 20_000).matched(|_| false);
        assert!(right * 100 >= all * 97, "{seed}: {right} right, {wrong} wrong of {all}");
    }
}

#[test]
fn threads_with_their_own_streams_are_matched_also_if_they_execute_the_same() {
    for (seed, threads, kernels) in [(1, 2, 1), (2, 4, 2), (3, 8, 5)] {
        let streams = (threads, threads, true);
        let (right, wrong, all) =
            Simulation::of(seed, streams, kernels, 100, 20_000, Ids::Sparse).matched(|_| false);
        assert!(right * 1000 >= all * 995, "{seed}: {right} right, {wrong} wrong of {all}");
    }
}

#[test]
fn lost_batches_do_not_shift_what_follows() {
    let is_lost = |sequence| sequence == 3 || sequence == 5;
    let (right, wrong, all) = Simulation::run(7, 1, 3, 30, 200, 60_000).matched(is_lost);
    assert!(wrong * 1000 <= all && right * 100 >= all * 85, "{right} right, {wrong} wrong of {all}");
    // ids that count submissions say what is missing, also if all of it looks the same
    let (right, wrong, all) =
        Simulation::of(7, (1, 3, false), 1, 200, 60_000, Ids::Counting).matched(is_lost);
    assert!(wrong * 1000 <= all && right * 100 >= all * 85, "{right} right, {wrong} wrong of {all}");
    // otherwise little can be known, but nothing wrong is said
    let (right, wrong, all) = Simulation::run(7, 1, 3, 1, 200, 60_000).matched(is_lost);
    assert!(wrong * 200 <= all, "{right} right, {wrong} wrong of {all}");
}
