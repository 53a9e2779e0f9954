//! The call sites of allocations and other calls. The BPF programs send unknown stacks under numbers; here they are unwound, and
//! equal stacks get one site. The first number of a stack is the site, and all later numbers stand for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuprobe_discover::{Stack, StackEnd};
use gpuprobe_event::counters::{LiveTotals, ProcessKey, SiteMemory};
use gpuprobe_event::{Frame, SiteId};

use super::python_stacks::{PythonStack, shown_frames};
use super::site_tree::{Change, Learned, Root, SiteTrees, Step};
use crate::stacks::raw_stack::RawStack;
use crate::stacks::resolver::Resolve;
use crate::wire::{derived, gp_site, number};

/// How many stacks of one process may turn out not to be learnable before no more are requested: each costs the
/// program some microseconds.
const MAX_UNLEARNABLE: u32 = 4096;
/// How many stacks of a process are symbolized at its exit, if they were not before.
const NAMED_AT_END: usize = 256;
/// Rows that cannot change any more are folded after so many new numbers, and at this interval.
const FOLD_AT: usize = 256;
const FOLD_EVERY: Duration = Duration::from_secs(1);
/// Incomplete stacks wait for so long, and in so many bytes, for a complete one from the same call site.
const PATIENCE: Duration = Duration::from_secs(1);
const MAX_WAITING_BYTES: usize = 16 << 20;

/// What the return instruction pops off the stack.
#[cfg(target_arch = "x86_64")]
const POPPED_BY_RETURN: u64 = 8;
#[cfg(not(target_arch = "x86_64"))]
const POPPED_BY_RETURN: u64 = 0;

/// A stack as it is compared: return addresses, and Python frames.
#[derive(Debug, PartialEq, Eq, Hash)]
struct KnownStack {
    addresses: Vec<u64>,
    is_complete: bool,
    /// It is incomplete, and of a thread of PyTorch's backward pass.
    is_autograd: bool,
    python: Option<PythonStack>,
}

#[derive(Debug)]
struct SiteStack {
    process: ProcessKey,
    stack: Arc<KnownStack>,
    frames: Option<Arc<[Frame]>>,
    /// The frames as events have them.
    texts: Option<Arc<[String]>>,
}

/// An incomplete stack: it was cut, or the unwind information of its files was not read yet.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    process: ProcessKey,
    raw: RawStack,
    /// The frames that could be unwound.
    addresses: Vec<u64>,
    python: Option<PythonStack>,
}

#[derive(Debug, Default)]
struct ProcessSites {
    by_stack: HashMap<Arc<KnownStack>, SiteId>,
    /// Numbers that stand for sites.
    numbers: Vec<u32>,
    unlearnable: u32,
}

/// What a row of the table of sites counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SiteKind {
    /// Memory of a pool, which calls allocate asynchronously.
    PoolMemory,
    /// Any other memory.
    OtherMemory,
    /// Tensors, which are parts of memory.
    Tensors,
}

impl SiteKind {
    pub(crate) fn is_memory(self) -> bool {
        self != Self::Tensors
    }
}

/// One row of the table of sites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SiteRow {
    pub(crate) process: ProcessKey,
    pub(crate) number: u32,
    pub(crate) gpu: Option<u8>,
    pub(crate) kind: SiteKind,
    /// Its context was destroyed, and with it the memory that was live.
    pub(crate) has_exited: bool,
    pub(crate) counts: gp_site,
}

impl SiteRow {
    /// Whether it cannot change any more: its context was destroyed, or it was made for a single allocation, whose
    /// stack is known by another number, and which is freed.
    fn is_final(&self, site: SiteId) -> bool {
        self.has_exited || (self.number != site.0 && self.counts.live_allocations == 0)
    }

    fn memory(&self, site: SiteId) -> SiteMemory {
        let counts = &self.counts;
        let counted = LiveTotals { live_bytes: counts.live_bytes, live_allocations: counts.live_allocations };
        let (live, ended) =
            if self.has_exited { (LiveTotals::default(), counted) } else { (counted, LiveTotals::default()) };
        SiteMemory {
            process: self.process,
            site,
            gpu: self.gpu,
            live,
            allocations: counts.allocations,
            allocated_bytes: counts.allocated_bytes,
            freed_with_context_allocations: ended.live_allocations,
            freed_with_context_bytes: ended.live_bytes,
        }
    }
}

