//! `gpuprobe trace`: prints calls as they happen.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_capture::{Batch, Capture, CaptureConfig, Collect, Ending, keep_memory, utc_offset_seconds};
use gpuprobe_event::trace::{End, Phases};
use gpuprobe_event::{Call, Event, LossCause, LossEvent, Losses, Outcome};
use gpuprobe_output::LiveOptions;

use crate::cli::TraceArgs;
use crate::session::follow::following::{FollowTargets, Following};
use crate::session::probes::probe_budget::ProbeBudget;
use crate::session::probes::probe_set::{Probes, config};
use crate::session::probes::selection::Selection;
use crate::session::record::recording::meta;
use crate::session::threads::early_calls::EarlyCalls;
use crate::terminal::live_printer::{Form, Printer};
use crate::terminal::notes::note;

pub(crate) fn run(args: &TraceArgs) -> Result<u8> {
    let hooks = &args.attach.resolved.hooks;
    let selection = Selection::from_globs(&args.events, args.layer, hooks)?;
    let wanted = FollowTargets { pids: &args.pids, paths: &args.paths, hooks };
    let config = capture_config(args);
    let budget =
        args.budget.map(|share| ProbeBudget::measured(share, &config, Collect::Stream)).transpose()?;
    let mut following =
        Following::start(&config, selection, wanted, Collect::Stream, args.attach.verbose, args.gpu_time)?;
    following.probes.budget = budget;
    keep_memory();
    let printer = Printer::start(form(args, &following.probes))?;
    let early = args.pending.map(|_| EarlyCalls::new()).transpose()?;
    let mut trace = Trace { following, printer, calls: 0, lost_before: Losses::default(), early };
    trace.run(args)?;
    trace.finish(args)
}

/// With a budget all calls are received, because all of them cost: those that are not wanted are left out here.
fn capture_config(args: &TraceArgs) -> CaptureConfig {
    let has_budget = args.budget.is_some();
    CaptureConfig {
        only_targets: !args.pids.is_empty(),
        follow_forks: args.children,
        errors_only: args.errors_only && !has_budget,
        outermost_only: !args.nested && !has_budget,
        min_duration_ns: if has_budget { 0 } else { min_duration_ns(args) },
        detachable: has_budget,
        phases: args.phases && !args.entries,
        entry_only: args.entries,
        stacks: args.stack,
        names: true,
        gpu_time: args.gpu_time.is_some(),
        ..config(&args.attach)
    }
}

