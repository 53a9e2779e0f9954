//! `gpuprobe run`: a command from its first instruction to its end.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Result, bail};
use gpuprobe_capture::CaptureConfig;
use gpuprobe_event::{LossCause, Tgid};

use crate::budget::KeptBudget;
use crate::cli::{RecordingArgs, RunArgs};
use crate::notes::note;
use crate::output_file::Access;
use crate::probes::Probes;
use crate::recording::{Recorded, Recording, collect, recording_config, tell_place};
use crate::select::Selection;
use crate::supervise::Supervised;
use crate::trace_file::{Finished, Output, is_stdout};

pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    let recorded = record(&args.command, probes(&args.recording)?, &args.recording)?;
    let status = recorded.status;
    tell_place(&recorded.tell()?);
    Ok(status)
}

/// A command that was recorded to its end.
#[derive(Debug)]
pub(crate) struct RecordedCommand {
    recorded: Recorded,
    pub(crate) status: u8,
    /// It loaded a library that is probed, or would be if that were possible.
    has_libraries: bool,
    /// Processes that run on.
    left: usize,
}

impl RecordedCommand {
    /// Prints the summary and what could not be watched, and ends the trace.
    pub(crate) fn tell(self) -> Result<Finished> {
        if !self.has_libraries {
            note!(
                "warning: the command loaded no CUDA library; `gpuprobe doctor` says what can be probed here"
            );
        }
        let finished = self.recorded.tell();
        if self.left > 0 {
            note!("not watched any more: {} processes that outlive the command", self.left);
        }
        finished
    }
}

/// The probes for a command that will be run.
pub(crate) fn probes(args: &RecordingArgs) -> Result<Probes> {
    let hooks = Arc::clone(&args.attach.chosen.hooks);
    let selection = Selection::from_globs(&args.events, &hooks)?.telling_work();
    let config = CaptureConfig { only_targets: true, hold: true, ..recording_config(args, &selection) };
    let budget = args.budget.map(|share| KeptBudget::measured(share, &config, collect(args))).transpose()?;
    let probes = Probes::new(&config, selection, collect(args), args.attach.verbose)?;
    let mut probes = probes.with_hooks(hooks).with_budget(budget);
    // most programs have the loader that we have, so that none of them has to stop for it
    probes.attach_loader_of(Tgid(std::process::id()));
    Ok(probes)
}

/// Runs a command under the probes.
pub(crate) fn record(
    command: &[OsString],
    mut probes: Probes,
    args: &RecordingArgs,
) -> Result<RecordedCommand> {
    if args.output.as_deref().is_some_and(is_stdout) {
        bail!(
            "on stdout the trace would be mixed with what the command prints: give a file or a FIFO with -o"
        );
    }
    let output = Output::find(args.output.as_deref(), Access::asked(args.mode))?;
    let mut supervised = Supervised::waiting(command)?;
    let mut recording = Recording::start(&probes, command, args, output)?;
    supervised.go(&probes)?;
    let status = loop {
        let (batch, ended) = supervised.look(&mut probes)?;
        probes.keep_told(&batch)?;
        recording.take(batch, &probes)?;
        if let Some(status) = ended {
            break status;
        }
    };
    let has_libraries = probes.capture.attached().next().is_some() || probes.skips.lines().next().is_some();
    let left = supervised.finish(&mut probes)?;
    let at_ns = left.ending.at_ns;
    recording.take(left.ending.into_batch(), &probes)?;
    let mut losses = probes.capture.losses()?;
    losses.add(LossCause::LateAttach, left.late);
    let mut recorded = recording.finish(&mut probes, losses, at_ns)?;
    recorded.end.exit_status = Some(status.into());
    Ok(RecordedCommand { recorded, status, has_libraries, left: left.running })
}
