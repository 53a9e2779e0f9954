//! The facade over the loaded programs: an attacher, a ring reader and a table reader.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gpuprobe_discover::{Device, FileId, Library, Loader, ProbeCost, ProcessMaps, Target};
use gpuprobe_event::counters::{CallCounts, FailureCounts, GpuOpRows, LaunchCounts, ProcessKey};
use gpuprobe_event::{
    Class, Event, Frame, Function, FunctionId, LossCause, Losses, Outcome, SiteId, Tgid, UnifiedUse,
    catalogue,
};
use libbpf_rs::{MapCore, MapFlags};

use crate::attach::attacher::Attacher;
use crate::attach::linux::linux_functions::{LinuxTier, ProbedFunctions};
use crate::attach::linux::xid_source::XidSource;
use crate::attach::uprobe::library::Attached;
use crate::error::CaptureError;
use crate::host::clock::{Clock, monotonic_ns};
use crate::host::support::{Tier, support};
use crate::host::urgency::Urgent;
use crate::load::collect::{Collect, CountedOps};
use crate::load::config::CaptureConfig;
use crate::load::hooks::{LinuxFunctionHook, TracepointHook, Unprobed};
use crate::load::loader::load;
use crate::load::requirements::{check, check_lossless};
use crate::ring::agent_ring::AgentRing;
use crate::ring::batch::{Answer, Batch, Ending, PausedProcess};
use crate::ring::cuda_kernel_names::proven_word;
use crate::ring::decoder::Decoder;
use crate::ring::ring_reader::RingReader;
use crate::stacks::call_sites::CallSites;
use crate::stacks::resolver::FileResolver;
use crate::tables::exited_rows::ExitedRows;
use crate::tables::process_filter::ProcessFilter;
use crate::tables::table_reader::TableReader;
use crate::wire::object_handles::handle_of;
use crate::wire::{MapName, from_bytes};

mod agents;
mod interpreters;
mod memory;
mod sampling;
mod spooling;
mod unfinished_calls;

/// How long before it takes effect the end of observation is announced: all CPUs must see it by then.
const STOP_AHEAD: Duration = Duration::from_millis(1);

/// The loaded programs, with everything that is attached. Dropping it removes every probe.
pub struct Capture {
    // dropped first: no probe may outlive the rings and the tables
    attacher: Attacher,
    ring: RingReader,
    tables: TableReader,
    /// Only for GPU times.
    agents: Option<AgentRing>,
    clock: Clock,
    /// When observation ended, in nanoseconds since the start.
    stopped_ns: Option<u64>,
    /// Launches of which it was not known at the end whether they had returned.
    unclear_returns: u64,
    /// Processes whose Python frames cannot be read, and why.
    unsupported_python: Vec<(Tgid, String)>,
    /// Interpreters that the BPF programs have no room for.
    refused_pythons: u64,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("attacher", &self.attacher).finish_non_exhaustive()
    }
}

/// Loading, and the end of observation.
impl Capture {
    /// Loads the programs. Nothing is probed yet. The command starts the attach helper, see [`crate::HelperServer`]. No
    /// other thread may start processes meanwhile: they would inherit the descriptors that are handed over to the
    /// helper.
    pub fn open(config: &CaptureConfig, helper: Command) -> Result<Self, CaptureError> {
        let tier = check(&support(), config.tier)?;
        check_lossless(config, tier)?;
        let object = Rc::new(load(config, tier)?);
        let counted = CountedOps {
            launches: config.launches,
            copies: config.copies,
            device_calls: config.device_syscalls,
            rows: config.rows,
            annotate_records: config.annotate_records,
            call_sites: config.call_sites,
            samples_launch_returns: config.samples_launch_returns(),
        };
        let attacher = Attacher::start(Rc::clone(&object), helper, config, tier, counted)?;
        let clock = Clock::start();
        let has_stacks = config.stacks || config.finds_sites();
        let python_ring = has_stacks.then(|| handle_of(&object, MapName::PythonStacks)).transpose()?;
        let mut decoder = Decoder::new(
            clock,
            config.only_targets,
            CallSites::new(config.site_nodes()),
            Box::new(FileResolver::new(config.names, has_stacks, python_ring)),
        );
        decoder.graphs.has_rows = counted.launch_rows();
        let agent_map = config.gpu_time.then(|| handle_of(&object, MapName::AgentBatches)).transpose()?;
        Ok(Self {
            attacher,
            agents: agent_map.as_ref().map(AgentRing::open).transpose()?,
            ring: RingReader::open(Rc::clone(&object), decoder)?,
            tables: TableReader::new(object, counted, config.sites, config.tensors),
            clock,
            stopped_ns: None,
            unclear_returns: 0,
            unsupported_python: Vec::new(),
            refused_pythons: 0,
        })
    }