/// What a sum is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SumKey {
    kind: SiteKind,
    process: ProcessKey,
    site: SiteId,
    gpu: Option<u8>,
}

type Sums = HashMap<SumKey, SiteMemory>;

fn add(sums: &mut Sums, row: SiteMemory, kind: SiteKind) {
    let key = SumKey { kind, process: row.process, site: row.site, gpu: row.gpu };
    let sum = sums.entry(key).or_insert(SiteMemory {
        live: LiveTotals::default(),
        allocations: 0,
        allocated_bytes: 0,
        freed_with_context_allocations: 0,
        freed_with_context_bytes: 0,
        ..row
    });
    sum.live.live_bytes = sum.live.live_bytes.wrapping_add(row.live.live_bytes);
    sum.live.live_allocations = sum.live.live_allocations.wrapping_add(row.live.live_allocations);
    sum.allocations += row.allocations;
    sum.allocated_bytes += row.allocated_bytes;
    sum.freed_with_context_allocations += row.freed_with_context_allocations;
    sum.freed_with_context_bytes += row.freed_with_context_bytes;
}

/// All call sites.
#[derive(Debug)]
pub(crate) struct CallSites {
    trees: SiteTrees,
    stacks: HashMap<SiteId, SiteStack>,
    /// The sites of numbers that are no sites themselves.
    same: HashMap<u32, SiteId>,
    processes: HashMap<ProcessKey, ProcessSites>,
    /// Rows that were removed from the table because they cannot change any more.
    folded_sums: Sums,
    /// Numbers that came since the last fold, and when that was.
    unfolded: usize,
    folded: Instant,
    /// Stacks since the last `take_new_stacks`.
    new_stacks: usize,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
    lost: u64,
    shortened: u64,
}

impl CallSites {
    pub(crate) fn new(max_nodes: u32) -> Self {
        Self {
            trees: SiteTrees::new(max_nodes),
            stacks: HashMap::new(),
            same: HashMap::new(),
            processes: HashMap::new(),
            folded_sums: Sums::new(),
            unfolded: 0,
            folded: Instant::now(),
            new_stacks: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
            lost: 0,
            shortened: 0,
        }
    }

    /// Recognises a stack that the BPF programs did not know when they sent it, but that is known by now: its number
    /// stands for that site. While one stack is unwound, many others from the same call site may come.
    pub(crate) fn recognise(&mut self, process: ProcessKey, raw: &RawStack) -> bool {
        let bottom = raw.sp.wrapping_sub(POPPED_BY_RETURN);
        let word = |distance: u32| raw.word(bottom.wrapping_add(distance.into()));
        let Some(site) = self.trees.find(process, root(raw), word) else { return false };
        self.count(process, raw.id as u32, site);
        true
    }

    /// Tries again to recognise incomplete stacks.
    pub(crate) fn recognise_waiting(&mut self) {
        self.settle_waiting(|waiting| waiting.since.elapsed() >= PATIENCE);
    }

    /// Incomplete stacks that are given up get a site for the frames that are known.
    fn settle_waiting(&mut self, is_given_up: impl Fn(&Waiting) -> bool) {
        for waiting in std::mem::take(&mut self.waiting) {
            let bytes = waiting.raw.bytes.len();
            if self.recognise(waiting.process, &waiting.raw) {
                self.waiting_bytes -= bytes;
            } else if !is_given_up(&waiting) {
                self.waiting.push(waiting);
            } else {
                self.waiting_bytes -= bytes;
                if bytes == number::STACK_PART {
                    self.lost += 1;
                } else {
                    self.shortened += u64::from(bytes == derived::SHORT_STACK);
                    let Waiting { process, raw, addresses, python, .. } = waiting;
                    let stack =
                        KnownStack { addresses, is_complete: false, is_autograd: raw.is_autograd(), python };
                    self.add_stack(process, raw.id as u32, stack);
                }
            }
        }
    }

