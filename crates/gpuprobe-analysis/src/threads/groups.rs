//! Threads of a process that are shown as one, because they read the same.

use std::collections::HashMap;
use std::sync::Arc;

use gpuprobe_event::{Call, Frame, Tid};

use super::gpu_call::{call_of, outside};
use super::judged::JudgedThread;
use super::sample::ThreadStack;
use super::verdict::ThreadVerdict;

/// Threads listed per group; the others are counted.
pub const MOST_TIDS: usize = 32;
/// Groups per process; the threads of the others are counted.
pub const MOST_GROUPS: usize = 200;

/// Threads with the same stack, verdict, state and GPU call.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadGroup {
    /// The thread with the oldest call first; at most [`MOST_TIDS`].
    pub tids: Vec<Tid>,
    /// All threads of the group.
    pub count: u64,
    /// The name of the first one.
    pub name: String,
    /// Whether the first one is the main thread of the process.
    pub is_main: bool,
    pub verdict: ThreadVerdict,
    pub state: char,
    pub system_call: Option<u32>,
    pub wait_channel: Option<String>,
    pub stack: Arc<ThreadStack>,
    /// The function of the outermost GPU call; `None` outside of GPU calls.
    pub function: Option<String>,
    /// The open call of the first thread, if a probe saw it begin.
    pub open_call: Option<Call>,
    /// The age of that call.
    pub age_ns: Option<u64>,
    /// Whether the calls of all threads have the arguments of that call.
    pub has_same_arguments: bool,
    pub cpu: Option<CpuShares>,
}

impl ThreadGroup {
    /// What distinguishes the place of a group from those in other processes: not what the GPU library does inside of
    /// its call meanwhile.
    pub(super) fn place(&self) -> GroupPlace {
        let stack = &self.stack;
        let frames = call_of(stack).map_or(stack.frames.as_slice(), |call| outside(stack, call));
        let frames = frames.iter().map(Frame::to_string).collect();
        GroupPlace { count: self.count, verdict: self.verdict, function: self.function.clone(), frames }
    }
}

/// Where a group of threads is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupPlace {
    count: u64,
    verdict: ThreadVerdict,
    function: Option<String>,
    /// As text: addresses are others in each process.
    frames: Vec<String>,
}

/// The CPU time of threads between their first and last samples, as shares of that time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuShares {
    /// Of the thread that used least.
    pub least: f64,
    /// Of the thread that used most.
    pub most: f64,
}

/// The groups of a process, and the number of threads in groups that exceed the bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Grouped {
    pub(super) groups: Vec<ThreadGroup>,
    pub(super) other_threads: u64,
}

/// What threads of one group have in common.
#[derive(PartialEq, Eq, Hash)]
struct Key<'t> {
    /// The numbers of the frames as text.
    frames: Vec<usize>,
    incomplete: Option<&'t str>,
    is_torn: bool,
    verdict: ThreadVerdict,
    state: char,
    system_call: Option<u32>,
    wait_channel: Option<&'t str>,
    function: Option<&'t str>,
}

/// Numbers for frames that read the same. Threads of a process have few different frames, so each is formatted once.
#[derive(Default)]
struct ShownFrames<'t> {
    of_frame: HashMap<&'t Frame, usize>,
    of_text: HashMap<String, usize>,
}

impl<'t> ShownFrames<'t> {
    fn number(&mut self, frame: &'t Frame) -> usize {
        if let Some(number) = self.of_frame.get(frame) {
            return *number;
        }
        let next = self.of_text.len();
        let number = *self.of_text.entry(frame.to_string()).or_insert(next);
        self.of_frame.insert(frame, number);
        number
    }
}