    /// How probes are attached.
    pub fn tier(&self) -> Tier {
        self.attacher.uprobes.tier()
    }

    /// When the recording began.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Ends observation at one instant for all threads: nothing that happens later is recorded or counted, and calls
    /// that are open then stay open. Returns after that instant.
    fn stop(&mut self) -> Result<u64, CaptureError> {
        if let Some(stopped_ns) = self.stopped_ns {
            return Ok(stopped_ns);
        }
        let stop = self.tables.map(MapName::DataStop)?;
        // the observed programs must not take the CPU from us between the two readings of the clock
        let urgent = Urgent::begin();
        let mut at_ns = monotonic_ns() + STOP_AHEAD.as_nanos() as u64;
        stop.update(&0u32.to_ne_bytes(), &at_ns.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("end observation"))?;
        // if the announcement came too late, observation ends now: everything until then has been counted
        at_ns = at_ns.max(monotonic_ns());
        drop(urgent);
        while let Some(rest @ 1..) = at_ns.checked_sub(monotonic_ns()) {
            std::thread::sleep(Duration::from_nanos(rest));
        }
        let stopped_ns = self.clock.since_start(at_ns);
        self.stopped_ns = Some(stopped_ns);
        Ok(stopped_ns)
    }

    /// Ends observation at one instant, removes every probe, and takes what is left in the rings. No process is
    /// paused any more after this.
    pub fn detach(&mut self) -> Result<Ending, CaptureError> {
        let at_ns = self.detach_probes()?;
        // no probe runs any more, but threads that exit still send their open calls
        let mut open = self.open_calls()?;
        self.attacher.detach_tracepoints();
        let mut all = self.take()?;
        loop {
            let more = self.take()?;
            let is_empty = more.calls.is_empty() && more.processes.is_empty() && more.paused.is_empty();
            // what is spooled may be records that are no calls
            if is_empty && self.spooled_calls().is_none() {
                break;
            }
            all.calls.extend(more.calls);
            all.processes.extend(more.processes);
            all.paused.extend(more.paused);
            all.xids.extend(more.xids);
            all.stacks += more.stacks;
        }
        open.retain(|call| call.start_ns < at_ns);
        // most launches without a return probe are not open; threads that exited meanwhile have sent them too
        all.remove_ended(&open);
        let ended: Vec<_> = open.extract_if(.., |call| call.outcome != Outcome::Unfinished).collect();
        all.calls.extend(ended.into_iter().map(|call| Event::Call(Box::new(call))));
        // threads that exited meanwhile have sent their open calls, which were open at that instant too
        let sent = all.take_open();
        open.retain(|call| sent.iter().all(|sent| sent.id != call.id));
        open.extend(sent);
        Ok(Ending { batch: all, open, at_ns })
    }

    /// Ends the attach helper. To be called after [`Capture::detach`], when all paused processes have been released.
    pub fn dismiss(&mut self) {
        self.attacher.uprobes.dismiss_helper();
    }
}

/// Records of the ring buffers, and the processes they come from.
impl Capture {
    /// Reads what a process has mapped, so that its stacks and names can be resolved even if it exits soon.
    pub fn observe(&mut self, tgid: Tgid) {
        self.ring.decoder.observe(tgid);
        self.write_pythons();
    }

    /// As [`Capture::observe`], for a process whose mappings were just read.
    pub fn observe_maps(&mut self, tgid: Tgid, maps: &ProcessMaps) {
        self.ring.decoder.observe_maps(tgid, maps);
        self.write_pythons();
    }

    /// Watches a process, and what it forks from now on.
    pub fn add_target(&self, tgid: Tgid) -> Result<(), CaptureError> {
        self.tables
            .map(MapName::Targets)?
            .update(&tgid.0.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("add a process to watch"))
    }

