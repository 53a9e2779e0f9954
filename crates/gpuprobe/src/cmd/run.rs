//! `gpuprobe run`: records a command from its first instruction to its exit.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Result, bail};
use gpuprobe_capture::CaptureConfig;
use gpuprobe_event::{LossCause, Tgid};

use crate::cli::{RecordingArgs, RunArgs, UserArgs};
use crate::session::command::supervise::{AtQuit, SupervisedCommand};
use crate::session::gpu_time::agent_file;
use crate::session::gpu_time::gpu_times::Schedule;
use crate::session::probes::probe_budget::ProbeBudget;
use crate::session::probes::probe_set::Probes;
use crate::session::probes::selection::Selection;
use crate::session::record::recording::{
    Recorded, Recording, capture_config_of_recording, collect, print_trace_path,
};
use crate::terminal::notes::note;
use crate::trace_file::output_file::Access;
use crate::trace_file::{Destination, Finished, is_stdout};

pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    let recorded = record(&args.command, &args.user, probes(&args.recording)?, &args.recording)?;
    let status = recorded.status;
    print_trace_path(&recorded.print()?);
    Ok(status)
}

/// A recording of a command that has exited.
#[derive(Debug)]
pub(crate) struct RecordedCommand {
    recorded: Recorded,
    pub(crate) status: u8,
    /// It loaded a library that was probed or skipped.
    has_libraries: bool,
    /// Processes that still run.
    running: usize,
}

impl RecordedCommand {
    /// Prints the summary and what is no longer observed, and ends the trace.
    pub(crate) fn print(self) -> Result<Finished> {
        if !self.has_libraries {
            note!(
                "warning: the command loaded no GPU library; `gpuprobe doctor` reports what can be probed here"
            );
        }
        let finished = self.recorded.print();
        if self.running > 0 {
            note!("no longer observed: {} processes that outlive the command", self.running);
        }
        finished
    }
}

/// The probes for a command.
pub(crate) fn probes(args: &RecordingArgs) -> Result<Probes> {
    let hooks = Arc::clone(&args.attach.resolved.hooks);
    let selection = Selection::from_globs(&args.events, args.layer, &hooks)?.following_gpu_ops();
    let config = CaptureConfig {
        only_targets: true,
        pause_targets: true,
        ..capture_config_of_recording(args, &selection)
    };
    let budget = args.budget.map(|share| ProbeBudget::measured(share, &config, collect(args))).transpose()?;
    let probes = Probes::new(&config, selection, collect(args), args.attach.verbose)?;
    let mut probes =
        probes.with_hooks(hooks).with_budget(budget).with_gpu_times(args.gpu_time, Schedule::Always);
    // most programs use the same dynamic loader as gpuprobe: probed now, they need not be stopped for it
    probes.attach_loader_of(Tgid(std::process::id()));
    Ok(probes)
}

/// Runs and records a command.
pub(crate) fn record(
    command: &[OsString],
    user: &UserArgs,
    mut probes: Probes,
    args: &RecordingArgs,
) -> Result<RecordedCommand> {
    if args.output.as_deref().is_some_and(is_stdout) {
        bail!(
            "on stdout the trace would be mixed with the output of the command: give a file or a FIFO with -o"
        );
    }
    let output = Destination::find(args.output.as_deref(), Access::requested(args.mode))?;
    let variables = args.gpu_time.map(|_| agent_file::environment()).transpose()?.unwrap_or_default();
    let mut supervised = SupervisedCommand::start_paused(command, user, AtQuit::ShowStacks, &variables)?;
    let mut recording = Recording::start(&mut probes, command, args, output)?;
    supervised.resume(&probes)?;
    let status = loop {
        let (batch, exit_status) = supervised.poll(&mut probes)?;
        probes.enforce_budget_by_events(&batch)?;
        recording.take(batch, &probes)?;
        if supervised.take_stacks_request() {
            let processes = probes.capture.targets()?;
            recording.show_stacks(&mut probes.capture, processes);
        }
        if let Some(status) = exit_status {
            break status;
        }
    };
    let has_libraries = probes.capture.attached().next().is_some() || probes.skips.lines().next().is_some();
    supervised.take_spooled(&mut probes, &mut recording)?;
    let end = supervised.finish(&mut probes)?;
    let at_ns = end.ending.at_ns;
    recording.take(end.ending.into_batch(), &probes)?;
    let mut losses = probes.losses()?;
    losses.add(LossCause::LateAttach, end.late);
    let mut recorded = recording.finish(&mut probes, losses, at_ns)?;
    recorded.end.exit_status = Some(status.into());
    Ok(RecordedCommand { recorded, status, has_libraries, running: end.running })
}
