//! Samples threads several times, and reports each thread with its samples.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use gpuprobe_discover::return_address_in;
use gpuprobe_event::{Tgid, ThreadSample, ThreadStack, Tid};

use crate::error::CaptureError;
use crate::threads::return_watch::ReturnWatch;
use crate::threads::thread_iterator::{RawThread, ThreadIterator};
use crate::threads::thread_resolver::{
    CallPlace, Placement, SharedNative, SharedPython, ThreadResolver, hash_of, restore,
};

/// Bits of the state of a task in the Linux kernel.
const INTERRUPTIBLE: u32 = 1;
const UNINTERRUPTIBLE: u32 = 2;
const STOPPED: u32 = 4;
const TRACED: u32 = 8;
const LONGEST_NAME: usize = 128;
/// Threads whose returns are watched: each needs a descriptor.
const MOST_WATCHED: usize = 512;
/// How often a thread that runs is looked at again in a round, until a GPU call is seen where it was before.
const LOOKS: u32 = 16;
/// Longer than the interval of the timer interrupt, which is when the registers of a thread that runs are saved.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// So many looks of a round must show that a thread that runs is outside of GPU calls, or in one and the same.
const LOOKS_OUTSIDE: u32 = 4;
const LOOKS_INSIDE: u32 = 2;
/// GPU calls on the stack of one thread that are remembered.
const MOST_CALLS: usize = 16;

/// The threads of one process.
#[derive(Debug)]
pub struct SampledThreads {
    pub tgid: Tgid,
    pub threads: Vec<ThreadSamples>,
    /// Threads that exited between the samples.
    pub exited: u64,
    /// Why its Python frames are missing, if it runs Python.
    pub python_problem: Option<String>,
    /// Why its stacks are missing.
    pub problem: Option<String>,
}

/// A thread and its samples.
#[derive(Debug)]
pub struct ThreadSamples {
    pub tid: Tid,
    pub name: String,
    /// At least one.
    pub samples: Vec<ThreadSample>,
    /// Whether the GPU call in which it was when its return was first watched has returned; `None` if it was not watched.
    pub has_returned: Option<bool>,
    /// Where the return addresses of all frames of the last sample are on the stack.
    pub return_slots: Vec<u64>,
}

/// A thread: its number, and when it began.
type ThreadKey = (Tgid, Tid, u64);

/// Samples the threads of processes. It needs no probes in them.
#[derive(Debug)]
pub struct ThreadSampler {
    iterator: ThreadIterator,
    resolver: ThreadResolver,
    rounds: u64,
    threads: HashMap<ThreadKey, Thread>,
    /// A round had more threads than are read.
    is_cut: bool,
}

#[derive(Debug)]
struct Thread {
    name: String,
    samples: Vec<UnnamedSample>,
    last_round: u64,
    watch: Option<ReturnWatch>,
    /// GPU calls that were seen on its stack while it ran.
    calls: Vec<SeenCall>,
    /// Looks of the last round that saw no GPU call.
    outside: u32,
}

/// A GPU call that was seen on the stack of a thread that runs. It may be an earlier one, whose return addresses are
/// still there.
#[derive(Debug)]
struct SeenCall {
    place: CallPlace,
    /// The stack with it.
    native: SharedNative,
    /// Looks in which the frames led to it, the first and the last round with one.
    looks: u32,
    first_round: u64,
    last_round: u64,
}

/// A sample before its frames are named, which may take long.
#[derive(Debug)]
struct UnnamedSample {
    at_ns: u64,
    state: char,
    system_call: Option<u32>,
    wait_channel: Option<String>,
    cpu_ns: u64,
    waits: u64,
    /// A hash of the registers and the stack.
    seen: u64,
    /// The stack pointer, and the memory from there on.
    memory: (u64, Vec<u8>),
    native: SharedNative,
    python: SharedPython,
}

impl ThreadSampler {
    /// Loads the iterator.
    pub fn new() -> Result<Self, CaptureError> {
        ThreadIterator::new().map(Self::of)
    }