    /// The processes that are watched by number.
    pub fn targets(&self) -> Result<Vec<Tgid>, CaptureError> {
        let map = self.tables.map(MapName::Targets)?;
        Ok(map.keys().map(|key| Tgid(from_bytes(&key))).collect())
    }

    /// Marks a process that copies stacks away and back, so that its return addresses move. No return probe is
    /// prepared in it while another call is open, unless one call is inside the other.
    pub fn add_stack_copier(&self, tgid: Tgid) -> Result<(), CaptureError> {
        let one = 1u32.to_ne_bytes();
        for (map, key) in [(MapName::StackCopiers, tgid.0), (MapName::AnyStackCopier, 0)] {
            self.tables
                .map(map)?
                .update(&key.to_ne_bytes(), &one, MapFlags::ANY)
                .map_err(CaptureError::bpf("mark a process that copies stacks"))?;
        }
        Ok(())
    }

    /// Answers a paused process.
    pub fn answer(&self, paused: PausedProcess, answer: Answer) -> Result<(), CaptureError> {
        // GP_PAUSE_STATE of the header
        let value = 4 * u64::from(paused.ticket) + answer as u64;
        self.tables
            .map(MapName::Paused)?
            .update(&paused.tgid.0.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
            .map_err(CaptureError::bpf("answer a paused process"))
    }

    /// Waits for records, for one of the other descriptors, or for the timeout.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        let mut all = vec![self.attacher.uprobes.helper_fd()];
        all.extend(self.agents.as_ref().map(AgentRing::fd));
        all.extend_from_slice(others);
        self.ring.wait(&all, timeout);
    }

    /// Waits for calls or for the timeout.
    pub fn rest(&self, longest: Duration) {
        self.ring.wait_for_calls(longest);
    }

    /// Takes one batch of records. Under load it drains the ring in batches.
    pub fn take(&mut self) -> Result<Batch, CaptureError> {
        self.attacher.uprobes.check_helper()?;
        let begun_ns = self.clock.elapsed_ns();
        let (mut batch, is_empty) = self.ring.read()?;
        if let Some(stopped_ns) = self.stopped_ns {
            batch.remove_after(stopped_ns);
        }
        self.tables.write_name_word(self.ring.decoder.name_word())?;
        self.tables.write_sites(&mut self.ring.decoder.sites)?;
        self.retire_graphs()?;
        self.write_pythons();
        if is_empty {
            self.forget_exited()?;
        }
        self.ring.defer_processes(&mut batch, is_empty.then_some(begun_ns));
        batch.is_drained = is_empty;
        self.ring.note_exits(&batch);
        Ok(batch)
    }

    /// Takes the launches of graphs that do not exist any more out of their table.
    fn retire_graphs(&mut self) -> Result<(), CaptureError> {
        for (process, contents) in self.ring.decoder.graphs.take_forgotten() {
            let launches = self.tables.take_exec_launches(process, contents)?;
            self.ring.decoder.graphs.retire(process, contents, launches);
        }
        Ok(())
    }

    /// Forgets the processes that had exited before the ring was emptied.
    fn forget_exited(&mut self) -> Result<(), CaptureError> {
        let exited = self.ring.take_exited();
        self.tables.forget_streams(&exited)?;
        // where launches are counted, their rows need the kernel names until `take_rows`
        if !self.tables.counted.launch_rows() {
            exited.into_iter().for_each(|key| self.ring.decoder.forget(key));
        }
        Ok(())
    }

    /// The stack of a call site, innermost frame first; empty if it is not known. The first time may take long.
    pub fn frames_of(&mut self, site: SiteId) -> Arc<[Frame]> {
        self.ring.decoder.frames_of(site)
    }
}

