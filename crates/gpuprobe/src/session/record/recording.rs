//! A recording: writes events to a trace file and feeds the summary that is printed at the end.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_analysis::{GpuTensors, LiveMemory, LiveTensors, Rules, Summary};
use gpuprobe_capture::{Batch, Capture, CaptureConfig, Collect, keep_memory};
use gpuprobe_event::counters::TensorMemory;
use gpuprobe_event::trace::{End, FORMAT, Lines, Meta, Phases, end_line};
use gpuprobe_event::{
    Class, Event, LossCause, LossEvent, Losses, MemoryBySite, MemorySummary, Outcome, ProcessChange,
    TensorSummary, TensorUse, Tgid,
};
use gpuprobe_output::units::{bytes, count};
use gpuprobe_output::{SummaryOptions, collective_sentences, summary};

use super::verification::Verification;
use crate::cli::{MaxSize, RecordingArgs};
use crate::session::host::error_gpus::ErrorGpus;
use crate::session::host::processes::Processes;
use crate::session::host::rank::rank;
use crate::session::host::tensor_reader::TensorReader;
use crate::session::probes::probe_set::{Probes, config};
use crate::session::probes::selection::Selection;
use crate::session::threads::stacks_on_demand::{KnownByProbes, StacksOnDemand};
use crate::session::threads::thread_samples::OpenCalls;
use crate::terminal::notes::{note, print_stderr};
use crate::terminal::progress::Progress;
use crate::trace_file::{Destination, Finished, Limits, TraceFile, is_stdout};

/// Most call sites that are symbolized for the summary.
const MOST_NAMED: usize = 256;
/// The size limit of a trace without --max-size.
const MOST_BYTES: u64 = 4 << 30;
const EXAMINE_EVERY: Duration = Duration::from_millis(100);
/// It takes a moment to decode this many calls.
const MANY_SPOOLED: u64 = 500_000;
/// An uncompressed trace of this size is large.
const LARGE: u64 = 256 << 20;

/// The capture configuration of a recording.
pub(crate) fn capture_config_of_recording(args: &RecordingArgs, selection: &Selection) -> CaptureConfig {
    CaptureConfig {
        names: true,
        // call sites of allocations are only shown if allocations are selected
        sites: selection.has(Class::Alloc) || selection.has(Class::Vmm) || args.tensors,
        call_sites: args.stack,
        tensors: args.tensors,
        gpu_time: args.gpu_time.is_some(),
        launches: selection.has(Class::Launch) || selection.has(Class::GraphLaunch),
        copies: selection.has_copies(),
        rows: args.verify,
        annotate_records: true,
        phases: args.phases,
        detachable: args.budget.is_some(),
        lossless: args.lossless,
        ..config(&args.attach)
    }
}

/// What the probes of a recording collect.
pub(crate) fn collect(args: &RecordingArgs) -> Collect {
    if args.verify { Collect::CountAndStream } else { Collect::Stream }
}

fn limits(args: &RecordingArgs) -> Limits {
    let total = match args.max_size {
        None => Some(MOST_BYTES),
        Some(MaxSize(limit)) => limit,
    };
    Limits {
        total,
        segment: args.segment_size,
        is_default: args.max_size.is_none(),
        in_one_file: args.in_one_file,
    }
}

#[derive(Debug)]
pub(crate) struct Recording {
    trace: TraceFile,
    summary: Summary,
    options: SummaryOptions,
    verification: Option<Verification>,
    processes: Processes,
    tensor_reader: TensorReader,
    stacks: StacksOnDemand,
    /// When the tensors were read last; `None` if they are not followed.
    examined: Option<Instant>,
    /// For out-of-memory errors, which come with tensors.
    error_gpus: Option<ErrorGpus>,
    progress: Progress,
    /// Compression is suggested once, when the trace becomes large.
    suggests_compression: bool,
    calls: u64,
    /// Calls that came when the trace had reached its limit.
    unwritten_calls: u64,
}

