//! `gpuprobe record`: records running processes for a while.

use std::time::Instant;

use anyhow::Result;
use gpuprobe_capture::CaptureConfig;

use crate::cli::RecordArgs;
use crate::session::follow::following::{FollowTargets, Following};
use crate::session::probes::probe_budget::ProbeBudget;
use crate::session::probes::selection::Selection;
use crate::session::record::recording::{
    Recorded, Recording, capture_config_of_recording, collect, print_trace_path,
};
use crate::terminal::notes::note;
use crate::trace_file::Destination;
use crate::trace_file::output_file::Access;

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// The requested time is over.
    Time,
    /// The processes have exited.
    Exit,
    /// The trace has reached its limit.
    Size,
    /// A signal, or the reader of the trace has closed it.
    Request,
}

pub(crate) fn run(args: &RecordArgs) -> Result<u8> {
    let begun = || {
        if args.duration.is_none() {
            note!(
                "gpuprobe: recording: Ctrl-C ends it and keeps the trace, Ctrl-\\ shows the stacks of all threads"
            );
        }
    };
    let (recorded, _) = record(args, begun)?;
    print_trace_path(&recorded.print()?);
    Ok(0)
}

/// Whether most launches have no return probe. Their records have no stack, no entry of their own, and nothing that
/// happens inside them except for the launch of the CUDA driver.
fn samples_launch_returns(args: &RecordArgs) -> bool {
    let recording = &args.recording;
    let resolved = &recording.attach.resolved;
    let needs_returns = recording.stack
        || recording.phases
        || recording.verify
        || recording.gpu_time.is_some()
        || !recording.attach.driver.is_empty()
        || !resolved.functions.is_empty()
        || !resolved.tracepoints.is_empty()
        || !recording.attach.hooks.is_empty();
    !args.all_launch_returns && !needs_returns
}

/// Records until the time is over, the processes have exited, the trace is full or a signal comes. Calls `begun` when
/// calls are recorded from then on.
pub(crate) fn record(args: &RecordArgs, begun: impl FnOnce()) -> Result<(Recorded, EndedBy)> {
    let hooks = &args.recording.attach.resolved.hooks;
    let selection =
        Selection::from_globs(&args.recording.events, args.recording.layer, hooks)?.following_gpu_ops();
    let config = CaptureConfig {
        only_targets: !args.all,
        follow_forks: args.children,
        sample_launch_returns: samples_launch_returns(args),
        ..capture_config_of_recording(&args.recording, &selection)
    };
    let wanted = FollowTargets { pids: &args.pids, paths: &[], hooks };
    let output = Destination::find(args.recording.output.as_deref(), Access::requested(args.recording.mode))?;
    let budget = args.recording.budget;
    let budget =
        budget.map(|share| ProbeBudget::measured(share, &config, collect(&args.recording))).transpose()?;
    let (collect, verbose) = (collect(&args.recording), args.recording.attach.verbose);
    let gpu_time = args.recording.gpu_time;
    let mut following = Following::start(&config, selection, wanted, collect, verbose, gpu_time)?;
    following.probes.budget = budget;
    following.show_stacks_at_quit();
    let mut recording = Recording::start(&mut following.probes, &[], &args.recording, output)?;
    begun();
    let start = Instant::now();
    let is_time_over = || args.duration.is_some_and(|duration| start.elapsed() >= duration);
    let ended_by = loop {
        if !following.wait_for_events() || recording.is_closed() {
            break EndedBy::Request;
        }
        if following.all_exited() {
            break EndedBy::Exit;
        }
        if is_time_over() {
            break EndedBy::Time;
        }
        if recording.is_full() {
            break EndedBy::Size;
        }
        let batch = following.take()?;
        following.probes.enforce_budget_by_events(&batch)?;
        recording.take(batch, &following.probes)?;
        if following.take_stacks_request() {
            let processes = following.processes();
            recording.show_stacks(&mut following.probes.capture, processes);
        }
    };
    following.take_spooled(&mut recording)?;
    let ending = following.probes.end_observation()?;
    let at_ns = ending.at_ns;
    recording.take(ending.into_batch(), &following.probes)?;
    let losses = following.losses()?;
    Ok((recording.finish(&mut following.probes, losses, at_ns)?, ended_by))
}
