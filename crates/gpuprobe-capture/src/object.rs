//! The loaded programs and everything attached through them.

mod apart;
mod driver;
mod libraries;
mod sites;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use gpuprobe_discover::FileId;
use gpuprobe_event::counters::{ContextMemory, ProcessKey, ProcessMemory};
use gpuprobe_event::{Api, Call, LossCause, Losses, ProcessChange, ProcessEvent, Tgid};
use libbpf_rs::{Iter, IterOpts, Link, Map, MapCore, MapFlags, Object, RingBuffer, RingBufferBuilder};

pub(crate) use self::apart::Apart;
pub use self::apart::may_be_left_out;
use crate::attach::Attached;
use crate::clock::{Clock, monotonic_ns};
use crate::counters::{self, Rows};
use crate::decode::{Control, Decoder};
use crate::error::CaptureError;
use crate::handles::{map_of, program_of};
use crate::keeper::{Keeper, LinkId};
use crate::link::MadeLink;
use crate::load::{CaptureConfig, check, load};
use crate::news::{Answer, Batch, Ending, Hold};
use crate::numbered::Numbered;
use crate::records::Records;
use crate::resolve::OfFiles;
use crate::sites::Sites;
use crate::support::{Tier, support};
use crate::sweeper::Sweeper;
use crate::task::Counted;
use crate::urgency::{Backlog, Urgent};
use crate::wire::{MapName, ProgramName, gp_call, gp_context_key, gp_failure_key, gp_live_key, gp_site_key};
use crate::xids::{self, Heard};

/// Calls that are taken out of the ring in one go. Their events still lie in the caches when they are written.
pub(crate) const MOST_CALLS_AT_ONCE: usize = 1 << 13;

/// How long before it ends the end of observation is announced: all CPUs have to see it by then.
const STOP_AHEAD: Duration = Duration::from_millis(1);

/// Bytes as they came out of the rings. Calls are copied out before the processes are read, so that the record of a
/// process is always known when its calls are decoded.
#[derive(Debug, Default)]
struct Pending {
    calls: Records,
    control: Records,
}

/// The programs, loaded, with what is attached.
pub struct Capture {
    // dropped first: no probe may outlive what follows
    keeper: Keeper,
    attached: HashMap<(FileId, Api), Attached>,
    loaders: HashMap<FileId, LinkId>,
    tracepoints: Vec<Link>,
    pub(crate) functions: Vec<MadeLink>,
    calls: RingBuffer<'static>,
    control: RingBuffer<'static>,
    pending: Rc<RefCell<Pending>>,
    pub(crate) object: Object,
    pub(crate) decoder: Decoder,
    /// What happened to processes after the calls that were taken last, when more were left in the ring.
    waiting: Vec<(ProcessKey, ProcessEvent)>,
    /// Processes that ended. Their last calls may still be in the ring.
    ended: Vec<ProcessKey>,
    backlog: Backlog,
    clock: Clock,
    tier: Tier,
    /// Files attached so far: each has a number.
    libraries: u16,
    /// What the kernel side was told last.
    name_word: u16,
    entry_only: bool,
    xids: Option<Heard>,
    /// The tier that was asked for.
    pub(crate) forced: Option<Tier>,
    pub(crate) counted: Counted,
    bare: bool,
    apart: Apart,
    has_sites: bool,
    /// When observation ended, since the start.
    stopped_ns: Option<u64>,
    /// Ways for which the kernel side had no room.
    refused_ways: u64,
    pub(crate) sweeper: Sweeper,
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
    /// Loads the programs. Nothing is probed yet. The command starts the process that will put probes in, see
    /// [`crate::Kept`]; no other thread may start processes meanwhile, which would inherit what is handed over to it.
    pub fn open(config: &CaptureConfig, keeper: Command) -> Result<Self, CaptureError> {
        let support = support();
        let tier = check(&support, config.tier)?;
        let object = load(config, tier)?;
        let keeper = Keeper::start(keeper, &object, tier)?;
        let mut tracepoints = Vec::new();
        for name in [ProgramName::OnExit, ProgramName::OnExec, ProgramName::OnFork] {
            let link = program_of(&object, name)?.attach();
            tracepoints.push(link.map_err(CaptureError::bpf("attach to the scheduler's tracepoints"))?);
        }
        let xids = xids::listen(&object, config.tier)?;
        let pending = Rc::new(RefCell::new(Pending::default()));
        let calls = ring(&object, MapName::Calls, {
            let pending = Rc::clone(&pending);
            move |bytes| pending.borrow_mut().calls.push(bytes)
        })?;
        let control = ring(&object, MapName::Control, {
            let pending = Rc::clone(&pending);
            move |bytes| pending.borrow_mut().control.push(bytes)
        })?;
        let clock = Clock::start();
        Ok(Self {
            keeper,
            attached: HashMap::new(),
            loaders: HashMap::new(),
            tracepoints,
            functions: Vec::new(),
            calls,
            control,
            pending,
            object,
            decoder: Decoder::new(
                clock,
                config.only_targets,
                Sites::new(config.site_nodes()),
                Box::new(OfFiles::new(config.names || config.stacks || config.sites)),
            ),
            libraries: 0,
            name_word: 0,
            entry_only: config.entry_only,
            xids,
            forced: config.tier,
            has_sites: config.sites,
            stopped_ns: None,
            refused_ways: 0,
            sweeper: Sweeper::default(),
            counted: Counted {
                launches: config.launches,
                copies: config.copies,
                driver: config.driver,
                rows: config.rows,
                told: config.told,
            },
            bare: config.bare,
            apart: Apart::new(config.apart),
            waiting: Vec::new(),
            ended: Vec::new(),
            backlog: Backlog::default(),
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

    /// Looks at what a process has mapped, so that its stacks and names can be told should it end soon.
    pub fn observe(&mut self, tgid: Tgid) {
        self.decoder.observe(tgid);
    }

    /// Tells a process that waits in the kernel how far we are.
    pub fn answer(&self, hold: Hold, answer: Answer) -> Result<(), CaptureError> {
        // GP_HELD of the header
        let value = 4 * u64::from(hold.ticket) + answer as u64;
        self.map(MapName::Held)?
            .update(&hold.tgid.0.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("answer a process that waits"))
    }

    /// How many processes are watched by name.
    pub fn target_count(&self) -> Result<usize, CaptureError> {
        Ok(self.map(MapName::Targets)?.keys().count())
    }

    /// A descriptor that becomes readable when there is something urgent.
    fn control_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as the borrow of self.
        unsafe { BorrowedFd::borrow_raw(self.control.epoll_fd()) }
    }

    /// Likewise for calls.
    fn calls_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: as for `control_fd`.
        unsafe { BorrowedFd::borrow_raw(self.calls.epoll_fd()) }
    }

    /// Waits for something to come, here or on one of the others, or for the time to pass.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        let mut all = vec![self.control_fd(), self.calls_fd(), self.keeper.fd()];
        all.extend_from_slice(others);
        wait(&all, self.backlog.wait_at_most(timeout));
    }

