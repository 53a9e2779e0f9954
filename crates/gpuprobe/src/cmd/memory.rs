//! `gpuprobe memory`: shows live GPU memory by process and source line, and what grows.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gpuprobe_analysis::{LiveMemory, LiveTensors, Rules};
use gpuprobe_capture::{Batch, CaptureConfig, Collect, Urgent, terminal_size, utc_offset_seconds};
use gpuprobe_event::{LossCause, Losses, Tgid};
use gpuprobe_output::MemoryOptions;

use crate::cli::{MemoryArgs, RESCAN};
use crate::session::command::supervise::{AtQuit, SupervisedCommand};
use crate::session::follow::mapping_watch::Watch;
use crate::session::follow::process_set::{ProcessSet, attach_given};
use crate::session::host::gpu_numbering::GpuNumbering;
use crate::session::host::gpu_state_poller::GpuStatePoller;
use crate::session::host::observer::{MEMORY, Observer, unix_seconds};
use crate::session::host::processes::Processes;
use crate::session::probes::probe_set::{Probes, config};
use crate::session::probes::selection::{RuntimeFailures, Selection};
use crate::session::signals::Signals;
use crate::terminal::notes::note;
use crate::terminal::stdout::{Closed, print};
use crate::terminal::strokes;
use crate::trace_file::output_file::{self, Access};

/// How often live memory is sampled. A verdict needs a dozen samples after warm-up.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
/// The default of --duration without a command.
const DURATION: Duration = Duration::from_secs(10);
/// Columns if the output is not a terminal.
const WIDTH: usize = 160;

pub(crate) fn run(args: &MemoryArgs) -> Result<u8> {
    let mut view = View::new(args, observer(args)?)?;
    if args.command.is_empty() { observe_running(args, &mut view) } else { observe_command(args, &mut view) }
}

fn observer(args: &MemoryArgs) -> Result<Observer> {
    let hooks = Arc::clone(&args.attach.resolved.hooks);
    let config = CaptureConfig {
        only_targets: !args.pids.is_empty() || !args.command.is_empty(),
        pause_targets: !args.command.is_empty(),
        sites: true,
        tensors: args.tensors,
        ..config(&args.attach)
    };
    let selection = Selection::Driver {
        classes: MEMORY.to_vec(),
        named: true,
        few: false,
        failures: RuntimeFailures::None,
        entry_counted: Vec::new(),
    };
    let probes = Probes::new(&config, selection, Collect::Count, args.attach.verbose)?.with_hooks(hooks);
    let live_memory = || LiveMemory::new(Rules::after(args.warm_up), true);
    let tensors = args.tensors.then(|| LiveTensors::new(live_memory()));
    let gpus = GpuNumbering::new(&args.nvml.driver_folder, RESCAN);
    let observer = Observer::new(probes, Processes::new(0), Some(live_memory()));
    let observer = observer.with_gpus(gpus).with_tensors(tensors);
    let is_host = args.pids.is_empty() && args.command.is_empty();
    let only = (!is_host).then(|| args.pids.iter().copied().map(Tgid).collect());
    Ok(observer.with_states(GpuStatePoller::start(&args.nvml, SAMPLE_EVERY, only, args.attach.verbose)?))
}

/// The display: where it goes and how often it is updated.
struct View<'a> {
    args: &'a MemoryArgs,
    observer: Observer,
    file: Option<File>,
    /// Losses that the BPF programs do not count.
    losses: Losses,
    begun: Instant,
    sampled: Instant,
    shown: Instant,
    /// The reader of stdout has closed it.
    closed: bool,
}

impl<'a> View<'a> {
    fn new(args: &'a MemoryArgs, observer: Observer) -> Result<Self> {
        let cannot =
            || format!("cannot write to {}", args.output.as_deref().unwrap_or("".as_ref()).display());
        let create = |path: &PathBuf| output_file::create(path, Access::Private);
        let file = args.output.as_ref().map(create).transpose().with_context(cannot)?.map(|made| made.file);
        let now = Instant::now();
        let losses = Losses::default();
        Ok(Self { args, observer, file, losses, begun: now, sampled: now, shown: now, closed: false })
    }

    /// Takes in a batch, and samples and displays when it is time.
    fn take(&mut self, batch: &Batch) -> Result<()> {
        self.observer.take(batch)?;
        if self.sampled.elapsed() >= SAMPLE_EVERY {
            self.sampled = Instant::now();
            self.observer.sample()?;
        }
        if self.args.watch && self.shown.elapsed() >= self.args.interval {
            self.shown = Instant::now();
            self.show()?;
        }
        Ok(())
    }