/// Groups threads: those in GPU calls first, stuck before moving, the oldest call first.
pub(super) fn group(mut threads: Vec<JudgedThread<'_>>) -> Grouped {
    threads.sort_by_cached_key(JudgedThread::oldest_first);
    let mut frames = ShownFrames::default();
    let mut indices: HashMap<Key<'_>, usize> = HashMap::new();
    let mut groups: Vec<ThreadGroup> = Vec::new();
    for thread in &threads {
        let index = *indices.entry(key(thread, &mut frames)).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => add(group, thread),
            None => groups.push(begin(thread)),
        }
    }
    // the order of groups that are alike here is that of their first threads
    groups.sort_by_key(|group| (group.function.is_none(), group.verdict));
    let rest = groups.split_off(groups.len().min(MOST_GROUPS));
    Grouped { groups, other_threads: rest.iter().map(|group| group.count).sum() }
}

fn key<'t>(thread: &JudgedThread<'t>, frames: &mut ShownFrames<'t>) -> Key<'t> {
    let sample = thread.sample;
    Key {
        frames: sample.stack.frames.iter().map(|frame| frames.number(frame)).collect(),
        incomplete: sample.stack.incomplete.as_deref(),
        is_torn: sample.stack.is_torn,
        verdict: thread.verdict,
        state: sample.state,
        system_call: sample.system_call,
        wait_channel: sample.wait_channel.as_deref(),
        function: thread.function(),
    }
}

fn begin(thread: &JudgedThread<'_>) -> ThreadGroup {
    let sample = thread.sample;
    ThreadGroup {
        tids: vec![thread.thread.tid],
        count: 1,
        name: thread.thread.name.clone(),
        is_main: thread.is_main,
        verdict: thread.verdict,
        state: sample.state,
        system_call: sample.system_call,
        wait_channel: sample.wait_channel.clone(),
        stack: Arc::clone(&sample.stack),
        function: thread.function().map(str::to_owned),
        open_call: thread.open_call.cloned(),
        age_ns: thread.age_ns(),
        has_same_arguments: true,
        cpu: thread.cpu_share.map(|share| CpuShares { least: share, most: share }),
    }
}

fn add(group: &mut ThreadGroup, thread: &JudgedThread<'_>) {
    group.count += 1;
    if group.tids.len() < MOST_TIDS {
        group.tids.push(thread.thread.tid);
    }
    group.has_same_arguments &= have_same_arguments(group.open_call.as_ref(), thread.open_call);
    if let Some(share) = thread.cpu_share {
        let so_far = group.cpu.unwrap_or(CpuShares { least: share, most: share });
        group.cpu = Some(CpuShares { least: so_far.least.min(share), most: so_far.most.max(share) });
    }
}

