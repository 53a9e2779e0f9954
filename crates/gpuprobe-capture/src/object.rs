//! The loaded programs and everything attached through them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use gpuprobe_discover::{FileId, Loader, Target};
use gpuprobe_event::counters::ProcessKey;
use gpuprobe_event::{Event, LossCause, Losses, ProcessChange, ProcessEvent, Tgid};
use libbpf_rs::{
    Link, Map, MapCore, MapFlags, MapInfo, Object, ObjectBuilder, OpenObject, PrintLevel, RingBuffer,
    RingBufferBuilder,
};

use crate::attach::{self, Attached, Collect};
use crate::clock::Clock;
use crate::counters::{self, Rows};
use crate::decode::{Control, Decoder};
use crate::error::CaptureError;
use crate::machine::Verdict;
use crate::support::{Support, Tier, support, version_of};
use crate::targets::TargetIds;
use crate::wire::{OBJECT, as_bytes, gp_config, number};

/// What to load, and how large.
#[derive(Clone, Debug)]
pub struct CaptureConfig {
    /// The attach tier; the best there is when `None`.
    pub tier: Option<Tier>,
    /// Watch only the processes named by [`Capture::add_target`], and what they fork.
    pub only_targets: bool,
    /// Stop targets while libraries are mapped, until [`Batch::holds`] has been answered.
    pub hold: bool,
    /// Size of the ring buffer for calls: a power of two times the page size.
    pub ring_bytes: u32,
    /// How many live allocations are kept.
    pub live_entries: u32,
    /// How many (process, function) pairs are counted.
    pub count_entries: u32,
    /// How many processes are kept.
    pub process_entries: u32,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            tier: None,
            only_targets: false,
            hold: false,
            ring_bytes: 64 << 20,
            live_entries: 1 << 20,
            count_entries: 10_240,
            process_entries: 8_192,
        }
    }
}

/// What came since the last look.
#[derive(Debug, Default)]
pub struct Batch {
    /// Processes that began, changed their program or ended, with the keys of their counters.
    pub processes: Vec<(ProcessKey, ProcessEvent)>,
    /// Calls.
    pub calls: Vec<Event>,
    /// Processes that wait for their probes.
    pub holds: Vec<Hold>,
    /// First calls of processes that were told of before: their counters begin.
    pub first_calls: Vec<(ProcessKey, ProcessEvent)>,
}

/// How far user space is with a process that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// It will be dealt with; without this it does not wait long.
    Seen = 0,
    /// It must stop, for probes cannot be attached while it waits; it asks again when it has.
    Stop = 1,
    /// It may go on. One that is stopped needs SIGCONT as well.
    GoOn = 2,
}

/// A process that waits until what it has mapped is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which process.
    pub tgid: Tgid,
    /// It has been stopped by a signal, and needs SIGCONT to go on.
    pub stopped: bool,
    /// It waits in a way that lets probes be attached; otherwise it has to be told to stop first.
    pub may_attach: bool,
    /// Nothing but its program and its loader is mapped yet.
    pub at_exec: bool,
    pub(crate) ticket: u32,
}

impl Batch {
    /// Everything that happened, in the order in which it was over.
    pub fn into_events(self) -> Vec<Event> {
        let mut events = self.calls;
        events.extend(self.processes.into_iter().map(|(_, process)| Event::Process(process)));
        // threads send in the order in which their calls end, so this is nearly sorted and costs little
        events.sort_by_key(happened_at);
        events
    }
}

/// Calls that are taken out of the ring in one go.
const MOST_CALLS_AT_ONCE: usize = 1 << 16;

/// Bytes as they came out of the rings. Calls are copied out before the processes are read, so that the record of a
/// process is always known when its calls are decoded.
#[derive(Debug, Default)]
struct Pending {
    calls: Vec<u8>,
    lengths: Vec<u32>,
    control: Vec<Vec<u8>>,
}

/// The programs, loaded, with what is attached.
pub struct Capture {
    // dropped first: no probe may outlive what follows
    attached: HashMap<(FileId, bool), Attached>,
    loaders: HashMap<FileId, Link>,
    tracepoints: Vec<Link>,
    calls: RingBuffer<'static>,
    control: RingBuffer<'static>,
    pending: Rc<RefCell<Pending>>,
    object: Object,
    decoder: Decoder,
    /// Processes that ended in the last batch. Their last calls may come with the next one.
    ended: Vec<ProcessKey>,
    clock: Clock,
    tier: Tier,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("tier", &self.tier)
            .field("attached", &self.attached)
            .finish_non_exhaustive()
    }
}

