//! Builds snapshots of all observed processes: the counters of the BPF programs with names added. Displays, metrics
//! and the `memory` command are made from them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gpuprobe_analysis::executions::SampledTime;
use gpuprobe_analysis::{
    Inputs, LibraryProbes, LiveMemory, LiveTensors, MemoryReport, ProcessCallSites, ProcessTensors, Rules,
    Snapshot, TensorReport, oldest_calls, open_times,
};
use gpuprobe_capture::{Batch, Capture};
use gpuprobe_event::counters::{Allocation, ProcessKey};
use gpuprobe_event::{Class, Event, Gpu, LossCause, Losses, SiteId};
use gpuprobe_output::otlp::LogEvents;
use gpuprobe_output::units::printable;

use super::gpu_numbering::GpuNumbering;
use super::gpu_state_poller::GpuStatePoller;
use super::out_of_memory_notes::OutOfMemoryNotes;
use super::pending_calls::PendingCalls;
use super::processes::Processes;
use super::tensor_reader::TensorReader;
use super::xid_counts::XidCounts;
use crate::session::probes::probe_set::Probes;
use crate::terminal::notes::note;

/// The classes of functions that track live memory.
pub(crate) const MEMORY: &[Class] =
    &[Class::Alloc, Class::Free, Class::HostRegister, Class::HostUnregister, Class::Vmm];

#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) probes: Probes,
    pub(crate) processes: Processes,
    /// Live memory by call site; `None` if memory is not shown.
    live_memory: Option<LiveMemory>,
    /// Tensors by call site and GPU; `None` if they are not shown.
    tensors: Option<LiveTensors>,
    tensor_reader: TensorReader,
    /// Call sites to be symbolized, the most urgent last.
    unnamed_sites: Vec<SiteId>,
    /// The host's numbers of the GPUs of processes.
    gpus: Option<GpuNumbering>,
    /// The state of GPUs.
    states: Option<GpuStatePoller>,
    /// GPU errors reported by the NVIDIA kernel module.
    xids: XidCounts,
    out_of_memory_notes: OutOfMemoryNotes,
    /// Calls that have not returned for long; `None` if they are not shown.
    pending: Option<PendingCalls>,
    /// Time in calls by process, as of the last snapshot with pending calls.
    call_times: HashMap<ProcessKey, u64>,
    /// GPU time by CUDA kernel; `None` if it is not collected.
    gpu_time: Option<SampledTime>,
    /// Takes errors that become log records; `None` if nothing is pushed.
    log_events: Option<Arc<LogEvents>>,
}

impl Observer {
    /// Without `live_memory`, snapshots contain no memory.
    pub(crate) fn new(probes: Probes, processes: Processes, live_memory: Option<LiveMemory>) -> Self {
        let processes = if live_memory.is_some() { processes } else { processes.without_memory() };
        Self {
            probes,
            processes,
            live_memory,
            tensors: None,
            tensor_reader: TensorReader::default(),
            unnamed_sites: Vec::new(),
            gpus: None,
            states: None,
            xids: XidCounts::default(),
            out_of_memory_notes: OutOfMemoryNotes::default(),
            pending: None,
            call_times: HashMap::new(),
            gpu_time: None,
            log_events: None,
        }
    }

    /// Adds tensors to snapshots.
    pub(crate) fn with_tensors(self, tensors: Option<LiveTensors>) -> Self {
        Self { tensors, ..self }
    }

    /// Adds the host's GPU numbers to snapshots.
    pub(crate) fn with_gpus(self, gpus: GpuNumbering) -> Self {
        Self { gpus: Some(gpus), ..self }
    }

    /// Adds the state of GPUs to snapshots.
    pub(crate) fn with_states(self, states: Option<GpuStatePoller>) -> Self {
        Self { states, ..self }
    }

    /// Adds pending calls to snapshots.
    pub(crate) fn with_pending_calls(self, pending: PendingCalls) -> Self {
        Self { pending: Some(pending), ..self }
    }

    /// Adds GPU time to snapshots.
    pub(crate) fn with_gpu_times(self) -> Self {
        Self { gpu_time: Some(SampledTime::default()), ..self }
    }

    /// Passes on XIDs and out-of-memory errors.
    pub(crate) fn with_log_events(self, log_events: Option<Arc<LogEvents>>) -> Self {
        Self { log_events, ..self }
    }

    /// Changes the time after which call sites are judged.
    pub(crate) fn set_warm_up(&mut self, warm_up: Duration) {
        self.each_live_memory().for_each(|live_memory| live_memory.judge_by(Rules::after(warm_up)));
    }