    fn show(&mut self) -> Result<()> {
        let report = self.observer.memory(&self.losses)?;
        let snapshot = self.observer.snapshot(&self.losses, &[])?;
        let tensors = self.observer.tensors(&self.losses)?;
        let now = unix_seconds();
        if self.args.json {
            let states = &snapshot.gpu_states;
            return self.write(&gpuprobe_output::memory_json(&report, tensors.as_ref(), states, now));
        }
        let size = self.file.is_none().then(|| terminal_size(io::stdout())).flatten();
        let options = MemoryOptions {
            width: size.map_or(WIDTH, |(columns, _)| columns.into()),
            stacks: self.args.sites,
            strokes: strokes::of_locale(),
            utc_offset_seconds: utc_offset_seconds(now),
        };
        let of_tensors = tensors.map(|tensors| gpuprobe_output::tensors(&tensors, &options));
        let text = gpuprobe_output::memory(&report, now, &options) + &of_tensors.unwrap_or_default();
        let text = text + &gpuprobe_output::gpus_compared(&snapshot, options.width);
        match size {
            Some((_, rows)) if self.args.watch => self.write(&redrawn(&text, rows.into())),
            _ if self.args.watch => self.write(&format!("{text}\n")),
            _ => self.write(&text),
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()).context("cannot write the report"),
            None => match print(text) {
                Err(error) if error.is::<Closed>() => {
                    self.closed = true;
                    Ok(())
                }
                printed => printed,
            },
        }
    }

    /// Whether stdout is closed or the time is over.
    fn is_over(&self, most: Option<Duration>) -> bool {
        self.closed || most.is_some_and(|most| self.begun.elapsed() >= most)
    }

    /// Shows the live memory at the end, and reports losses and skips.
    fn finish(&mut self) -> Result<()> {
        if !self.closed {
            self.show()?;
        }
        if self.closed { Ok(()) } else { report_missing(self) }
    }
}

/// The text from the top of the screen, cut to its rows.
fn redrawn(text: &str, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // the cursor is in the last row
    let room = rows.saturating_sub(1).max(1);
    let (kept, more) = if lines.len() > room { (room - 1, "...\n") } else { (room, "") };
    let shown: String = lines.iter().take(kept).flat_map(|line| [*line, "\n"]).collect();
    format!("\x1b[2J\x1b[H{shown}{more}")
}

/// Observes a command from its first instruction to its exit.
fn observe_command(args: &MemoryArgs, view: &mut View<'_>) -> Result<u8> {
    // most programs use the same dynamic loader as gpuprobe: probed now, they need not be stopped for it
    view.observer.probes.attach_loader_of(Tgid(std::process::id()));
    let mut command = SupervisedCommand::start_paused(&args.command, &args.user, AtQuit::ForCommand, &[])?;
    command.resume(&view.observer.probes)?;
    let status = loop {
        let (batch, exit_status) = command.poll(&mut view.observer.probes)?;
        view.take(&batch)?;
        match exit_status {
            Some(status) => break Some(status),
            None if view.is_over(args.duration) => break None,
            None => {}
        }
    };
    let end = command.finish(&mut view.observer.probes)?;
    view.observer.take(&end.ending.batch)?;
    view.losses.add(LossCause::LateAttach, end.late);
    view.finish()?;
    if end.running > 0 {
        note!("no longer observed: {} processes that still run", end.running);
    }
    Ok(status.unwrap_or(0))
}

/// Observes the host or running processes.
fn observe_running(args: &MemoryArgs, view: &mut View<'_>) -> Result<u8> {
    // before any thread is created, so that no thread receives the signals
    let mut signals = Signals::block()?;
    // before processes are scanned, so that no mapping is missed
    let mut watch = Watch::start(RESCAN);
    watch.during(|_| attach(&args.pids, &mut view.observer.probes))?;
    let duration = args.duration.or((!args.watch).then_some(DURATION));
    if let (Some(duration), false) = (duration, args.watch) {
        note!(
            "gpuprobe: watching for {} s, then showing what was allocated meanwhile",
            duration.as_secs_f64()
        );
    }
    let mut followed = ProcessSet::new(&args.pids);
    loop {
        let mut others = watch.fds();
        others.push(signals.fd());
        // every allocation from an unknown call site sends its stack, until user space has registered the site
        let urgent = Urgent::begin();
        view.observer.probes.capture.wait(&others, SAMPLE_EVERY / 4);
        let is_ended = signals.termination_signal().is_some();
        let batch = view.observer.probes.take()?;
        drop(urgent);
        followed.take(&batch);
        view.losses = watch.losses().clone();
        view.take(&batch)?;
        watch.probe_new(&followed, &mut view.observer.probes);
        let all_exited = followed.is_given() && followed.running().is_empty();
        if is_ended || all_exited || view.is_over(duration) {
            break;
        }
    }
    let ending = view.observer.probes.end_observation()?;
    view.observer.take(&ending.batch)?;
    view.finish()?;
    Ok(0)
}

/// Probes the given processes, or the whole host. Calls before the start are not losses here.
fn attach(pids: &[u32], probes: &mut Probes) -> Result<()> {
    if pids.is_empty() {
        probes.attach_host();
        return Ok(());
    }
    attach_given(pids, probes)
}

/// Reports losses that verdicts do not mention, and skips.
fn report_missing(view: &View<'_>) -> Result<()> {
    let losses = view.observer.losses(&view.losses)?;
    for (cause, count) in losses.iter().filter(|(cause, _)| *cause != LossCause::ForgottenEarly) {
        note!("gpuprobe: lost {count} {}: {}", cause.as_str(), cause.meaning());
    }
    let skips = &view.observer.probes.skips;
    let is_host = view.args.pids.is_empty() && view.args.command.is_empty();
    match skips.lines().count() {
        0 => {}
        n if is_host => note!("gpuprobe: {n} not probed: -v shows what and why"),
        _ => skips.lines().for_each(|line| note!("gpuprobe: not probed: {line}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redrawn_text_fits_the_screen() {
        assert_eq!(redrawn("a\nb\nc\n", 4), "\x1b[2J\x1b[Ha\nb\nc\n");
        assert_eq!(redrawn("a\nb\nc\n", 3), "\x1b[2J\x1b[Ha\n...\n");
        assert_eq!(redrawn("a\n", 0), "\x1b[2J\x1b[Ha\n");
    }
}
