//! `gpuprobe trace`: calls as they happen.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_capture::{Batch, CaptureConfig, Collect, utc_offset_seconds};
use gpuprobe_event::trace::{End, Phases};
use gpuprobe_event::{Call, Event, LossCause, LossEvent, Losses, Outcome, Tgid};
use gpuprobe_output::LiveOptions;

use crate::cli::TraceArgs;
use crate::cmd::run::meta;
use crate::followed::{Followed, process_of_thread};
use crate::notes::note;
use crate::printer::{Form, Printer};
use crate::probes::{Probes, config};
use crate::select::Selection;
use crate::signals::Signals;
use crate::watch::{RESCAN_SECONDS, Watch};

/// How long records may wait in the ring before they are looked at without being called.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &TraceArgs) -> Result<u8> {
    let selection = Selection::from_globs(&args.events)?;
    let mut probes = Probes::new(&capture_config(args), selection, Collect::Stream, args.attach.verbose)?;
    // before any thread is made, so that none of them is hit by a signal meant for us
    let signals = Signals::hold_back()?;
    // before processes are looked at, so that nothing falls between the two
    let watch = if args.paths.is_empty() { Some(Watch::start(RESCAN_SECONDS)) } else { None };
    attach(args, &mut probes)?;
    let printer = Printer::start(form(args, &probes))?;
    let mut trace = Trace {
        followed: Followed::new(&args.pids),
        probes,
        signals,
        watch,
        printer,
        calls: 0,
        lost_before: Losses::default(),
    };
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

/// Probes what was asked for, or everything.
fn attach(args: &TraceArgs, probes: &mut Probes) -> Result<()> {
    for pid in &args.pids {
        if let Some(process) = process_of_thread(*pid) {
            bail!("{pid} is a thread of process {process}: use -d {process}");
        }
        if args.paths.is_empty() {
            probes.attach_process(Tgid(*pid)).with_context(|| format!("cannot trace process {pid}"))?;
        } else if !std::path::Path::new("/proc").join(pid.to_string()).exists() {
            bail!("there is no process {pid}");
        }
    }
    for path in &args.paths {
        probes.attach_file(path)?;
    }
    if args.paths.is_empty() && args.pids.is_empty() {
        probes.attach_host();
    }
    // after all of its libraries, so that none of its calls seems to be made outside of another
    for pid in &args.pids {
        probes.capture.observe(Tgid(*pid));
        probes.capture.add_target(Tgid(*pid))?;
    }
    // others may be probed for what they tell of names and contexts
    if probes.asked_for == 0 && !args.paths.is_empty() {
        bail!("none of the functions asked for is in {}: see `gpuprobe list`", shown(&args.paths));
    }
    // of a process that was asked for by name
    if !args.attach.verbose && !args.pids.is_empty() {
        probes.skips.lines().for_each(|line| note!("gpuprobe: not probed: {line}"));
    }
    tell_begin(probes);
    Ok(())
}

/// From when on calls are seen: whoever starts a program by hand waits for it.
fn tell_begin(probes: &Probes) {
    let count = gpuprobe_output::units::count;
    let (libraries, functions) =
        probes.capture.attached().fold((0, 0), |(n, functions), a| (n + 1, functions + a.functions as u64));
    if libraries == 0 {
        note!("gpuprobe: no CUDA library to probe yet: they are as processes begin to use them");
        return;
    }
    let functions = count(functions, "function", "functions");
    note!("gpuprobe: tracing {functions} of {}", count(libraries, "library", "libraries"));
}

fn shown(paths: &[std::path::PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
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
    probes: Probes,
    signals: Signals,
    watch: Option<Watch>,
    printer: Printer,
    followed: Followed,
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
            let mut others: Vec<_> = self.watch.iter().flat_map(Watch::fds).collect();
            others.push(self.signals.fd());
            self.probes.capture.wait(&others, LOOK_EVERY);
            if self.signals.told_to_end().is_some() {
                return Ok(());
            }
            if args.count.is_some() {
                self.lost_before = self.probes.capture.losses()?;
            }
            let batch = self.probes.take()?;
            self.followed.take(&batch);
            self.look(args);
            self.print(batch, args);
            let done = args.count.is_some_and(|most| self.calls >= most);
            let all_ended = !args.pids.is_empty() && self.followed.running().is_empty();
            if done || all_ended || is_over(start, args.duration) || self.printer.is_closed() {
                return Ok(());
            }
            if is_over(told_pending, args.pending) {
                told_pending = Instant::now();
                self.tell_pending(args)?;
            }
        }
    }

    /// Probes what is new, of the processes asked for alone where some were: also when all of them have ended.
    fn look(&mut self, args: &TraceArgs) {
        match &mut self.watch {
            Some(watch) if args.pids.is_empty() => watch.look(&mut self.probes),
            Some(watch) => watch.look_at(self.followed.running(), &mut self.probes),
            None => {}
        }
    }

    fn print(&mut self, batch: Batch, args: &TraceArgs) {
        let mut events = batch.into_events();
        // losses are summed up at the end, and people follow calls, not processes
        events.retain(|event| args.json || matches!(event, Event::Call(_)));
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

    /// The calls that have not returned, the oldest first.
    fn tell_pending(&mut self, args: &TraceArgs) -> Result<()> {
        let now_ns = self.probes.capture.clock().elapsed_ns();
        let open = self.probes.capture.open_calls()?;
        let calls: Vec<Call> = open
            .into_iter()
            .filter_map(|event| match event {
                Event::Call(call) => Some(*call),
                _ => None,
            })
            .filter(|call| args.nested || call.parent.is_none())
            .collect();
        let text = gpuprobe_output::pending(&calls, now_ns);
        match args.json {
            true => crate::notes::tell(format_args!("{text}")),
            false => self.printer.text(text),
        }
        Ok(())
    }

    fn finish(mut self, args: &TraceArgs) -> Result<u8> {
        // what has returned by now stands above what has not
        let batch = self.probes.take()?;
        self.print(batch, args);
        if !self.printer.is_closed() && !args.entries {
            self.tell_pending(args)?;
        }
        let last = self.probes.capture.detach()?;
        self.print(last, args);
        let mut losses = self.probes.capture.losses()?;
        if let Some(watch) = &self.watch {
            watch.losses().iter().for_each(|(cause, count)| losses.add(cause, count));
        }
        if args.count.is_some_and(|wanted| self.calls >= wanted) {
            // nobody asked for what came after these; what is missing between them is told
            losses = std::mem::take(&mut self.lost_before);
        }
        let end = self.end(args, losses.clone());
        let (printed, dropped) = self.printer.finish(end)?;
        losses.add(LossCause::OutputFull, dropped);
        tell_end(printed, &losses, self.probes.skips.lines().count());
        Ok(0)
    }

    /// The last line of a trace, after one for each loss.
    fn end(&mut self, args: &TraceArgs, mut losses: Losses) -> End {
        losses.add(LossCause::OutputFull, self.printer.dropped());
        let at_ns = self.probes.capture.clock().elapsed_ns();
        if args.json {
            let line = |(cause, count)| Event::Loss(LossEvent { at_ns, cause, count });
            self.printer.events(losses.iter().map(line).collect());
        }
        End {
            seconds: at_ns as f64 / 1e9,
            lost: losses.iter().map(|(cause, count)| (cause.as_str().to_owned(), count)).collect(),
            skipped: self.probes.skips.lines().collect(),
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