/// Tables.
impl Capture {
    /// All losses since the start.
    pub fn losses(&self) -> Result<Losses, CaptureError> {
        let mut losses = self.tables.losses()?;
        losses.add(LossCause::Undecodable, self.ring.decoder.undecodable);
        losses.add(LossCause::Discarded, self.ring.discarded);
        losses.add(LossCause::UnobservedReturn, self.unclear_returns);
        losses.add(LossCause::LostStack, self.ring.decoder.sites.lost());
        losses.add(LossCause::UnreadGpuOp, self.ring.decoder.graphs.unknown_changes);
        losses.add(LossCause::LostName, self.ring.decoder.graphs.refused);
        losses.add(LossCause::ShortenedStack, self.ring.decoder.sites.shortened());
        losses.add(LossCause::UnreadPython, self.ring.decoder.unread_python() + self.refused_pythons);
        losses.add(LossCause::SitesFull, self.tables.refused_sites);
        losses.add(LossCause::OverBudget, self.attacher.uprobes.missed_turns());
        let of_agents = self.agents.as_ref().map(AgentRing::losses).unwrap_or_default();
        of_agents.iter().for_each(|(cause, count)| losses.add(cause, count));
        Ok(losses)
    }

    /// Calls of every process and function, without the calls that [`Capture::gpu_ops`] counts.
    pub fn counts(&self) -> Result<Vec<CallCounts>, CaptureError> {
        self.tables.counts()
    }

    /// Calls of every process and function, with those that launched something.
    pub fn all_counts(&self) -> Result<Vec<CallCounts>, CaptureError> {
        let mut all = self.tables.counts()?;
        all.extend(self.tables.launch_calls()?);
        Ok(all)
    }

    /// How often every function failed, by error. If it is read after the calls, no failed call is missing.
    pub fn failures(&self) -> Result<Vec<FailureCounts>, CaptureError> {
        self.tables.failures()
    }

    /// Launches of every process, and nothing else.
    pub fn launches(&mut self) -> Result<Vec<LaunchCounts>, CaptureError> {
        let decoder = &mut self.ring.decoder;
        self.tables.launches(&mut |process, handle| decoder.kernel(process, handle))
    }

    /// GPU operations of every process, as far as they are counted.
    pub fn gpu_ops(&mut self) -> Result<GpuOpRows, CaptureError> {
        let version = self.ring.decoder.version;
        let decoder = &mut self.ring.decoder;
        let name_of = &mut |process, handle| decoder.kernel(process, handle);
        let mut rows = self.tables.gpu_ops(ProcessFilter::All, name_of, version)?;
        let mut launches = self.tables.exec_launches(ProcessFilter::All)?;
        // processes whose graphs have all been destroyed
        for process in self.ring.decoder.graphs.processes() {
            launches.entry(process).or_default();
        }
        rows.graph_kernels = self.ring.decoder.graph_kernels(launches, false);
        Ok(rows)
    }

    /// Whether copies are counted by direction and memory.
    pub(crate) fn counts_copies(&self) -> bool {
        self.tables.counted.copies
    }

    /// Faults and migrations of unified memory of every process, also of exited ones; empty if they are not counted.
    pub fn unified(&self) -> Result<Vec<UnifiedUse>, CaptureError> {
        self.tables.unified()
    }

    /// Removes the rows of exited processes, which makes room for others, and returns them.
    pub fn take_rows(&mut self, exited: &HashSet<ProcessKey>) -> Result<ExitedRows, CaptureError> {
        let sites = self.tables.take_sites(&mut self.ring.decoder.sites, exited)?;
        let version = self.ring.decoder.version;
        let decoder = &mut self.ring.decoder;
        let name_of = &mut |process, handle| decoder.kernel(process, handle);
        let launches = self.tables.exec_launches(ProcessFilter::Exited(exited))?;
        let mut rows = self.tables.take_rows(exited, name_of, version)?;
        let mut all: HashMap<_, _> = exited.iter().map(|process| (*process, Vec::new())).collect();
        all.extend(launches);
        rows.gpu_ops.graph_kernels = self.ring.decoder.graph_kernels(all, true);
        if self.tables.counted.launch_rows() {
            exited.iter().for_each(|key| self.ring.decoder.forget(*key));
        }
        Ok(ExitedRows { sites, ..rows })
    }
}