    /// With an iterator that was loaded before, perhaps in another thread.
    pub fn of(iterator: ThreadIterator) -> Self {
        Self {
            iterator,
            resolver: ThreadResolver::default(),
            rounds: 0,
            threads: HashMap::new(),
            is_cut: false,
        }
    }

    /// Samples the threads of these processes once.
    pub fn sample(&mut self, processes: &[Tgid]) -> Result<(), CaptureError> {
        let (raw, is_cut) = self.iterator.read(processes)?;
        self.is_cut |= is_cut;
        self.rounds += 1;
        let mut counts: BTreeMap<Tgid, usize> = BTreeMap::new();
        for thread in &raw {
            *counts.entry(Tgid(thread.head.tgid)).or_default() += 1;
        }
        for (tgid, threads) in counts {
            self.resolver.observe(tgid, threads);
        }
        for thread in &raw {
            let key = key_of(thread);
            let sample = self.sample_of(thread);
            let kept = self.threads.entry(key).or_insert_with(|| Thread::new(text_of(&thread.head.name)));
            kept.last_round = self.rounds;
            kept.outside = 0;
            kept.samples.push(sample);
        }
        self.look_again()
    }

    /// The registers of a thread that runs are those of its last interrupt, and its stack has changed since, so that its
    /// frames may be wrong. A GPU call that lasts is seen at the same place again.
    fn look_again(&mut self) -> Result<(), CaptureError> {
        let now = self.rounds;
        let keys = self.threads.iter().filter(|(_, thread)| thread.last_round == now).map(|(key, _)| *key);
        let mut unclear: HashSet<ThreadKey> = keys.collect();
        unclear.retain(|key| !self.is_clear(*key));
        for _ in 0..LOOKS {
            if unclear.is_empty() {
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS);
            let mut processes: Vec<Tgid> = unclear.iter().map(|(tgid, ..)| *tgid).collect();
            processes.sort_unstable();
            processes.dedup();
            let (raw, _) = self.iterator.read(&processes)?;
            for thread in raw.iter().filter(|thread| unclear.contains(&key_of(thread))) {
                let sample = self.sample_of(thread);
                let kept = self.threads.get_mut(&key_of(thread)).and_then(|kept| kept.samples.last_mut());
                if let Some(last) = kept {
                    *last = sample;
                }
            }
            unclear.retain(|key| !self.is_clear(*key));
        }
        Ok(())
    }

    /// Whether the last sample of a thread says where it is.
    fn is_clear(&mut self, key: ThreadKey) -> bool {
        let round = self.rounds;
        let Some(thread) = self.threads.get_mut(&key) else { return true };
        let Some(last) = thread.samples.last().filter(|last| last.state == 'R') else { return true };
        match self.resolver.placement(key.0, &last.native) {
            Placement::In(place) => {
                let native = Arc::clone(&last.native);
                thread.saw(place, native, round) >= LOOKS_INSIDE
            }
            // other frames may be those of earlier calls, whose return addresses are still there
            Placement::Outside if !thread.calls.iter().any(|call| last.holds(call.place)) => {
                thread.outside += 1;
                thread.outside >= LOOKS_OUTSIDE
            }
            Placement::Outside | Placement::Unclear => false,
        }
    }