impl Capture {
    /// Loads the programs. Nothing is probed yet.
    pub fn open(config: &CaptureConfig) -> Result<Self, CaptureError> {
        let support = support();
        let tier = check(&support, config.tier)?;
        let object = load(config, tier)?;
        let mut tracepoints = Vec::new();
        for name in ["on_exit", "on_exec", "on_fork"] {
            let link = attach::program(&object, name)?.attach();
            tracepoints.push(link.map_err(CaptureError::bpf("attach to the scheduler's tracepoints"))?);
        }
        let pending = Rc::new(RefCell::new(Pending::default()));
        let calls = ring(&object, "calls", {
            let pending = Rc::clone(&pending);
            move |bytes| {
                let mut pending = pending.borrow_mut();
                pending.calls.extend_from_slice(bytes);
                pending.lengths.push(bytes.len() as u32);
            }
        })?;
        let control = ring(&object, "control", {
            let pending = Rc::clone(&pending);
            move |bytes| pending.borrow_mut().control.push(bytes.to_vec())
        })?;
        let clock = Clock::start();
        Ok(Self {
            attached: HashMap::new(),
            loaders: HashMap::new(),
            tracepoints,
            calls,
            control,
            pending,
            object,
            decoder: Decoder::new(clock, config.only_targets),
            ended: Vec::new(),
            clock,
            tier,
        })
    }

    /// How probes are attached.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// When the recording began.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Watches a process, and what it forks from now on.
    pub fn add_target(&self, tgid: Tgid) -> Result<(), CaptureError> {
        self.map("targets")?
            .update(&tgid.0.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("add a process to watch"))
    }

    /// Tells a process that waits in the kernel how far we are.
    pub fn answer(&self, hold: Hold, answer: Answer) -> Result<(), CaptureError> {
        // GP_HELD of the header
        let value = 4 * u64::from(hold.ticket) + answer as u64;
        self.map("held")?
            .update(&hold.tgid.0.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("answer a process that waits"))
    }

    /// How many processes are watched by name.
    pub fn target_count(&self) -> Result<usize, CaptureError> {
        Ok(self.map("targets")?.keys().count())
    }

    /// What [`crate::TargetList`] is opened by.
    pub fn target_ids(&self) -> Result<TargetIds, CaptureError> {
        let id = |name| {
            let info = MapInfo::new(self.map(name)?.as_fd()).map_err(CaptureError::bpf("ask for a map"))?;
            Ok(info.info.id)
        };
        Ok(TargetIds { targets: id("targets")?, held: id("held")? })
    }

    /// Probes a library. One that is probed already is left as it is. May raise this process's limit of open files.
    pub fn attach(&mut self, target: &Target, collect: Collect) -> Result<&Attached, CaptureError> {
        let key = (target.library.id, target.library.is_static);
        if !self.attached.contains_key(&key) {
            let attached = attach::attach(&self.object, self.tier, target, collect)?;
            self.attached.insert(key, attached);
        }
        Ok(&self.attached[&key])
    }

    /// Takes every probe out of a file.
    pub fn detach_file(&mut self, id: FileId) {
        self.attached.retain(|(attached, _), _| *attached != id);
    }

    /// Whether a file is probed.
    pub fn is_attached(&self, id: FileId, is_static: bool) -> bool {
        self.attached.contains_key(&(id, is_static))
    }

    /// Every library that is probed.
    pub fn attached(&self) -> impl Iterator<Item = &Attached> {
        self.attached.values()
    }

    /// Whether targets with this dynamic loader are held already.
    pub fn holds_by(&self, loader: &Loader) -> bool {
        self.loaders.contains_key(&loader.id)
    }

    /// Holds targets whose dynamic loader this is while it maps libraries.
    pub fn attach_loader(&mut self, loader: &Loader) -> Result<(), CaptureError> {
        if !self.loaders.contains_key(&loader.id) {
            let link = attach::attach_loader(&self.object, self.tier, loader)?;
            self.loaders.insert(loader.id, link);
        }
        Ok(())
    }