fn have_same_arguments(first: Option<&Call>, other: Option<&Call>) -> bool {
    match (first, other) {
        (Some(a), Some(b)) => a.args == b.args && a.effect.kernel() == b.effect.kernel(),
        (first, other) => first.is_none() && other.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::{Api, Tgid};

    use super::super::sample::SampledThread;
    use super::super::sample_threads::{SECOND, asleep, stack_in, stack_outside, thread, waiting};
    use super::*;
    use crate::samples::{call, unfinished};

    fn grouped(threads: &[SampledThread]) -> Grouped {
        group(threads.iter().filter_map(|thread| JudgedThread::of(thread, Tgid(1))).collect())
    }

    fn counts(threads: &[SampledThread]) -> Vec<(u64, u32)> {
        grouped(threads).groups.iter().map(|group| (group.count, group.tids[0].0)).collect()
    }

    #[test]
    fn threads_that_read_the_same_are_one_group() {
        let stack = stack_in("cuStreamSynchronize", 1, 0x7f00);
        let mut elsewhere = stack_in("cuStreamSynchronize", 1, 0x8f00);
        elsewhere.frames[2].address = 99;
        assert_eq!(counts(&[waiting(1, &stack), waiting(2, &elsewhere)]), [(2, 1)]);

        let mut line = stack.clone();
        line.frames[2].line = Some(89);
        let mut other_state = waiting(2, &stack);
        other_state.samples[1].state = 'D';
        let mut other_channel = waiting(2, &stack);
        other_channel.samples[1].wait_channel = None;
        let other_verdict = thread(2, vec![asleep(0, &stack)]);
        for other in [waiting(2, &line), other_state, other_channel, other_verdict] {
            assert_eq!(counts(&[waiting(1, &stack), other]).len(), 2);
        }
    }

    #[test]
    fn groups_are_sorted_by_what_they_say() {
        let (sync, idle) = (stack_in("cuStreamSynchronize", 1, 0x7f00), stack_outside(3));
        let mut moving = waiting(4, &stack_in("cuCtxSynchronize", 1, 0x7f00));
        moving.samples[0] = asleep(0, &idle);
        let mut computing = waiting(5, &idle);
        computing.samples[1].cpu_ns = SECOND;
        let mut young = waiting(6, &stack_in("cuMemFree_v2", 1, 0x7f00));
        young.open_call = Some(unfinished(call(Api::Driver, "cuMemFree_v2", 0)));
        young.open_call_age_ns = Some(3 * SECOND);
        let mut old = waiting(7, &stack_in("cuMemAlloc_v2", 1, 0x7f00));
        old.open_call = Some(unfinished(call(Api::Driver, "cuMemAlloc_v2", 0)));
        old.open_call_age_ns = Some(12 * SECOND);
        let threads =
            [waiting(1, &idle), waiting(2, &sync), waiting(3, &sync), moving, computing, young, old];
        assert_eq!(counts(&threads), [(2, 2), (1, 7), (1, 6), (1, 4), (1, 5), (1, 1)]);
    }

    #[test]
    fn a_group_has_the_arguments_that_all_its_calls_have() {
        let stack = stack_in("cuStreamSynchronize", 1, 0x7f00);
        let probed = |tid, stream| {
            let mut thread = waiting(tid, &stack);
            let args = Some(vec![("hStream".into(), gpuprobe_event::Value::Hex(stream))]);
            let open = Call { args, ..unfinished(call(Api::Driver, "cuStreamSynchronize", 0)) };
            (thread.open_call, thread.open_call_age_ns) = (Some(open), Some(u64::from(tid) * SECOND));
            thread
        };
        let [one] = &grouped(&[probed(2, 7), probed(9, 7)]).groups[..] else { panic!() };
        assert_eq!(
            (one.has_same_arguments, one.age_ns, &one.tids[..]),
            (true, Some(9 * SECOND), &[Tid(9), Tid(2)][..])
        );
        assert!(!grouped(&[probed(2, 7), probed(9, 8)]).groups[0].has_same_arguments);
        assert!(!grouped(&[probed(2, 7), waiting(9, &stack)]).groups[0].has_same_arguments);
    }

    #[test]
    fn the_least_and_the_most_cpu_time_are_kept() {
        let stack = stack_in("cuStreamSynchronize", 1, 0x7f00);
        let using = |tid, cpu_ns| {
            let mut thread = waiting(tid, &stack);
            thread.samples[1].cpu_ns += cpu_ns;
            thread
        };
        let grouped = grouped(&[using(1, SECOND / 4), using(2, 0), using(3, SECOND / 2)]);
        assert_eq!(grouped.groups[0].cpu, Some(CpuShares { least: 0.0, most: 0.5 }));
    }

    #[test]
    fn a_hundred_thousand_threads_are_bounded() {
        const THREADS: u32 = 100_000;
        let same = stack_in("cuStreamSynchronize", 1, 0x7f00);
        let threads: Vec<_> = (1..=THREADS)
            .map(|tid| waiting(tid, &if tid % 2 == 0 { same.clone() } else { stack_outside(tid) }))
            .collect();
        let Grouped { groups, other_threads } = grouped(&threads);
        assert_eq!((groups.len(), groups[0].count, groups[0].tids.len()), (MOST_GROUPS, 50_000, MOST_TIDS));
        let shown: u64 = groups.iter().map(|group| group.count).sum();
        assert_eq!(shown + other_threads, u64::from(THREADS));
    }
}