    /// Changes how often the host's GPUs are read.
    pub(crate) fn set_rescan(&mut self, every: Duration) {
        if let Some(gpus) = &mut self.gpus {
            gpus.set_rescan(every);
        }
    }

    /// Changes how often NVML is read.
    pub(crate) fn set_state_interval(&self, every: Duration) {
        if let Some(states) = &self.states {
            states.read_every(every);
        }
    }

    /// What is followed by call site: memory and tensors.
    fn each_live_memory(&mut self) -> impl Iterator<Item = &mut LiveMemory> {
        let tensors = self.tensors.as_mut().map(|tensors| &mut tensors.call_sites);
        self.live_memory.iter_mut().chain(tensors)
    }

    fn now_ns(&self) -> u64 {
        self.probes.capture.clock().elapsed_ns()
    }

    /// How long ago something was.
    fn ago(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(self.now_ns().saturating_sub(at_ns))
    }

    /// Time until [`Observer::take`] must be called again, even if there are no records.
    pub(crate) fn due(&self) -> Option<Duration> {
        let naming = (!self.unnamed_sites.is_empty()).then_some(Duration::ZERO);
        let budget = self.probes.budget_due();
        naming.or_else(|| self.processes.due().into_iter().chain(budget).min())
    }

    /// Takes in a batch, and reads and removes the BPF rows of exited processes.
    pub(crate) fn take(&mut self, batch: &Batch) -> Result<()> {
        self.processes.take(batch, self.now_ns());
        for xid in &batch.xids {
            self.xids.add(xid);
            self.log_events.iter().for_each(|events| events.xid(xid, self.ago(xid.at_ns)));
        }
        self.note_out_of_memory(batch)?;
        self.take_gpu_times(batch);
        // reading the rows removes what was live at exit
        let keeps_exited = self.each_live_memory().any(|live_memory| live_memory.keeps_exited());
        if keeps_exited && self.processes.rows_are_due() {
            self.sample_all()?;
            self.name_all();
            self.read_ages()?;
        }
        // symbolize one site at a time, and none while stacks arrive: it may take milliseconds, and the ring buffer
        // must not fill up
        if batch.stacks == 0
            && let Some(site) = self.unnamed_sites.pop()
        {
            self.name_site(site);
        }
        if self.processes.rows_are_due() {
            self.probes.note_counters()?;
        }
        self.processes.collect_exited(&mut self.probes.capture)?;
        Ok(())
    }

    fn take_gpu_times(&mut self, batch: &Batch) {
        let Some(gpu_time) = &mut self.gpu_time else { return };
        let processes = &self.processes;
        let gpu_of =
            |tgid, number| processes.host_gpu(tgid, number).map_or(Gpu::OfProcess(number), Gpu::Host);
        batch.calls.iter().for_each(|event| gpu_time.feed(event, gpu_of));
        for (_, process) in &batch.processes {
            gpu_time.changed(process.tgid, process.change, process.at_ns);
        }
    }

    /// Writes out-of-memory errors to the log, with the state of their GPUs.
    fn note_out_of_memory(&mut self, batch: &Batch) -> Result<()> {
        let error = |event: &Event| match event {
            Event::OutOfMemory(error) => Some(error.as_ref().clone()),
            _ => None,
        };
        let mut errors: Vec<_> = batch.calls.iter().filter_map(error).collect();
        let arrived = errors.len();
        let noted = self.out_of_memory_notes.take(&mut errors);
        let left_out = if noted.is_some() { arrived - errors.len() } else { arrived };
        self.log_events.iter().for_each(|events| events.more(left_out as u64));
        let Some(noted) = noted else { return Ok(()) };
        let snapshot = self.snapshot(&Losses::default(), &[])?;
        for mut error in errors {
            if let Some(gpu) = error.gpu.and_then(|gpu| self.processes.host_gpu(error.tgid, gpu)) {
                snapshot.gpu_states.complete(&mut error, gpu);
            }
            self.log_events.iter().for_each(|events| events.out_of_memory(&error, self.ago(error.at_ns)));
            note!("gpuprobe: {}", printable(&gpuprobe_output::out_of_memory_line(&error)));
            for holder in gpuprobe_output::out_of_memory_holders(&error) {
                note!("gpuprobe:   {}", printable(&holder));
            }
        }
        if noted.suppressed > 0 {
            note!("gpuprobe: {} more out-of-memory errors", noted.suppressed);
        }
        Ok(())
    }