    fn sample_of(&mut self, raw: &RawThread) -> UnnamedSample {
        let head = &raw.head;
        let key = key_of(raw);
        let state = state_of(head.state);
        let is_asleep = matches!(state, 'S' | 'D');
        let registers = (head.instruction_pointer, head.stack_pointer, head.frame_pointer, head.preserved);
        let seen = hash_of(&(registers, &raw.stack));
        let last = self.threads.get(&key).and_then(|thread| thread.samples.last());
        // a thread that has not run since has the same frames, and waits at the same place
        let has_slept = |last: &&UnnamedSample| is_asleep && last.waits == head.waits && last.seen == seen;
        let same = last
            .filter(has_slept)
            .map(|last| (Arc::clone(&last.native), last.python.clone(), last.wait_channel.clone()));
        let (native, python, wait_channel) = same.unwrap_or_else(|| {
            let python = self.resolver.walk_python(raw).map(Arc::new);
            let native = last.filter(|last| last.seen == seen).map(|last| Arc::clone(&last.native));
            let native = native.unwrap_or_else(|| Arc::new(self.resolver.unwind(raw, is_asleep)));
            let channel = is_asleep.then(|| wait_channel(key.0, key.1)).flatten();
            (native, python, channel)
        });
        // only that of a thread that runs is needed again
        let mut memory = if state == 'R' { raw.stack.clone() } else { Vec::new() };
        restore(&mut memory, raw);
        UnnamedSample {
            at_ns: head.at_ns,
            state,
            // what a running thread entered the Linux kernel for may be over
            system_call: u32::try_from(head.system_call).ok().filter(|_| is_asleep),
            wait_channel,
            cpu_ns: head.cpu_ns,
            waits: head.waits,
            seen,
            memory: (head.stack_pointer, memory),
            native,
            python,
        }
    }

    /// Watches from now on whether the GPU calls of the last sample return, for threads that are not watched yet. This
    /// needs names, so the first time may take long.
    pub fn watch_returns(&mut self) {
        let mut watched = self.threads.values().filter(|thread| thread.watch.is_some()).count();
        for ((tgid, tid, _), thread) in &mut self.threads {
            let is_open = watched < MOST_WATCHED && thread.watch.is_none();
            let Some(last) = thread.samples.last().filter(|_| is_open) else { continue };
            let Placement::In(place) = self.resolver.placement(*tgid, &last.native) else { continue };
            // without a breakpoint, what the samples show decides
            thread.watch = ReturnWatch::set(*tid, place.return_address).ok();
            watched += usize::from(thread.watch.is_some());
        }
    }

    /// Whether there were more threads than are read.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Names the frames of everything that was sampled since the last call.
    pub fn finish(&mut self) -> Vec<SampledThreads> {
        let mut processes: BTreeMap<Tgid, SampledThreads> = BTreeMap::new();
        let mut threads: Vec<_> = std::mem::take(&mut self.threads).into_iter().collect();
        threads.sort_by_key(|(key, _)| *key);
        let mut names = Names::default();
        for ((tgid, tid, _), mut thread) in threads {
            thread.settle();
            let (problem, python_problem) = self.resolver.problems(tgid);
            let process = processes.entry(tgid).or_insert_with(|| SampledThreads {
                tgid,
                threads: Vec::new(),
                exited: 0,
                python_problem,
                problem,
            });
            if thread.last_round < self.rounds {
                process.exited += 1;
                continue;
            }
            let samples = thread.samples.iter();
            let named = samples.map(|sample| names.sample(&mut self.resolver, tgid, sample)).collect();
            let has_returned = thread.watch.and_then(|watch| watch.has_returned());
            let return_slots = thread.samples.last().map_or_else(Vec::new, |last| last.native.return_slots());
            let name = thread.name;
            process.threads.push(ThreadSamples { tid, name, samples: named, has_returned, return_slots });
        }
        let known: HashSet<Tgid> = processes.keys().copied().collect();
        known.iter().for_each(|tgid| self.resolver.forget(*tgid));
        self.rounds = 0;
        processes.into_values().collect()
    }
}

impl Thread {
    fn new(name: String) -> Self {
        Self { name, samples: Vec::new(), last_round: 0, watch: None, calls: Vec::new(), outside: 0 }
    }

    /// A look showed this call. Returns how many have.
    fn saw(&mut self, place: CallPlace, native: SharedNative, round: u64) -> u32 {
        if let Some(call) = self.calls.iter_mut().find(|call| call.place == place) {
            call.looks += 1;
            call.last_round = round;
            return call.looks;
        }
        if self.calls.len() < MOST_CALLS {
            self.calls.push(SeenCall { place, native, looks: 1, first_round: round, last_round: round });
        }
        1
    }