    /// Lets time pass, unless calls come.
    pub fn rest(&self, longest: Duration) {
        wait(&[self.calls_fd()], self.backlog.wait_at_most(longest));
    }

    /// Ends observation at one instant for all threads: nothing that happens later is recorded or counted, and calls that
    /// are open then stay open. Returns when it has passed.
    fn stop(&mut self) -> Result<u64, CaptureError> {
        if let Some(stopped_ns) = self.stopped_ns {
            return Ok(stopped_ns);
        }
        let stop = self.map(MapName::DataStop)?;
        // not to be kept from the CPU between the two by what is observed
        let urgent = Urgent::begin();
        let mut at_ns = monotonic_ns() + STOP_AHEAD.as_nanos() as u64;
        stop.update(&0u32.to_ne_bytes(), &at_ns.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("end observation"))?;
        // announced too late, it ends when it is announced: what came until then has been counted
        at_ns = at_ns.max(monotonic_ns());
        drop(urgent);
        while let Some(rest @ 1..) = at_ns.checked_sub(monotonic_ns()) {
            std::thread::sleep(Duration::from_nanos(rest));
        }
        let stopped_ns = self.clock.since_start(at_ns);
        self.stopped_ns = Some(stopped_ns);
        Ok(stopped_ns)
    }

    /// Ends observation at one instant, removes every probe, and takes what is left in the rings. Nothing is held any more
    /// after this.
    pub fn detach(&mut self) -> Result<Ending, CaptureError> {
        let at_ns = self.stop()?;
        let loaders = self.loaders.drain().map(|(_, link)| link);
        let libraries = self.attached.drain().flat_map(|(_, attached)| attached.into_links());
        self.keeper.detach(loaders.chain(libraries).collect());
        self.functions.clear();
        self.xids = None;
        // when no probe runs any more, and while threads that end still send what they have open
        let mut open = self.open_calls()?;
        // the last first: beginnings of calls of the kernel, and then their ends
        while self.tracepoints.pop().is_some() {}
        let mut all = self.take()?;
        loop {
            let more = self.take()?;
            if more.calls.is_empty() && more.processes.is_empty() && more.holds.is_empty() {
                break;
            }
            all.calls.extend(more.calls);
            all.processes.extend(more.processes);
            all.holds.extend(more.holds);
            all.xids.extend(more.xids);
            all.stacks += more.stacks;
        }
        all.cut(at_ns);
        open.retain(|call| call.start_ns < at_ns);
        // threads that ended meanwhile have sent theirs, but these were open at that instant too
        let sent = all.take_open();
        open.retain(|call| sent.iter().all(|sent| sent.id != call.id));
        open.extend(sent);
        Ok(Ending { batch: all, open, at_ns })
    }