impl Recording {
    /// Creates the trace. Calls that come faster than they can be recorded are spooled from now on.
    pub(crate) fn start(
        probes: &mut Probes,
        command: &[OsString],
        args: &RecordingArgs,
        output: Destination,
    ) -> Result<Self> {
        keep_memory();
        let phases = if args.phases { Phases::Separate } else { Phases::Together };
        let trace = TraceFile::create(output, phases, meta(probes, command), limits(args))?;
        // executions must come after the calls that submitted them, and a budget is kept by the calls of each second
        if args.gpu_time.is_none() && args.budget.is_none() {
            probes.capture.spool_to(trace.spool_file());
        }
        Ok(Self {
            trace,
            summary: Summary::default(),
            options: args.summary.options(std::io::stderr()),
            verification: args.verify.then(|| Verification::new(&args.events)),
            processes: Processes::new(0),
            tensor_reader: TensorReader::default(),
            stacks: StacksOnDemand::new(&args.nvml),
            examined: args.tensors.then(Instant::now),
            error_gpus: args
                .tensors
                .then(|| ErrorGpus::start(&args.nvml, args.attach.verbose))
                .transpose()?
                .flatten(),
            progress: Progress::new(args.quiet),
            suggests_compression: !args.quiet,
            calls: 0,
            unwritten_calls: 0,
        })
    }

    pub(crate) fn take(&mut self, mut batch: Batch, probes: &Probes) -> Result<()> {
        match &mut self.error_gpus {
            Some(gpus) => gpus.take(&mut batch, &mut self.processes, &probes.capture)?,
            None => self.processes.take(&batch, probes.capture.clock().elapsed_ns()),
        }
        self.examine_processes(probes)?;
        fill_ranks(&mut batch);
        for event in batch.into_events() {
            // with `--phases`, a call is its second event
            let calls = u64::from(matches!(&event, Event::Call(call) if call.outcome != Outcome::Begun));
            // what is left in the ring may be more than what was written
            if self.is_full() && matches!(event, Event::Call(_)) {
                self.unwritten_calls += calls;
                continue;
            }
            self.calls += calls;
            self.trace.event(&event, || self.summary.live_memory_events());
            if let Some(verification) = &mut self.verification {
                verification.feed(&event);
            }
            self.summary.feed(&event);
        }
        self.trace.keep_fresh();
        self.suggest_compression();
        if self.progress.is_due() {
            let mut losses = probes.losses()?;
            self.add_missing(&mut losses);
            self.progress.show(
                self.calls,
                &self.trace.room().in_progress(self.trace.written()),
                losses.total(),
            );
        }
        Ok(())
    }

    /// Takes in what is spooled, after the probes were detached. If `is_cancelled` says so, or the trace is full, the rest
    /// is discarded.
    pub(crate) fn take_spooled(
        &mut self,
        probes: &mut Probes,
        mut next: impl FnMut(&mut Probes) -> Result<Batch>,
        mut is_cancelled: impl FnMut() -> bool,
    ) -> Result<()> {
        if let Some(calls @ MANY_SPOOLED..) = probes.capture.spooled_calls() {
            let calls = count(calls, "call", "calls");
            note!("gpuprobe: {calls} are recorded and not decoded yet; Ctrl-C discards them");
        }
        while probes.capture.spooled_calls().is_some() {
            if is_cancelled() || self.is_full() {
                probes.capture.discard_spooled();
            }
            let batch = next(probes)?;
            self.take(batch, probes)?;
        }
        Ok(())
    }

    /// Finds out while processes run whether their allocations from pools are tensors, and which GPUs they use.
    fn examine_processes(&mut self, probes: &Probes) -> Result<()> {
        if self.examined.is_some_and(|read| read.elapsed() >= EXAMINE_EVERY) {
            self.tensor_reader.rows(&probes.capture)?;
            if let Some(gpus) = &mut self.error_gpus {
                gpus.learn(&mut self.processes, &probes.capture)?;
            }
            self.examined = Some(Instant::now());
        }
        Ok(())
    }

    /// Shows which ranks of communicators differ now, and the stacks of these processes, while the recording goes on.
    pub(crate) fn show_stacks(&mut self, capture: &mut Capture, processes: Vec<Tgid>) {
        let mut calls = capture.open_calls().unwrap_or_default();
        let deferred: Vec<_> = calls.extract_if(.., |call| call.outcome != Outcome::Unfinished).collect();
        let now_ns = capture.clock().elapsed_ns();
        let collectives = self.summary.collectives_with(&calls);
        for sentence in collectives.communicators.iter().flat_map(collective_sentences) {
            note!("{sentence}");
        }
        let streams = self.summary.last_operations(&deferred, now_ns);
        self.stacks.request(processes, KnownByProbes { open: OpenCalls { calls, now_ns }, streams });
    }

    /// Adds the events that are not in the trace.
    fn add_missing(&self, losses: &mut Losses) {
        losses.add(LossCause::SegmentRemoved, self.trace.removed());
        losses.add(LossCause::DiskFull, self.trace.unwritten());
        losses.add(LossCause::Discarded, self.unwritten_calls);
    }

