//! `gpuprobe trace`: calls as they happen.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpuprobe_capture::{Batch, Capture, CaptureConfig, Collect, Ending, keep_memory, utc_offset_seconds};
use gpuprobe_event::trace::{End, Phases};
use gpuprobe_event::{Call, Event, LossCause, LossEvent, Losses, Outcome};
use gpuprobe_output::LiveOptions;

use crate::cli::TraceArgs;
use crate::following::{Following, Wanted};
use crate::notes::note;
use crate::printer::{Form, Printer};
use crate::probes::{Probes, config};
use crate::recording::meta;
use crate::select::Selection;

pub(crate) fn run(args: &TraceArgs) -> Result<u8> {
    let hooks = &args.attach.chosen.hooks;
    let selection = Selection::from_globs(&args.events, hooks)?;
    let wanted = Wanted { pids: &args.pids, paths: &args.paths, hooks };
    let following =
        Following::start(&capture_config(args), selection, wanted, Collect::Stream, args.attach.verbose)?;
    keep_memory();
    let printer = Printer::start(form(args, &following.probes))?;
    let mut trace = Trace { following, printer, calls: 0, lost_before: Losses::default() };
    trace.until_the_end(args)?;
    trace.finish(args)
}

fn capture_config(args: &TraceArgs) -> CaptureConfig {
    CaptureConfig {
        only_targets: !args.pids.is_empty(),
        follow_forks: args.children,
        errors_only: args.errors_only,
        outermost_only: !args.nested,
        min_duration_ns: args.min_duration.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        phases: args.phases && !args.entries,
        entry_only: args.entries,
        stacks: args.stack,
        names: true,
        ..config(&args.attach)
    }
}

fn form(args: &TraceArgs, probes: &Probes) -> Form {
    let apart = args.phases || args.entries;
    if args.json {
        let phases = if apart { Phases::Apart } else { Phases::Together };
        return Form::Json { phases, meta: meta(probes, &[]) };
    }
    let start_unix = probes.capture.clock().start_unix();
    Form::Text(LiveOptions {
        times: !args.no_time,
        color: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        nested: args.nested,
        phases: apart,
        processes: false,
        utc_offset_seconds: utc_offset_seconds(start_unix),
        start_unix,
    })
}

struct Trace {
    following: Following,
    printer: Printer,
    /// Calls handed to the printer, each once.
    calls: u64,
    /// With `--count`: what had been lost before the last calls were taken.
    lost_before: Losses,
}

impl Trace {
    fn until_the_end(&mut self, args: &TraceArgs) -> Result<()> {
        let start = Instant::now();
        let mut told_pending = start;
        let is_over = |since: Instant, span: Option<Duration>| span.is_some_and(|s| since.elapsed() >= s);
        loop {
            if !self.following.goes_on() {
                return Ok(());
            }
            if args.count.is_some() {
                self.lost_before = self.capture().losses()?;
            }
            let batch = self.following.take()?;
            self.print(batch, args);
            let done = args.count.is_some_and(|most| self.calls >= most);
            if done || self.following.is_over() || is_over(start, args.duration) || self.printer.is_closed() {
                return Ok(());
            }
            if is_over(told_pending, args.pending) {
                told_pending = Instant::now();
                let now_ns = self.capture().clock().elapsed_ns();
                let open = self.capture().open_calls()?;
                self.tell_pending(open, now_ns, args);
            }
        }
    }

    fn capture(&mut self) -> &mut Capture {
        &mut self.following.probes.capture
    }

    fn print(&mut self, batch: Batch, args: &TraceArgs) {
        let mut events = batch.into_events();
        // losses are summed up at the end, and people follow calls, not processes
        events.retain(|event| args.json || matches!(event, Event::Call(_) | Event::Xid(_)));
        // the beginning of a call is not another call, unless it is all that is told of it
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

    /// The calls that have not returned at a moment, the oldest first.
    fn tell_pending(&mut self, mut open: Vec<Call>, now_ns: u64, args: &TraceArgs) {
        open.retain(|call| args.nested || call.parent.is_none());
        let text = gpuprobe_output::pending(&open, now_ns);
        match args.json {
            true => crate::notes::tell(format_args!("{text}")),
            false => self.printer.text(text),
        }
    }

    fn finish(mut self, args: &TraceArgs) -> Result<u8> {
        let Ending { batch, open, at_ns } = self.capture().detach()?;
        // what has returned by now stands above what has not
        self.print(batch, args);
        if !self.printer.is_closed() && !args.entries {
            self.tell_pending(open, at_ns, args);
        }
        let mut losses = self.following.losses()?;
        if args.count.is_some_and(|wanted| self.calls >= wanted) {
            // nobody asked for what came after these; what is missing between them is told
            losses = std::mem::take(&mut self.lost_before);
        }
        self.following.probes.skip_unused_hooks();
        let end = self.end(args, losses.clone(), at_ns);
        let (printed, dropped) = self.printer.finish(end)?;
        losses.add(LossCause::OutputFull, dropped);
        tell_end(printed, &losses, self.following.probes.skips.lines().count());
        Ok(0)
    }

    /// The last line of a trace, after one for each loss.
    fn end(&mut self, args: &TraceArgs, mut losses: Losses, at_ns: u64) -> End {
        losses.add(LossCause::OutputFull, self.printer.dropped());
        // what cannot be read at the end is no reason to end otherwise
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
            ..End::default()
        }
    }
}

/// How much was printed, and what is missing.
fn tell_end(printed: u64, losses: &Losses, skipped: usize) {
    let lines = gpuprobe_output::units::count(printed, "line", "lines");
    note!("gpuprobe: {lines}{}", if losses.total() == 0 { ", 0 lost" } else { "" });
    for (cause, count) in losses.iter() {
        note!("gpuprobe: lost {count} {}: {}", cause.as_str(), cause.meaning());
    }
    if skipped > 0 {
        note!("gpuprobe: {skipped} not probed: -v tells what and why");
    }
}