    /// After [`Capture::detach`], when everybody has been let go: there is nothing left to be done for us.
    pub fn dismiss(&mut self) {
        self.keeper.dismiss();
    }

    /// Takes what is there.
    pub fn take(&mut self) -> Result<Batch, CaptureError> {
        self.keeper.check()?;
        self.take_out_paused();
        // not all at once: processes that wait must not wait for a flood of calls
        let taken = self.calls.consume_raw_n(MOST_CALLS_AT_ONCE);
        if taken < 0 {
            let source = libbpf_rs::Error::from_raw_os_error(-taken);
            return Err(CaptureError::Bpf { what: "read the ring buffer of calls", source });
        }
        self.control.consume().map_err(CaptureError::bpf("read the ring buffer of processes"))?;
        let is_empty = usize::try_from(taken).is_ok_and(|taken| taken < MOST_CALLS_AT_ONCE);
        self.backlog.taken(is_empty);
        let mut pending = self.pending.borrow_mut();
        let mut batch = Batch { processes: std::mem::take(&mut self.waiting), ..Batch::default() };
        for bytes in pending.control.iter() {
            match self.decoder.control(bytes) {
                Control::Process(key, process) => batch.processes.push((key, process)),
                Control::FirstCall(key, process) => batch.first_calls.push((key, process)),
                Control::Hold(hold) => batch.holds.push(hold),
                Control::Xid(xid) => batch.xids.push(xid),
                Control::Nothing => {}
            }
        }
        batch.calls = self.decoder.calls(&pending.calls);
        pending.calls.clear();
        pending.control.clear();
        drop(pending);
        self.decoder.sites.recognise_waiting();
        batch.stacks = self.decoder.sites.take_news();
        self.tell_name_word()?;
        self.tell_ways()?;
        if is_empty {
            self.forget_ended()?;
        } else {
            self.waiting = batch.hold_back();
        }
        let ended = batch.processes.iter().filter(|(_, p)| p.change == ProcessChange::Exit);
        self.ended.extend(ended.map(|(key, _)| *key));
        Ok(batch)
    }

    /// Forgets processes that had ended before the ring was emptied.
    fn forget_ended(&mut self) -> Result<(), CaptureError> {
        let ended = std::mem::take(&mut self.ended);
        self.forget_streams(&ended)?;
        for key in ended {
            // where launches are counted, their rows need the names until they are taken out
            if !self.counted.in_rows() {
                self.decoder.forget(key);
            }
        }
        Ok(())
    }

    /// Tells the kernel side which word of handles to look at, when that has changed.
    fn tell_name_word(&mut self) -> Result<(), CaptureError> {
        let word = self.decoder.name_word();
        if word != self.name_word {
            self.map(MapName::NameWord)?
                .update(&0u32.to_ne_bytes(), &u32::from(word).to_ne_bytes(), MapFlags::ANY)
                .map_err(CaptureError::bpf("say where names are"))?;
        }
        self.name_word = word;
        Ok(())
    }

    /// Calls that are open now, of all threads, outer ones before those made inside them.
    pub fn open_calls(&mut self) -> Result<Vec<Call>, CaptureError> {
        let program = program_of(&self.object, ProgramName::OpenCalls)?;
        let cannot = CaptureError::bpf("look at open calls");
        let link = program.attach_iter_with_opts(IterOpts::None).map_err(cannot)?;
        let mut bytes = Vec::new();
        let mut iterator = Iter::new(&link).map_err(CaptureError::bpf("look at open calls"))?;
        let read = iterator.read_to_end(&mut bytes).map_err(libbpf_rs::Error::from);
        read.map_err(CaptureError::bpf("look at open calls"))?;
        Ok(bytes.chunks_exact(size_of::<gp_call>()).filter_map(|call| self.decoder.open_call(call)).collect())
    }