    /// How many incomplete stacks could not be recognised.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// How many stacks got a site without their outermost frames, because BPF had shortened them.
    pub(crate) fn shortened(&self) -> u64 {
        self.shortened
    }

    fn count(&mut self, process: ProcessKey, number: u32, site: SiteId) {
        self.unfolded += 1;
        self.new_stacks += 1;
        if site.0 != number {
            self.same.insert(number, site);
            self.processes.entry(process).or_default().numbers.push(number);
        }
    }

    /// Learns a new stack.
    pub(crate) fn learn(
        &mut self,
        process: ProcessKey,
        raw: &RawStack,
        stack: &Stack,
        python: Option<PythonStack>,
    ) {
        let is_cut = [derived::SHORT_STACK, number::STACK_PART].contains(&raw.bytes.len());
        if stack.end == StackEnd::NotYet || (stack.end == StackEnd::CopyEnds && is_cut) {
            return self.wait(process, raw, stack, python);
        }
        let is_complete = stack.end == StackEnd::Complete;
        let (addresses, is_autograd) = (stack.addresses.clone(), raw.is_autograd() && !is_complete);
        let known = KnownStack { addresses, is_complete, is_autograd, python };
        let site = self.add_stack(process, raw.id as u32, known);
        let bottom = raw.sp.wrapping_sub(POPPED_BY_RETURN);
        let word = |distance: u32| raw.word(bottom.wrapping_add(distance.into()));
        let learned = self.trees.learn(process, root(raw), &steps(stack, bottom), site, word);
        match learned {
            Learned::Yes => {}
            Learned::NeedsMore | Learned::NotPossible => {
                let known = self.processes.entry(process).or_default();
                known.unlearnable += 1;
                if known.unlearnable >= MAX_UNLEARNABLE {
                    self.trees.stop_stacks(process);
                }
            }
            Learned::Full => self.trees.stop_stacks(process),
        }
    }

    fn wait(&mut self, process: ProcessKey, raw: &RawStack, stack: &Stack, python: Option<PythonStack>) {
        self.new_stacks += 1;
        if self.waiting_bytes + raw.bytes.len() > MAX_WAITING_BYTES {
            self.lost += 1;
            return;
        }
        self.waiting_bytes += raw.bytes.len();
        let addresses = stack.addresses.clone();
        self.waiting.push(Waiting { since: Instant::now(), process, raw: raw.clone(), addresses, python });
    }

    /// The site of a stack: this number, if the stack is new.
    fn add_stack(&mut self, process: ProcessKey, number: u32, stack: KnownStack) -> SiteId {
        let known = self.processes.entry(process).or_default();
        let stack = Arc::new(stack);
        let site = *known.by_stack.entry(Arc::clone(&stack)).or_insert(SiteId(number));
        if site.0 == number {
            self.stacks.insert(site, SiteStack { process, stack, frames: None, texts: None });
        }
        self.count(process, number, site);
        site
    }

    /// How many stacks came since the last call.
    pub(crate) fn take_new_stacks(&mut self) -> usize {
        std::mem::take(&mut self.new_stacks)
    }