/// Probes on libraries.
impl Capture {
    /// Probes a library, unless it is probed already. Nothing is observed before [`Capture::start_observing`]: probes
    /// are attached one after the other, and an allocation that is seen before its free can be seen would stay live
    /// for ever.
    pub fn attach(
        &mut self,
        target: &Target,
        collect: &dyn Fn(FunctionId) -> Collect,
    ) -> Result<&Attached, CaptureError> {
        let library = &target.library;
        let key = (library.id, library.kind);
        if !self.attacher.uprobes.is_attached(key) {
            let number = self.attacher.uprobes.next_library(&library.path)?;
            self.ring.decoder.add_library(number, library.kind, proven_word(&library.path));
            let attached = self.attacher.uprobes.attach(target, number, collect)?;
            let is_copy = |f: &Function| matches!(f.class, Class::Memcpy | Class::Memset);
            self.ring.decoder.follows_copies |= library.kind.is_below()
                && attached.points.keys().any(|id| catalogue().get(*id).is_some_and(is_copy));
            self.tables.write_name_word(self.ring.decoder.name_word())?;
        }
        Ok(self.attacher.uprobes.library(key))
    }

    /// Starts to observe every library that was probed since the last time.
    pub fn start_observing(&mut self) -> Result<(), CaptureError> {
        self.attacher.uprobes.start_observing()
    }

    /// Observes only frees of these files from now on, in preparation for [`Capture::detach_files`]: the free of an
    /// allocation that is counted now would not be seen. `false` undoes it.
    pub fn prepare_detach(&mut self, files: &HashSet<FileId>, is_prepared: bool) -> Result<(), CaptureError> {
        self.attacher.uprobes.prepare_detach(files, is_prepared)
    }

    /// Removes every probe of these files, without waiting for it.
    pub fn detach_files(&mut self, files: &HashSet<FileId>) {
        self.attacher.uprobes.detach_files(files);
    }

    /// Every library that is probed.
    pub fn attached(&self) -> impl Iterator<Item = &Attached> {
        self.attacher.uprobes.libraries()
    }

    /// Whether targets with this dynamic loader are paused already while it maps libraries.
    pub fn pauses_by(&self, loader: &Loader) -> bool {
        self.attacher.uprobes.has_loader(loader)
    }

    /// Pauses targets with this dynamic loader while it maps libraries.
    pub fn attach_loader(&mut self, loader: &Loader) -> Result<(), CaptureError> {
        self.attacher.uprobes.attach_loader(loader)
    }

    /// Takes in the paths by which the files of mapped libraries can be opened now: a path through a process's mounts
    /// ends with the process. Returns whether sampled functions of these libraries have missed a turn since the last
    /// time.
    pub fn set_open_paths(&mut self, mapped: &[Library]) -> bool {
        self.attacher.uprobes.set_open_paths(mapped)
    }

    /// The most expensive probe point that a function has in any file; `None` if it is not probed.
    pub fn point_of(&self, id: FunctionId) -> Option<ProbeCost> {
        self.attacher.uprobes.point_of(id)
    }
}

/// Probes on the Linux kernel.
impl Capture {
    /// Watches system calls on these NVIDIA device files. The configuration must have asked for it.
    pub fn attach_device_calls(&mut self, devices: &[Device], collect: Collect) -> Result<(), CaptureError> {
        self.attacher.linux.attach_device_calls(devices, collect)
    }

    /// Adds device files of the NVIDIA kernel module that appeared meanwhile.
    pub fn add_devices(&self, devices: &[Device]) -> Result<(), CaptureError> {
        self.attacher.linux.add_devices(devices)
    }

    /// How GPU errors are reported as they happen; `None` where only NVML reports them.
    pub fn xid_source(&self) -> Option<XidSource> {
        self.attacher.linux.xid_source()
    }

    /// Probes functions of the Linux kernel, each by the best of these tiers that it accepts.
    pub fn attach_linux_functions(
        &mut self,
        hooks: &[LinuxFunctionHook],
        tiers: &[LinuxTier],
        collect: Collect,
    ) -> Result<ProbedFunctions, CaptureError> {
        self.attacher.linux.attach_linux_functions(hooks, tiers, collect)
    }

    /// Attaches to tracepoints. They must be those of the configuration with which the programs were loaded.
    pub fn attach_tracepoints(
        &mut self,
        hooks: &[TracepointHook],
        collect: Collect,
    ) -> Result<Vec<Unprobed>, CaptureError> {
        self.attacher.linux.attach_tracepoints(hooks, collect)
    }

    /// Counts faults and migrations of unified memory; `None` if the NVIDIA kernel module cannot report them.
    pub fn attach_unified(&mut self) -> Option<io::Result<LinuxTier>> {
        self.attacher.linux.attach_unified()
    }
}