    /// A descriptor that becomes readable when there is something urgent.
    pub fn control_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as the borrow of self.
        unsafe { BorrowedFd::borrow_raw(self.control.epoll_fd()) }
    }

    /// Likewise for calls.
    pub fn calls_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: as for `control_fd`.
        unsafe { BorrowedFd::borrow_raw(self.calls.epoll_fd()) }
    }

    /// Waits for something to come, here or on one of the others, or for the time to pass.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        let mut all = vec![self.control_fd(), self.calls_fd()];
        all.extend_from_slice(others);
        wait(&all, timeout);
    }

    /// Takes every probe out, and then what is left in the rings. Nothing is held any more after this.
    pub fn detach(&mut self) -> Result<Batch, CaptureError> {
        self.loaders.clear();
        self.attached.clear();
        self.tracepoints.clear();
        let mut all = self.take()?;
        loop {
            let more = self.take()?;
            if more.calls.is_empty() && more.processes.is_empty() && more.holds.is_empty() {
                return Ok(all);
            }
            all.calls.extend(more.calls);
            all.processes.extend(more.processes);
            all.holds.extend(more.holds);
        }
    }

    /// Takes what is there.
    pub fn take(&mut self) -> Result<Batch, CaptureError> {
        // not all at once: processes that wait must not wait for a flood of calls
        let taken = self.calls.consume_raw_n(MOST_CALLS_AT_ONCE);
        if taken < 0 {
            let source = libbpf_rs::Error::from_raw_os_error(-taken);
            return Err(CaptureError::Bpf { what: "read the ring buffer of calls", source });
        }
        self.control.consume().map_err(CaptureError::bpf("read the ring buffer of processes"))?;
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        let mut batch = Batch::default();
        for bytes in &pending.control {
            match self.decoder.control(bytes) {
                Control::Process(key, process) => batch.processes.push((key, process)),
                Control::FirstCall(key, process) => batch.first_calls.push((key, process)),
                Control::Hold(hold) => batch.holds.push(hold),
                Control::Nothing => {}
            }
        }
        let mut rest = pending.calls.as_slice();
        for length in &pending.lengths {
            let (bytes, after) = rest.split_at(*length as usize);
            rest = after;
            batch.calls.extend(self.decoder.call(bytes));
        }
        let ended =
            batch.processes.iter().filter(|(_, p)| p.change == ProcessChange::Exit).map(|(key, _)| *key);
        for key in std::mem::replace(&mut self.ended, ended.collect()) {
            self.decoder.forget(key);
        }
        Ok(batch)
    }

    /// Everything lost so far.
    pub fn losses(&self) -> Result<Losses, CaptureError> {
        let mut losses = counters::losses(&self.map("losses")?)?;
        losses.add(LossCause::Undecodable, self.decoder.undecodable);
        Ok(losses)
    }

    /// What every process did with every counted function.
    pub fn counts(&self) -> Result<Vec<gpuprobe_event::counters::CallCounts>, CaptureError> {
        counters::counts(&self.map("counts")?)
    }

    /// What every process did to GPU memory.
    pub fn memory(&self) -> Result<Vec<gpuprobe_event::counters::ProcessMemory>, CaptureError> {
        counters::memory(&self.map("processes")?)
    }

    /// Every live allocation.
    pub fn allocations(&self) -> Result<Vec<gpuprobe_event::counters::Allocation>, CaptureError> {
        counters::allocations(&self.map("live")?)
    }

    /// Takes out the rows of processes that ended: there is room for others at once.
    pub fn take_rows(&self, ended: &HashSet<ProcessKey>) -> Result<Rows, CaptureError> {
        counters::take_rows(&self.map("counts")?, &self.map("processes")?, ended)
    }

    /// Takes out the live allocations of processes that ended: what they held is gone. Returns how many they were.
    pub fn release_memory(&self, ended: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
        counters::release_memory(&self.map("live")?, ended)
    }

    fn map(&self, name: &'static str) -> Result<Map<'_>, CaptureError> {
        self.object.maps().find(|m| m.name() == name).ok_or(CaptureError::Missing(name))
    }
}

/// When an event was over, for those that take time.
fn happened_at(event: &Event) -> u64 {
    match event {
        Event::Call(call) => call.start_ns + call.duration_ns().unwrap_or(0),
        Event::Process(process) => process.at_ns,
        Event::Loss(loss) => loss.at_ns,
    }
}