    /// What must be written to the BPF maps.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        self.trees.take_changes()
    }

    /// The site that a number stands for; unknown if its stack never came.
    pub(crate) fn site(&self, number: u32) -> SiteId {
        let own = SiteId(number);
        match self.same.get(&number) {
            Some(site) => *site,
            None if self.stacks.contains_key(&own) => own,
            None => SiteId::UNKNOWN,
        }
    }

    /// The stack of a site, innermost frame first.
    pub(crate) fn frames(&mut self, site: SiteId, resolve: &mut dyn Resolve) -> Arc<[Frame]> {
        let Some(stack) = self.stacks.get_mut(&site) else { return Arc::from([]) };
        let SiteStack { process, stack, frames, .. } = stack;
        let frames = frames.get_or_insert_with(|| {
            let native = resolve.frames(process.tgid, &stack.addresses);
            shown_frames(native, stack.is_complete, stack.is_autograd, stack.python.as_ref()).into()
        });
        Arc::clone(frames)
    }

    /// The stack of a site as text, which all its calls share.
    pub(crate) fn texts(&mut self, site: SiteId, resolve: &mut dyn Resolve) -> Option<Arc<[String]>> {
        if let Some(texts) = &self.stacks.get(&site)?.texts {
            return Some(Arc::clone(texts));
        }
        let texts: Arc<[String]> = self.frames(site, resolve).iter().map(ToString::to_string).collect();
        self.stacks.get_mut(&site)?.texts = Some(Arc::clone(&texts));
        Some(texts)
    }

    /// Symbolizes the stacks of a process that exits, while its files are known. Counts stay.
    pub(crate) fn end(&mut self, process: ProcessKey, resolve: &mut dyn Resolve) {
        self.settle_waiting(|waiting| waiting.process == process);
        let Some(known) = self.processes.get(&process) else { return };
        let sites: Vec<SiteId> = known.by_stack.values().copied().take(NAMED_AT_END).collect();
        for site in sites {
            self.frames(site, resolve);
        }
        self.trees.forget(process);
    }

    /// Forgets exited processes for good.
    pub(crate) fn forget(&mut self, exited: &HashSet<ProcessKey>) {
        for process in exited {
            self.trees.forget(*process);
            let Some(known) = self.processes.remove(process) else { continue };
            for site in known.by_stack.values() {
                self.stacks.remove(site);
            }
            for number in &known.numbers {
                self.same.remove(number);
            }
        }
        if !exited.is_empty() {
            self.folded_sums.retain(|key, _| !exited.contains(&key.process));
        }
    }

    /// All counts since the start, of these kinds together, a row for each process, site and GPU.
    pub(crate) fn sum(&self, rows: &[SiteRow], is_wanted: impl Fn(SiteKind) -> bool) -> Vec<SiteMemory> {
        // one kind for all of them, because a site may have rows of several
        let kind = SiteKind::OtherMemory;
        let mut sums = Sums::new();
        for (_, folded) in self.folded_sums.iter().filter(|(key, _)| is_wanted(key.kind)) {
            add(&mut sums, *folded, kind);
        }
        for row in rows.iter().filter(|row| is_wanted(row.kind)) {
            add(&mut sums, row.memory(self.site(row.number)), kind);
        }
        let mut all: Vec<_> = sums.into_values().collect();
        all.sort_unstable_by_key(|row| (row.process, row.site, row.gpu));
        all
    }

    /// Whether it is time to fold rows.
    pub(crate) fn should_fold(&self) -> bool {
        // destroyed contexts leave rows behind as well
        self.unfolded >= FOLD_AT || self.folded.elapsed() >= FOLD_EVERY
    }

    /// Whether a row can be removed from the table.
    pub(crate) fn is_final(&self, row: &SiteRow) -> bool {
        let site = self.site(row.number);
        // the stack of an unknown number may still come
        let may_come = site == SiteId::UNKNOWN && row.number != 0;
        row.is_final(site) && !may_come
    }

    /// Keeps the counts of a row that was removed.
    pub(crate) fn fold(&mut self, row: &SiteRow) {
        let memory = row.memory(self.site(row.number));
        add(&mut self.folded_sums, memory, row.kind);
    }

    /// Notes that rows were folded.
    pub(crate) fn note_folded(&mut self) {
        self.unfolded = 0;
        self.folded = Instant::now();
    }
}

fn root(raw: &RawStack) -> Root {
    Root { address: raw.ip, python: raw.python }
}

/// The return addresses after the first, up to the first whose position on the stack is not known.
fn steps(stack: &Stack, bottom: u64) -> Vec<Step> {
    let outer = stack.addresses.iter().zip(&stack.slots).skip(1);
    outer
        .map_while(|(address, slot)| {
            let distance = u32::try_from((*slot)?.checked_sub(bottom)?).ok()?;
            Some(Step { distance, address: *address })
        })
        .collect()
}

#[cfg(test)]
mod tests;