    /// Samples live memory and tensors by call site. Fragmentation may be a little older.
    pub(crate) fn sample(&mut self) -> Result<()> {
        self.sample_with(false)
    }

    /// The same with fragmentation at this moment.
    fn sample_all(&mut self) -> Result<()> {
        self.sample_with(true)
    }

    fn sample_with(&mut self, fragmentation_is_needed: bool) -> Result<()> {
        let now_ns = self.now_ns();
        if let Some(live_memory) = &mut self.live_memory {
            let rows = self.probes.capture.sites()?;
            live_memory.feed(&rows, self.processes.infos(), now_ns);
        }
        if let Some(tensors) = &mut self.tensors {
            let capture = &self.probes.capture;
            let fragmentation = self.tensor_reader.fragmentation(capture, fragmentation_is_needed)?;
            let (sites, gpus) = self.tensor_reader.rows(capture)?;
            if let Some(fragmentation) = fragmentation {
                tensors.set_fragmentation(&gpus, &fragmentation);
            }
            tensors.feed(&sites, &gpus, self.processes.infos(), now_ns);
        }
        let unnamed = self.each_live_memory().flat_map(|live_memory| live_memory.unnamed());
        let mut unnamed: Vec<SiteId> = unnamed.collect();
        unnamed.reverse();
        self.unnamed_sites = unnamed;
        Ok(())
    }

    /// Symbolizes the stack of a call site.
    fn name_site(&mut self, site: SiteId) {
        let frames = self.probes.capture.frames_of(site);
        // a site that one of them does not have is forgotten at its next sample
        self.each_live_memory().for_each(|live_memory| live_memory.name(site, frames.to_vec()));
    }

    fn name_all(&mut self) {
        std::mem::take(&mut self.unnamed_sites).into_iter().for_each(|site| self.name_site(site));
    }

    /// Reads the age of live allocations. There may be a million of them, so this is done only for displays and when a
    /// call site is suspected of a leak.
    fn read_ages(&mut self) -> Result<()> {
        let capture = &self.probes.capture;
        let clock = capture.clock();
        if let Some(live_memory) = &mut self.live_memory {
            live_memory.set_ages(&capture.allocations()?, |ns| clock.since_start(ns));
        }
        self.read_ages_of_tensors()
    }

    fn read_ages_of_tensors(&mut self) -> Result<()> {
        let Some(tensors) = &mut self.tensors else { return Ok(()) };
        let capture = &self.probes.capture;
        let clock = capture.clock();
        tensors.call_sites.set_ages(&self.tensor_reader.live(capture)?, |ns| clock.since_start(ns));
        Ok(())
    }

    /// Tensors by process, call site and GPU, with stacks and ages; `None` if they are not shown. To be called after
    /// [`Observer::memory`], which reads them.
    pub(crate) fn tensors(&mut self, more_lost: &Losses) -> Result<Option<TensorReport>> {
        let (losses, now_ns) = (self.losses(more_lost)?, self.now_ns());
        Ok(self.tensors.as_mut().map(|tensors| tensors.report(&losses, now_ns)))
    }

    /// Live memory by process and call site, with stacks and ages.
    pub(crate) fn memory(&mut self, more_lost: &Losses) -> Result<MemoryReport> {
        self.sample_all()?;
        self.name_all();
        self.read_ages()?;
        let (losses, now_ns) = (self.losses(more_lost)?, self.now_ns());
        Ok(self
            .live_memory
            .as_mut()
            .map(|live_memory| live_memory.report(&losses, now_ns))
            .unwrap_or_default())
    }

    /// All losses, including those that are counted elsewhere.
    pub(crate) fn losses(&self, more: &Losses) -> Result<Losses> {
        let mut losses = self.probes.losses()?;
        more.iter().for_each(|(cause, count)| losses.add(cause, count));
        losses.add(LossCause::ForgottenEarly, self.processes.archive().forgotten_early());
        Ok(losses)
    }

    /// Reads launches only, so that the wait for CUDA kernel names is over when the next snapshot is due.
    pub(crate) fn update_launches(&mut self) -> Result<()> {
        let launches = self.probes.capture.launches()?;
        self.processes.update_launches(&launches, self.now_ns());
        Ok(())
    }