fn min_duration_ns(args: &TraceArgs) -> u64 {
    args.min_duration.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// Whether a call is to be printed; without a budget, the BPF programs send only those.
fn is_wanted(call: &Call, args: &TraceArgs) -> bool {
    (args.nested || call.parent.is_none())
        && (!args.errors_only || call.failed())
        && call.duration_ns().is_none_or(|ns| ns >= min_duration_ns(args))
}

fn form(args: &TraceArgs, probes: &Probes) -> Form {
    let separate = args.phases || args.entries;
    if args.json {
        let phases = if separate { Phases::Separate } else { Phases::Together };
        return Form::Json { phases, meta: Box::new(meta(probes, &[])) };
    }
    let start_unix = probes.capture.clock().start_unix();
    Form::Text(LiveOptions {
        times: !args.no_time,
        color: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        nested: args.nested,
        phases: separate,
        processes: false,
        utc_offset_seconds: utc_offset_seconds(start_unix),
        start_unix,
    })
}

struct Trace {
    following: Following,
    printer: Printer,
    /// Calls passed to the printer, each counted once.
    calls: u64,
    /// With `--count`: the losses before the last batch.
    lost_before: Losses,
    /// With `--pending`: calls that began before the probes were attached.
    early: Option<EarlyCalls>,
}

impl Trace {
    fn run(&mut self, args: &TraceArgs) -> Result<()> {
        let start = Instant::now();
        let mut pending_shown = start;
        self.show_early(args)?;
        let is_over = |since: Instant, span: Option<Duration>| span.is_some_and(|s| since.elapsed() >= s);
        loop {
            if !self.following.wait_for_events() {
                return Ok(());
            }
            if args.count.is_some() {
                self.lost_before = self.capture().losses()?;
            }
            let batch = self.following.take()?;
            self.following.probes.enforce_budget_by_events(&batch)?;
            self.print(batch, args);
            let done = args.count.is_some_and(|most| self.calls >= most);
            if done
                || self.following.all_exited()
                || is_over(start, args.duration)
                || self.printer.is_closed()
            {
                return Ok(());
            }
            if is_over(pending_shown, args.pending) {
                pending_shown = Instant::now();
                self.show_early(args)?;
                let now_ns = self.capture().clock().elapsed_ns();
                let open = self.capture().open_calls()?;
                self.show_pending(open, now_ns, args);
            }
        }
    }

    fn capture(&mut self) -> &mut Capture {
        &mut self.following.probes.capture
    }

    fn print(&mut self, batch: Batch, args: &TraceArgs) {
        let mut events = batch.into_events();
        // text output shows calls, what GPUs executed, and errors; losses are summed up at the end
        events.retain(|event| match event {
            Event::Call(call) => args.budget.is_none() || is_wanted(call, args),
            Event::Process(_) | Event::Loss(_) => args.json,
            _ => true,
        });
        // an entry is not another call, unless only entries are traced
        let counts = |event: &Event| match event {
            Event::Call(call) => args.entries || call.outcome != Outcome::Begun,
            _ => false,
        };
        let most = args.count.unwrap_or(u64::MAX);
        events.retain(|event| {
            let keep = self.calls < most || !matches!(event, Event::Call(_));
            self.calls += u64::from(keep && counts(event));
            keep
        });
        self.printer.events(events);
    }

    /// With `--pending`: shows the calls that began before the probes were attached and have not returned yet.
    fn show_early(&mut self, args: &TraceArgs) -> Result<()> {
        if let Some(mut early) = self.early.take() {
            let open = self.capture().open_calls()?;
            let calls = early.look(&self.following.processes(), &open)?;
            self.show_text(gpuprobe_output::early_pending(&calls), args);
            self.early = Some(early);
        }
        Ok(())
    }

    /// Shows the calls that have not returned yet, the oldest first.
    fn show_pending(&mut self, mut open: Vec<Call>, now_ns: u64, args: &TraceArgs) {
        open.retain(|call| args.nested || call.parent.is_none());
        self.show_text(gpuprobe_output::pending(&open, now_ns), args);
    }

    fn show_text(&mut self, text: String, args: &TraceArgs) {
        match args.json {
            true => crate::terminal::notes::print_stderr(format_args!("{text}")),
            false => self.printer.text(text),
        }
    }

    fn finish(mut self, args: &TraceArgs) -> Result<u8> {
        let Ending { batch, open, at_ns } = self.following.probes.end_observation()?;
        // returned calls come before pending ones
        self.print(batch, args);
        if !self.printer.is_closed() && !args.entries {
            self.show_pending(open, at_ns, args);
        }
        let mut losses = self.following.losses()?;
        if args.count.is_some_and(|wanted| self.calls >= wanted) {
            // calls after the last wanted one are not losses; those between the wanted ones are
            losses = std::mem::take(&mut self.lost_before);
        }
        self.following.probes.skip_unused_hooks();
        let end = self.end(args, losses.clone(), at_ns);
        let sampled = gpuprobe_output::sampled_lines(&end.sampled);
        let (printed, dropped) = self.printer.finish(end)?;
        losses.add(LossCause::OutputFull, dropped);
        crate::terminal::notes::print_stderr(format_args!("{sampled}"));
        report_end(printed, &losses, self.following.probes.skips.lines().count());
        Ok(0)
    }

    /// The last line of a trace. Lines for the losses are printed before it.
    fn end(&mut self, args: &TraceArgs, mut losses: Losses, at_ns: u64) -> End {
        losses.add(LossCause::OutputFull, self.printer.dropped());
        // an error here must not fail the whole trace
        let unified = self.capture().unified().unwrap_or_default();
        if args.json {
            let line = |(cause, count)| Event::Loss(LossEvent { at_ns, cause, count });
            self.printer.events(losses.iter().map(line).collect());
        }
        End {
            seconds: at_ns as f64 / 1e9,
            lost: losses.iter().map(|(cause, count)| (cause.as_str().to_owned(), count)).collect(),
            skipped: self.following.probes.skips.lines().collect(),
            unified,
            sampled: self.following.probes.sampled_calls(),
            ..End::default()
        }
    }
}

/// Reports the number of printed lines and the losses.
fn report_end(printed: u64, losses: &Losses, skipped: usize) {
    let lines = gpuprobe_output::units::count(printed, "line", "lines");
    note!("gpuprobe: {lines}{}", if losses.total() == 0 { ", 0 lost" } else { "" });
    for (cause, count) in losses.iter() {
        note!("gpuprobe: lost {count} {}: {}", cause.as_str(), cause.meaning());
    }
    if skipped > 0 {
        note!("gpuprobe: {skipped} not probed: -v shows what and why");
    }
}