    fn suggest_compression(&mut self) {
        if self.suggests_compression && self.trace.is_plain_file() && self.trace.written() >= LARGE {
            self.suggests_compression = false;
            note!(
                "gpuprobe: the trace has {} already: -o FILE.jsonl.zst is about twenty times smaller",
                bytes(self.trace.written())
            );
        }
    }

    /// Whether the reader of the trace has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.trace.is_closed()
    }

    /// Whether the trace has reached its limit and does not continue in another segment.
    pub(crate) fn is_full(&self) -> bool {
        self.trace.is_full()
    }

    /// What was live when processes exited, or is live now, by call site. It comes from the BPF rows, because events
    /// do not show the memory that ended with its context.
    fn memory_by_site(&self, probes: &mut Probes) -> Result<MemoryBySite> {
        let mut live_memory = LiveMemory::new(Rules { warm_up_ns: 0 }, true);
        let capture = &mut probes.capture;
        let now_ns = capture.clock().elapsed_ns();
        live_memory.feed(&capture.sites()?, self.processes.infos(), now_ns);
        name_sites(&mut live_memory, capture);
        Ok(live_memory.report(&capture.losses()?, now_ns).by_site())
    }

    /// Tensors when processes exited, or now.
    fn tensors(&mut self, probes: &mut Probes) -> Result<TensorSummary> {
        let mut tensors = LiveTensors::new(LiveMemory::new(Rules { warm_up_ns: 0 }, true));
        let capture = &mut probes.capture;
        let (now_ns, infos) = (capture.clock().elapsed_ns(), self.processes.infos());
        let fragmentation = self.tensor_reader.fragmentation(capture, true)?.unwrap_or_default();
        let (sites, rows) = self.tensor_reader.rows(capture)?;
        tensors.feed(&sites, &rows, infos, now_ns);
        name_sites(&mut tensors.call_sites, capture);
        let used = |row: &TensorMemory| {
            let info = infos.get(&row.process).cloned().unwrap_or_default();
            let found = fragmentation.get(&(row.process, row.gpu)).copied().unwrap_or_default();
            TensorUse {
                pid: row.process.tgid,
                gpu: row.gpu,
                tensors: row.live.live_allocations,
                bytes: row.live.live_bytes,
                in_use_bytes: row.in_use_bytes,
                reserved_bytes: row.reserved_bytes,
                fragmented_bytes: GpuTensors::of(row, &info, Some(found)).fragmented_bytes(),
                source: row.source,
                process: info.name,
            }
        };
        let by_site = tensors.report(&capture.losses()?, now_ns).by_site();
        Ok(TensorSummary::new(rows.iter().map(used).collect(), by_site))
    }

    /// The memory totals, from the BPF rows.
    fn memory(&self, probes: &Probes) -> Result<MemorySummary> {
        let mut memory = MemorySummary::default();
        let infos = self.processes.infos();
        for row in probes.capture.memory()?.0 {
            let has_exited = infos.get(&row.process).is_some_and(|info| info.exited_at_ns.is_some());
            memory.add_process(&row, has_exited);
        }
        Ok(memory)
    }

    /// Ends the recording, after the probes were detached and all records were taken in. `at_ns` is when the detach
    /// started.
    pub(crate) fn finish(mut self, probes: &mut Probes, mut losses: Losses, at_ns: u64) -> Result<Recorded> {
        let memory_by_site = self.memory_by_site(probes)?;
        let memory = self.memory(probes)?;
        let tensors = self.tensors(probes)?;
        if let Some(verification) = &mut self.verification {
            verification.compare(&mut probes.capture, &self.summary.report())?;
        }
        probes.skip_unused_hooks();
        let sampled = probes.sampled_calls();
        let unified = probes.capture.unified()?;
        let last = |losses: &Losses| {
            let mut last = Last::of(losses, at_ns, probes.skips.lines().collect());
            last.end.unified.clone_from(&unified);
            last.end.sampled.clone_from(&sampled);
            last.end.memory_by_site.clone_from(&memory_by_site);
            last.end.tensors.clone_from(&tensors);
            last.end.memory = (memory != MemorySummary::default()).then(|| Box::new(memory.clone()));
            last
        };
        // make room for the last lines first: that may remove segments, which the losses must include
        let mut most = losses.clone();
        most.add(LossCause::SegmentRemoved, u64::MAX);
        most.add(LossCause::DiskFull, u64::MAX);
        self.trace.prepare_end(last(&most).bytes());
        self.add_missing(&mut losses);
        let Last { events, end } = last(&losses);
        for event in events {
            self.trace.event(&event, Vec::new);
            self.summary.feed(&event);
        }
        self.summary.end(&end);
        Ok(Recorded {
            summary: self.summary,
            options: self.options,
            verification: self.verification,
            trace: self.trace,
            end,
        })
    }
}