    /// Everything lost so far.
    pub fn losses(&self) -> Result<Losses, CaptureError> {
        let mut losses = counters::losses(&self.map(MapName::Losses)?)?;
        losses.add(LossCause::Undecodable, self.decoder.undecodable);
        losses.add(LossCause::LostStack, self.decoder.sites.lost());
        losses.add(LossCause::SitesFull, self.refused_ways);
        losses.add(LossCause::OverBudget, self.apart.times());
        Ok(losses)
    }

    /// What every process did with every counted function, but for the calls that [`Capture::work`] has.
    pub fn counts(&self) -> Result<Vec<gpuprobe_event::counters::CallCounts>, CaptureError> {
        counters::counts(&self.counts_of()?)
    }

    /// How often every function failed in every way. Asked for after the calls, none of these is missing here.
    pub fn failures(&self) -> Result<Vec<gpuprobe_event::counters::FailureCounts>, CaptureError> {
        counters::failures(&self.map(MapName::Failures)?, &self.processes()?)
    }

    /// What every process did to GPU memory, and what it holds in every context.
    pub fn memory(&self) -> Result<(Vec<ProcessMemory>, Vec<ContextMemory>), CaptureError> {
        counters::memory(&self.processes()?, &self.context_rows()?)
    }

    /// What the driver told every process of its GPUs.
    pub fn identities(&self) -> Result<Vec<gpuprobe_event::counters::ToldGpu>, CaptureError> {
        counters::identities(&self.map(MapName::Identities)?)
    }

    /// Every live allocation.
    pub fn allocations(&self) -> Result<Vec<gpuprobe_event::counters::Allocation>, CaptureError> {
        let site = |number| self.decoder.sites.site(number);
        counters::allocations(
            &self.map(MapName::Live)?,
            &self.context_rows()?,
            &self.map(MapName::Physical)?,
            site,
        )
    }

    /// Takes out the rows of processes that ended: there is room for others at once.
    pub fn take_rows(&mut self, ended: &HashSet<ProcessKey>) -> Result<Rows, CaptureError> {
        let mut sites = self.sites()?;
        sites.retain(|row| ended.contains(&row.process));
        counters::remove_of::<gp_site_key>(&self.map(MapName::Sites)?, ended)?;
        self.decoder.sites.forget(ended);
        for name in [MapName::Addresses, MapName::Primaries, MapName::Identities] {
            counters::remove_of::<gp_context_key>(&self.map(name)?, ended)?;
        }
        // some of them are in the rows that are taken out next
        let mut failures = self.failures()?;
        failures.retain(|row| ended.contains(&row.process));
        let rows = counters::take_rows(&self.counts_of()?, &self.processes()?, &self.context_rows()?, ended)?;
        let work = self.take_work(ended)?;
        counters::remove_of::<gp_failure_key>(&self.map(MapName::Failures)?, ended)?;
        if self.counted.in_rows() {
            ended.iter().for_each(|key| self.decoder.forget(*key));
        }
        Ok(Rows { sites, work, failures, ..rows })
    }

    /// Takes out the live allocations of processes that ended: what they held is gone. Returns how many they were.
    pub fn release_memory(&mut self, ended: &HashSet<ProcessKey>) -> Result<usize, CaptureError> {
        let live = counters::remove_of::<gp_live_key>(&self.map(MapName::Live)?, ended)?;
        for name in [MapName::Handles, MapName::Mapped] {
            counters::remove_of::<gp_live_key>(&self.map(name)?, ended)?;
        }
        self.release_ranges(ended)?;
        Ok(live + counters::remove_physical(&self.map(MapName::Physical)?, ended)?)
    }

    fn counts_of(&self) -> Result<Numbered<'_>, CaptureError> {
        self.numbered(MapName::Counts, MapName::CountRows, MapName::UnusedCounts)
    }

    fn processes(&self) -> Result<Numbered<'_>, CaptureError> {
        self.numbered(MapName::Processes, MapName::MemoryRows, MapName::UnusedMemory)
    }

    fn context_rows(&self) -> Result<Numbered<'_>, CaptureError> {
        self.numbered(MapName::Contexts, MapName::ContextRows, MapName::UnusedContexts)
    }

    pub(crate) fn numbered(
        &self,
        names: MapName,
        rows: MapName,
        unused: MapName,
    ) -> Result<Numbered<'_>, CaptureError> {
        Ok(Numbered { names: self.map(names)?, rows: self.map(rows)?, unused: self.map(unused)? })
    }

    pub(crate) fn map(&self, name: MapName) -> Result<Map<'_>, CaptureError> {
        map_of(&self.object, name)
    }
}

fn ring(
    object: &Object,
    name: MapName,
    mut take: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, CaptureError> {
    let map = map_of(object, name)?;
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