    /// A snapshot with these allocations.
    pub(crate) fn snapshot(&mut self, more_lost: &Losses, allocations: &[Allocation]) -> Result<Snapshot> {
        let (losses, now_ns) = (self.losses(more_lost)?, self.now_ns());
        let sites = self.memory_by_process(&losses, now_ns)?;
        let gpu_ops = self.probes.capture.gpu_ops()?;
        self.processes.update(&gpu_ops, now_ns);
        let capture = &self.probes.capture;
        let (mut memory, mut contexts) = capture.memory()?;
        if let Some(gpus) = &mut self.gpus {
            gpus.learn(&capture.identities()?, &contexts, &mut self.processes);
        }
        // memory may be tracked anyway, for the addresses of copies
        if self.live_memory.is_none() {
            memory.clear();
            contexts.clear();
        }
        // read before the failures, so that every counted error has its failure row
        let calls = capture.counts()?;
        let mut snapshot = Snapshot::build(&Inputs {
            calls: &calls,
            failures: &capture.failures()?,
            memory: &memory,
            contexts: &contexts,
            gpus: self.gpus.as_ref().map(GpuNumbering::host).unwrap_or_default(),
            allocations,
            call_sites: &sites,
            gpu_ops: &gpu_ops,
            processes: self.processes.infos(),
            exited: self.processes.archive(),
            losses: &losses,
            libraries: &libraries(capture),
            skipped: &self.probes.skips.counts(),
            unix_seconds: unix_seconds(),
        });
        snapshot.tensors = self.tensors_by_process(&losses, now_ns)?;
        snapshot.has_tensors = self.tensors.is_some();
        if let Some(states) = &self.states {
            states.add_to(&mut snapshot, self.live_memory.is_some());
        }
        if let Some(gpu_time) = &mut self.gpu_time {
            snapshot.gpu_kernel_time = gpu_time.report(now_ns);
            snapshot.gpu_times = gpu_time.by_process();
        }
        // after the counters, so that a call that returns meanwhile is not counted twice
        self.add_pending(&mut snapshot);
        snapshot.budget = self.probes.budget_report();
        // NVML reports errors late, and loses some in a burst
        if self.probes.capture.xid_source().is_some() {
            snapshot.gpu_states.xids = self.xids.indexed(&snapshot.gpus);
        }
        Ok(snapshot)
    }

    /// Adds the oldest pending call of each process, and the time of open calls. If they cannot be read, everything else
    /// is still shown.
    fn add_pending(&mut self, snapshot: &mut Snapshot) {
        let Some(pending) = &mut self.pending else { return };
        match pending.read(&self.probes.capture) {
            Ok(calls) => {
                // the clock is read after them, so that no call is shown as younger than it is
                let now_ns = self.probes.capture.clock().elapsed_ns();
                snapshot.set_open_times(&open_times(calls, now_ns), &mut self.call_times);
                snapshot.pending = oldest_calls(calls, self.processes.infos(), now_ns);
            }
            Err(error) => {
                note!("gpuprobe: calls that do not return are not shown: {error:#}");
                self.pending = None;
            }
        }
    }

    /// Tensors by process, call site and GPU. A call site is suspected only after the ages of its tensors were read.
    fn tensors_by_process(&mut self, losses: &Losses, now_ns: u64) -> Result<Vec<ProcessTensors>> {
        let Some(tensors) = &mut self.tensors else { return Ok(Vec::new()) };
        let call_sites = tensors.call_sites.report(losses, now_ns);
        if tensors.call_sites.wants_ages(&call_sites) {
            self.read_ages_of_tensors()?;
        }
        let report = self.tensors.as_mut().map(|tensors| tensors.report(losses, now_ns));
        Ok(report.unwrap_or_default().processes)
    }

    /// Live memory by process and call site. A call site is suspected only after the ages of its allocations were read.
    fn memory_by_process(&mut self, losses: &Losses, now_ns: u64) -> Result<Vec<ProcessCallSites>> {
        let Some(live_memory) = &mut self.live_memory else { return Ok(Vec::new()) };
        let report = live_memory.report(losses, now_ns);
        if !live_memory.wants_ages(&report) {
            return Ok(report.processes);
        }
        self.read_ages()?;
        Ok(self
            .live_memory
            .as_mut()
            .map(|live_memory| live_memory.report(losses, now_ns).processes)
            .unwrap_or_default())
    }
}

pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn libraries(capture: &Capture) -> Vec<LibraryProbes> {
    let library = |a: &gpuprobe_capture::Attached| LibraryProbes {
        path: a.path.display().to_string(),
        attached: a.functions as u64,
        skipped: a.skipped.len() as u64,
        state: "attached".to_owned(),
    };
    capture.attached().map(library).collect()
}