/// Symbolizes the most important call sites.
fn name_sites(live_memory: &mut LiveMemory, capture: &mut Capture) {
    for site in live_memory.unnamed().into_iter().take(MOST_NAMED) {
        live_memory.name(site, capture.frames_of(site).to_vec());
    }
}

/// The last lines of a trace.
struct Last {
    /// One for each loss.
    events: Vec<Event>,
    end: End,
}

impl Last {
    fn of(losses: &Losses, at_ns: u64, skipped: Vec<String>) -> Self {
        let event = |(cause, count)| Event::Loss(LossEvent { at_ns, cause, count });
        let end = End {
            seconds: at_ns as f64 / 1e9,
            lost: losses.iter().map(|(cause, count)| (cause.as_str().to_owned(), count)).collect(),
            skipped,
            ..End::default()
        };
        Self { events: losses.iter().map(event).collect(), end }
    }

    /// An upper bound of their size in a file.
    fn bytes(&self) -> u64 {
        // counts and the exit status of the command are filled in later
        const FILLED_IN: usize = 128;
        let mut lines = Vec::new();
        let mut format = Lines::default();
        self.events.iter().for_each(|event| format.event(event, &mut lines));
        end_line(&self.end, &mut lines);
        (lines.len() + FILLED_IN) as u64
    }
}

/// Traces have the number of each process in its job.
fn fill_ranks(batch: &mut Batch) {
    for (_, process) in &mut batch.processes {
        if process.change != ProcessChange::Exit {
            process.rank = rank(process.tgid);
        }
    }
}

/// The first line of a trace.
pub(crate) fn meta(probes: &Probes, command: &[OsString]) -> Meta {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let driver = read("/sys/module/nvidia/version");
    Meta {
        format: FORMAT,
        gpuprobe: env!("CARGO_PKG_VERSION").to_owned(),
        host: read("/proc/sys/kernel/hostname"),
        kernel: read("/proc/sys/kernel/osrelease"),
        driver: (!driver.is_empty()).then_some(driver),
        clock: "monotonic".to_owned(),
        start_unix: probes.capture.clock().start_unix(),
        start_monotonic_ns: Some(probes.capture.clock().epoch_ns()),
        boot: Some(read("/proc/sys/kernel/random/boot_id")).filter(|boot| !boot.is_empty()),
        command: command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
        ..Meta::default()
    }
}

/// A recording that has ended.
#[derive(Debug)]
pub(crate) struct Recorded {
    summary: Summary,
    options: SummaryOptions,
    verification: Option<Verification>,
    trace: TraceFile,
    pub(crate) end: End,
}

impl Recorded {
    /// Ends the trace without a summary.
    pub(crate) fn end_trace(self) -> Result<Finished> {
        self.trace.finish(&self.end)
    }

    /// Prints the summary, and ends the trace.
    pub(crate) fn print(self) -> Result<Finished> {
        let report = self.summary.report();
        print_stderr(format_args!("{}", summary(&report, &self.options)));
        let finished = self.trace.finish(&self.end)?;
        if let Some(verification) = self.verification {
            verification.print()?;
        }
        Ok(finished)
    }
}

/// Prints the path of a trace, its size and its limits.
pub(crate) fn print_trace_path(trace: &Finished) {
    let Finished { path, segments, bytes: size, room } = trace;
    let shown = path.display();
    let size = room.map(|room| room.at_end(*size));
    match (segments, size) {
        // the reader of stdout knows
        _ if is_stdout(path) => {}
        (0 | 1, None) => note!("trace: {shown}"),
        (0 | 1, Some(size)) => note!("trace: {shown} ({size})"),
        (n, size) => {
            note!("trace: {shown} and {} more segments ({})", n - 1, size.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_a_limit_unless_it_is_lifted() {
        let of = |max_size| limits(&RecordingArgs { max_size, ..RecordingArgs::default() });
        assert!(matches!(of(None), Limits { total: Some(MOST_BYTES), is_default: true, .. }));
        assert!(matches!(of(Some(MaxSize(None))), Limits { total: None, is_default: false, .. }));
        assert!(matches!(of(Some(MaxSize(Some(7)))), Limits { total: Some(7), is_default: false, .. }));
    }
}
