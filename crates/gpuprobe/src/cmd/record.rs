//! `gpuprobe record`: what already runs, for a while.

use std::time::Instant;

use anyhow::Result;
use gpuprobe_capture::CaptureConfig;

use crate::budget::KeptBudget;
use crate::cli::RecordArgs;
use crate::following::{Following, Wanted};
use crate::notes::note;
use crate::output_file::Access;
use crate::recording::{Recording, collect, recording_config, tell_place};
use crate::select::Selection;
use crate::trace_file::Output;

pub(crate) fn run(args: &RecordArgs) -> Result<u8> {
    let hooks = &args.recording.attach.chosen.hooks;
    let selection = Selection::from_globs(&args.recording.events, hooks)?.telling_work();
    let config = CaptureConfig {
        only_targets: !args.all,
        follow_forks: args.children,
        ..recording_config(&args.recording, &selection)
    };
    let wanted = Wanted { pids: &args.pids, paths: &[], hooks };
    let output = Output::find(args.recording.output.as_deref(), Access::asked(args.recording.mode))?;
    let budget = args.recording.budget;
    let budget =
        budget.map(|share| KeptBudget::measured(share, &config, collect(&args.recording))).transpose()?;
    let (collect, verbose) = (collect(&args.recording), args.recording.attach.verbose);
    let mut following = Following::start(&config, selection, wanted, collect, verbose)?;
    following.probes.budget = budget;
    let mut recording = Recording::start(&following.probes, &[], &args.recording, output)?;
    if args.duration.is_none() {
        note!("gpuprobe: recording: Ctrl-C ends it and keeps the trace");
    }
    let start = Instant::now();
    let is_over = || args.duration.is_some_and(|duration| start.elapsed() >= duration);
    while following.goes_on() && !following.is_over() && !is_over() && !recording.is_closed() {
        let batch = following.take()?;
        following.probes.keep_told(&batch)?;
        recording.take(batch, &following.probes)?;
    }
    let ending = following.probes.capture.detach()?;
    let at_ns = ending.at_ns;
    recording.take(ending.into_batch(), &following.probes)?;
    let losses = following.losses()?;
    let recorded = recording.finish(&mut following.probes, losses, at_ns)?;
    tell_place(&recorded.tell()?);
    Ok(0)
}