/// Privileges and kernel, in the order in which a person would have to mend them.
fn check(support: &Support, forced: Option<Tier>) -> Result<Tier, CaptureError> {
    // bpf_loop
    const OLDEST: (u32, u32) = (5, 17);
    if version_of(&support.kernel).is_some_and(|v| v < OLDEST) {
        return Err(CaptureError::KernelTooOld { found: support.kernel.clone(), needed: "5.17" });
    }
    if let Some(bad) = support.checks.iter().find(|c| c.verdict == Verdict::Bad) {
        return Err(match bad.name {
            "capabilities" => CaptureError::NotPermitted,
            name => CaptureError::Forbidden { name, found: bad.found.clone() },
        });
    }
    if !support.has_btf() {
        return Err(CaptureError::NoBtf);
    }
    match forced {
        None => support.best_tier().ok_or(CaptureError::NoBtf),
        Some(tier) => match support.lacks(tier) {
            None => Ok(tier),
            Some(feature) => {
                Err(CaptureError::TierMissing { tier, missing: format!("it has no {}", feature.name) })
            }
        },
    }
}

/// What libbpf said, kept so that a failure can tell its reason.
static LIBBPF_SAID: Mutex<String> = Mutex::new(String::new());

fn keep_what_libbpf_says(_level: PrintLevel, text: String) {
    const KEPT: usize = 1 << 20;
    if let Ok(mut said) = LIBBPF_SAID.lock()
        && said.len() < KEPT
    {
        said.push_str(&text);
    }
}

fn load(config: &CaptureConfig, tier: Tier) -> Result<Object, CaptureError> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep_what_libbpf_says)));
    let loaded = open(config, tier).and_then(OpenObject::load);
    let said = LIBBPF_SAID.lock().map(|mut s| std::mem::take(&mut *s)).unwrap_or_default();
    loaded.map_err(|source| CaptureError::Load { reason: reason(&said), source })
}

fn open(config: &CaptureConfig, tier: Tier) -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("gpuprobe")?.open_memory(OBJECT)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "calls" => map.set_max_entries(config.ring_bytes)?,
            "live" => map.set_max_entries(config.live_entries)?,
            "counts" => map.set_max_entries(config.count_entries)?,
            "processes" => map.set_max_entries(config.process_entries)?,
            name if name.ends_with(".rodata.config") => {
                let value = gp_config {
                    only_targets: config.only_targets.into(),
                    hold: hold_mode(config.hold),
                    wakeup_bytes: config.ring_bytes / 32,
                    ..gp_config::default()
                };
                map.set_initial_value(as_bytes(&value))?;
            }
            _ => {}
        }
    }
    let wanted: &[&str] = match tier {
        Tier::Session => &["call_session"],
        Tier::Multi => &["call_multi_entry", "call_multi_return"],
        Tier::Perf => &["call_perf_entry", "call_perf_return"],
    };
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        // a program that names what a kernel lacks must not be loaded there
        let load = !name.starts_with("call_") || wanted.contains(&name.as_str());
        let loader = if tier == Tier::Perf { "loader_perf" } else { "loader_multi" };
        let load = if name.starts_with("loader_") { config.hold && name == loader } else { load };
        program.set_autoload(load);
    }
    Ok(object)
}

/// Waiting in the kernel takes a CPU, so that user space needs another one to answer from.
fn hold_mode(hold: bool) -> u8 {
    let alone = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    match (hold, alone) {
        (false, _) => number::HOLD_NOT,
        (true, false) => number::HOLD_BY_WAITING,
        (true, true) => number::HOLD_BY_STOPPING,
    }
}

/// The last lines that say something, out of a verifier log that may be very long.
fn reason(said: &str) -> String {
    let telling = |line: &&str| {
        let line = line.trim();
        !line.is_empty()
            && !line.contains("-- BEGIN")
            && !line.contains("-- END")
            && !line.starts_with("processed ")
    };
    let lines: Vec<_> = said.lines().filter(telling).collect();
    let tail = &lines[lines.len().saturating_sub(6)..];
    if tail.is_empty() { "no reason was given".to_owned() } else { tail.join("\n  ") }
}

fn ring(
    object: &Object,
    name: &'static str,
    mut take: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, CaptureError> {
    let map = object.maps().find(|m| m.name() == name).ok_or(CaptureError::Missing(name))?;
    let mut builder = RingBufferBuilder::new();
    let added = builder.add(&map, move |bytes: &[u8]| {
        take(bytes);
        0
    });
    added.map_err(CaptureError::bpf("open a ring buffer"))?;
    builder.build().map_err(CaptureError::bpf("open a ring buffer"))
}

/// Waits until one of the descriptors is readable. Being interrupted counts as waking up.
fn wait(descriptors: &[BorrowedFd<'_>], timeout: Duration) {
    let mut polls: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array is valid for its length during the call.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, milliseconds) };
}