    /// What is further out than a GPU call does not change while it lasts. If looks of several rounds showed a call, all
    /// samples with its return address in its place are in it, whatever their frames are.
    fn settle(&mut self) {
        let lasting = self.calls.iter().filter(|call| call.first_round < call.last_round);
        let Some(call) = lasting.max_by_key(|call| call.looks) else { return };
        for sample in self.samples.iter_mut().filter(|sample| sample.holds(call.place)) {
            sample.native = Arc::clone(&call.native);
        }
    }
}

impl UnnamedSample {
    /// Whether the return address of a call is where it was. The stack pointer must be below it: above it, memory has
    /// old values.
    fn holds(&self, place: CallPlace) -> bool {
        let (begin, bytes) = &self.memory;
        let at = place.slot.checked_sub(*begin).and_then(|at| usize::try_from(at).ok());
        let word = at.and_then(|at| bytes.get(at..)?.first_chunk());
        word.is_some_and(|word| return_address_in(u64::from_ne_bytes(*word)) == place.return_address)
    }
}

fn key_of(raw: &RawThread) -> ThreadKey {
    (Tgid(raw.head.tgid), Tid(raw.head.tid), raw.head.begun_ns)
}

/// Stacks that were named already. Samples that saw the same share them.
#[derive(Default)]
struct Names {
    known: HashMap<SeenStack, (Arc<ThreadStack>, u64)>,
}

/// What samples saw: the process, where the native and the Python frames are kept here, and whether the thread ran.
type SeenStack = (Tgid, usize, Option<usize>, bool);

impl Names {
    fn sample(&mut self, resolver: &mut ThreadResolver, tgid: Tgid, sample: &UnnamedSample) -> ThreadSample {
        let is_torn = sample.state == 'R';
        let python = sample.python.as_deref();
        // both are alive until all samples are named, so their addresses tell them apart
        let at =
            (Arc::as_ptr(&sample.native) as usize, sample.python.as_ref().map(|p| Arc::as_ptr(p) as usize));
        let (stack, caller_state) = self
            .known
            .entry((tgid, at.0, at.1, is_torn))
            .or_insert_with(|| {
                let (stack, state) = resolver.name(tgid, &sample.native, python, is_torn);
                (Arc::new(stack), state)
            })
            .clone();
        ThreadSample {
            at_ns: sample.at_ns,
            state: sample.state,
            system_call: sample.system_call,
            wait_channel: sample.wait_channel.clone(),
            cpu_ns: sample.cpu_ns,
            waits: sample.waits,
            stack,
            caller_state,
        }
    }
}

/// The letter of /proc for the state of a task.
fn state_of(bits: u32) -> char {
    match bits {
        0 => 'R',
        _ if bits & STOPPED != 0 => 'T',
        _ if bits & TRACED != 0 => 't',
        _ if bits & INTERRUPTIBLE != 0 => 'S',
        _ if bits & UNINTERRUPTIBLE != 0 => 'D',
        _ => 'X',
    }
}

/// The function of the Linux kernel that a thread waits in; `None` if it runs or that may not be known.
fn wait_channel(tgid: Tgid, tid: Tid) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{tgid}/task/{tid}/wchan")).ok()?;
    let is_name = !text.is_empty() && text != "0" && text.len() <= LONGEST_NAME;
    is_name.then_some(text)
}

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_letters_of_proc() {
        let freezable = 0x2000;
        let states = [0, 1, freezable | 1, 2, 0x402, 4, 8, 0x80];
        assert_eq!(states.map(state_of), ['R', 'S', 'S', 'D', 'D', 'T', 't', 'X']);
    }

    #[test]
    fn names_end_at_the_first_zero() {
        assert_eq!(text_of(b"python3\0rest"), "python3");
        assert_eq!(text_of(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }
}
