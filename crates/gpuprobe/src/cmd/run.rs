//! `gpuprobe run`: a command from its first instruction to its end.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_analysis::Summary;
use gpuprobe_capture::{Answer, Batch, CaptureConfig, Collect, Hold, Urgent};
use gpuprobe_discover::DiscoverError;
use gpuprobe_event::trace::{End, FORMAT, Meta};
use gpuprobe_event::{Event, LossCause, LossEvent, Tgid};

use crate::cli::{AttachArgs, RunArgs};
use crate::launch::{self, Launched};
use crate::notes::{note, tell};
use crate::probes::{Probes, config};
use crate::select::Selection;
use crate::signals::Signals;
use crate::stops::Stops;
use crate::trace_file::TraceFile;

/// How long records may wait in the ring before they are looked at without being called.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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
    let config = CaptureConfig { only_targets: true, hold: true, names: true, sites: true, ..config(attach) };
    let mut probes = Probes::new(&config, selection, Collect::Stream, attach.verbose)?;
    // most programs have the loader that we have, so that none of them has to stop for it
    probes.attach_loader_of(Tgid(std::process::id()));
    Ok(probes)
}

/// Runs a command under the probes.
pub(crate) fn record(command: &[OsString], probes: Probes, output: Option<&Path>) -> Result<Recorded> {
    // before any thread is made, and before the command, so that none of them is hit by a signal meant for us
    let signals = Signals::hold_back()?;
    let mut launched = Launched::waiting(command)?;
    let trace = TraceFile::create(output, &meta(&probes, command))?;
    probes.capture.add_target(launched.tgid())?;
    launched.go()?;
    let mut recording =
        Recording { probes, trace, summary: Summary::default(), signals, launched, stops: Stops::default() };
    let status = recording.until_the_end()?;
    recording.finish(status)
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
    signals: Signals,
    launched: Launched,
    stops: Stops,
}

impl Recording {
    fn until_the_end(&mut self) -> Result<u8> {
        loop {
            // from here until those who wait have been answered
            let urgent = Urgent::begin();
            self.probes.capture.wait(&[self.signals.fd()], LOOK_EVERY);
            for arrived in self.signals.take() {
                if arrived.from_process {
                    self.launched.signal(arrived.signal);
                }
            }
            // asked before the rings are read: what the command did up to its end is then in them
            let ended = self.launched.ended()?;
            let batch = self.probes.take()?;
            self.serve_all(&batch.holds)?;
            self.attach_late();
            drop(urgent);
            self.take(batch);
            if let Some(status) = ended {
                return Ok(status);
            }
        }
    }

    fn take(&mut self, batch: Batch) {
        for event in batch.into_events() {
            self.summary.feed(&event);
            self.trace.event(&event);
        }
    }

    fn serve_all(&mut self, holds: &[Hold]) -> Result<()> {
        for hold in holds {
            self.probes.capture.answer(*hold, Answer::Seen)?;
        }
        holds.iter().try_for_each(|hold| self.serve(*hold))
    }

    /// Probes what a process has mapped, and lets it go on.
    fn serve(&mut self, hold: Hold) -> Result<()> {
        let tgid = hold.tgid;
        if !hold.may_attach && self.probes.has_new(tgid, hold.at_exec) {
            self.stops.tell(hold, Instant::now());
            return Ok(self.probes.capture.answer(hold, Answer::Stop)?);
        }
        if hold.may_attach {
            self.stops.waits(hold);
            self.attach(tgid, hold.at_exec);
        }
        self.let_go(hold)
    }

    /// Probes what a process has mapped. Its loader is looked at when it begins; later it is the loader that asks.
    fn attach(&mut self, tgid: Tgid, with_loader: bool) {
        if with_loader {
            self.probes.attach_loader_of(tgid);
        }
        match self.probes.attach_process(tgid) {
            // it was killed while it waited, so there is nothing to watch
            Ok(_) | Err(DiscoverError::NoSuchProcess { .. }) => {}
            Err(error) => note!("gpuprobe: process {tgid} is not fully watched: {error:#}"),
        }
    }

    /// Processes that were told to stop when they had already gone on: on a very busy machine nobody looks in time.
    fn attach_late(&mut self) {
        for tgid in self.stops.overdue(Instant::now()) {
            self.attach(tgid, true);
        }
    }

    /// Lets a process go on. It may have been killed meanwhile, which is no concern of ours.
    fn let_go(&self, hold: Hold) -> Result<()> {
        self.probes.capture.answer(hold, Answer::GoOn)?;
        if hold.stopped {
            launch::continue_stopped(hold.tgid);
        }
        Ok(())
    }

    fn finish(mut self, status: u8) -> Result<Recorded> {
        let at_ns = self.probes.capture.clock().elapsed_ns();
        // children that outlive the command run on, unwatched; none may be left waiting for us
        let left = self.probes.capture.target_count()?;
        let last = self.probes.capture.detach()?;
        for hold in &last.holds {
            self.stops.waits(*hold);
            self.let_go(*hold)?;
        }
        self.probes.capture.dismiss();
        self.take(last);
        let mut losses = self.probes.capture.losses()?;
        losses.add(LossCause::LateAttach, self.stops.late());
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
        Ok(Recorded { summary: self.summary, trace: self.trace, end, status, left })
    }
}
