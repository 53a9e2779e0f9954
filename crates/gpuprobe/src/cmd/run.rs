//! `gpuprobe run`: a command from its first instruction to its end.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use gpuprobe_analysis::{Holdings, Rules, Summary};
use gpuprobe_capture::{Batch, CaptureConfig, Collect};
use gpuprobe_event::trace::{End, FORMAT, Meta};
use gpuprobe_event::{Class, Event, LossCause, LossEvent, Tgid};

use crate::cli::{AttachArgs, RunArgs};
use crate::notes::{note, tell};
use crate::probes::{Probes, config};
use crate::processes::Processes;
use crate::select::Selection;
use crate::supervise::Supervised;
use crate::trace_file::TraceFile;

/// Sites that get their names for the summary.
const MOST_NAMED: usize = 256;

pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    let selection = Selection::from_globs(&args.events)?;
    let recorded = record(&args.command, probes(selection, &args.attach)?, args.output.as_deref())?;
    let text = gpuprobe_output::summary(&recorded.summary.report());
    tell(format_args!("{text}"));
    recorded.tell_what_is_missing();
    let path = recorded.trace.finish(&recorded.end)?;
    note!("trace: {}", path.display());
    Ok(recorded.status)
}

/// A command that was recorded to its end.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) summary: Summary,
    pub(crate) trace: TraceFile,
    pub(crate) end: End,
    pub(crate) status: u8,
    /// Processes that run on.
    left: usize,
}

impl Recorded {
    /// What could not be watched, beside what was lost.
    pub(crate) fn tell_what_is_missing(&self) {
        for skipped in &self.end.skipped {
            note!("not watched: {skipped}");
        }
        if self.left > 0 {
            note!("not watched any more: {} processes that outlive the command", self.left);
        }
    }
}

/// The probes for a command that will be run.
pub(crate) fn probes(selection: Selection, attach: &AttachArgs) -> Result<Probes> {
    let selection = selection.telling_work();
    let config = CaptureConfig {
        only_targets: true,
        hold: true,
        names: true,
        // what is allocated by calls that nobody asked for is no place to show
        sites: selection.has(Class::Alloc),
        launches: selection.has(Class::Launch) || selection.has(Class::GraphLaunch),
        copies: selection.has_copies(),
        told: true,
        ..config(attach)
    };
    let mut probes = Probes::new(&config, selection, Collect::Stream, attach.verbose)?;
    // most programs have the loader that we have, so that none of them has to stop for it
    probes.attach_loader_of(Tgid(std::process::id()));
    Ok(probes)
}

/// Runs a command under the probes.
pub(crate) fn record(command: &[OsString], probes: Probes, output: Option<&Path>) -> Result<Recorded> {
    let mut supervised = Supervised::waiting(command)?;
    let trace = TraceFile::create(output, &meta(&probes, command))?;
    supervised.go(&probes)?;
    let mut recording =
        Recording { probes, trace, summary: Summary::default(), processes: Processes::new(0) };
    let status = loop {
        let (batch, ended) = supervised.look(&mut recording.probes)?;
        recording.take(batch);
        if let Some(status) = ended {
            break status;
        }
    };
    recording.finish(&mut supervised, status)
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
        command: command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
    }
}

struct Recording {
    probes: Probes,
    trace: TraceFile,
    summary: Summary,
    processes: Processes,
}

impl Recording {
    fn take(&mut self, batch: Batch) {
        self.processes.take(&batch, self.probes.capture.clock().elapsed_ns());
        for event in batch.into_events() {
            self.summary.feed(&event);
            self.trace.event(&event);
        }
    }

    /// What processes held at their end, by place. Only the kernel's rows tell that of memory that ended with its context.
    fn held(&mut self) -> Result<()> {
        let mut holdings = Holdings::new(Rules { warm_up_ns: 0 }, true);
        let capture = &mut self.probes.capture;
        let now_ns = capture.clock().elapsed_ns();
        holdings.feed(&capture.sites()?, self.processes.infos(), now_ns);
        for site in holdings.unnamed().into_iter().take(MOST_NAMED) {
            holdings.name(site, capture.frames_of(site).to_vec());
        }
        self.summary.held(holdings.report(&capture.losses()?, now_ns).processes);
        Ok(())
    }

    fn finish(mut self, supervised: &mut Supervised, status: u8) -> Result<Recorded> {
        let at_ns = self.probes.capture.clock().elapsed_ns();
        let left = supervised.finish(&mut self.probes)?;
        self.take(left.batch);
        self.held()?;
        let mut losses = self.probes.capture.losses()?;
        losses.add(LossCause::LateAttach, left.late);
        for (cause, count) in losses.iter() {
            let event = Event::Loss(LossEvent { at_ns, cause, count });
            self.summary.feed(&event);
            self.trace.event(&event);
        }
        let end = End {
            seconds: at_ns as f64 / 1e9,
            lost: losses.iter().map(|(cause, count)| (cause.as_str().to_owned(), count)).collect(),
            skipped: self.probes.skips.lines().collect(),
            exit_status: Some(status.into()),
            ..End::default()
        };
        Ok(Recorded { summary: self.summary, trace: self.trace, end, status, left: left.running })
    }
}
