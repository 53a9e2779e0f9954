//! `gpuprobe memory`: who holds GPU memory, from which line, and what grows.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_analysis::{Holdings, Rules};
use gpuprobe_capture::{Batch, CaptureConfig, Collect, Urgent, terminal_size, utc_offset_seconds};
use gpuprobe_event::{LossCause, Losses, Tgid};
use gpuprobe_output::{MemoryOptions, Strokes};

use crate::cli::MemoryArgs;
use crate::followed::{Followed, process_of_thread};
use crate::gpus::Gpus;
use crate::notes::note;
use crate::observer::{MEMORY, Observer, unix_seconds};
use crate::output_file::{self, Access};
use crate::probes::{Probes, config};
use crate::processes::Processes;
use crate::select::Selection;
use crate::signals::Signals;
use crate::states::States;
use crate::stdout::{Closed, print};
use crate::supervise::Supervised;
use crate::watch::{RESCAN_SECONDS, Watch};

/// How often what is held is looked at. A verdict needs a dozen looks after warm-up.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
/// How long a host or a process is watched where nothing else was said.
const DURATION: Duration = Duration::from_secs(10);
/// Columns of what is no terminal.
const WIDTH: usize = 160;

pub(crate) fn run(args: &MemoryArgs) -> Result<u8> {
    let mut view = View::new(args, observer(args)?)?;
    if args.command.is_empty() { watch(args, &mut view) } else { launched(args, &mut view) }
}

fn observer(args: &MemoryArgs) -> Result<Observer> {
    let hooks = Arc::clone(&args.attach.chosen.hooks);
    let config = CaptureConfig {
        only_targets: !args.pids.is_empty() || !args.command.is_empty(),
        hold: !args.command.is_empty(),
        sites: true,
        ..config(&args.attach)
    };
    let selection = Selection::Driver {
        classes: MEMORY.to_vec(),
        named: true,
        few: false,
        failures: false,
        tallied: Vec::new(),
    };
    let probes = Probes::new(&config, selection, Collect::Count, args.attach.verbose)?.with_hooks(hooks);
    let holdings = Holdings::new(Rules::after(args.warm_up), true);
    let gpus = Gpus::new(&args.nvml.driver_folder, Duration::from_secs(RESCAN_SECONDS));
    let observer = Observer::new(probes, Processes::new(0), Some(holdings)).with_gpus(gpus);
    let is_host = args.pids.is_empty() && args.command.is_empty();
    let only = (!is_host).then(|| args.pids.iter().copied().map(Tgid).collect());
    Ok(observer.with_states(States::start(&args.nvml, SAMPLE_EVERY, only, args.attach.verbose)?))
}

/// What is shown, where and how often.
struct View<'a> {
    args: &'a MemoryArgs,
    observer: Observer,
    file: Option<File>,
    /// Lost besides what the kernel side counts.
    losses: Losses,
    begun: Instant,
    sampled: Instant,
    shown: Instant,
    /// Whoever read this has had enough.
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

    /// Takes in what happened, and looks and shows when it is time.
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
        let now = unix_seconds();
        if self.args.json {
            return self.write(&gpuprobe_output::memory_json(&report, &snapshot.gpu_states, now));
        }
        let size = self.file.is_none().then(|| terminal_size(io::stdout())).flatten();
        let options = MemoryOptions {
            width: size.map_or(WIDTH, |(columns, _)| columns.into()),
            ways: self.args.sites,
            strokes: strokes(),
            utc_offset_seconds: utc_offset_seconds(now),
        };
        let text = gpuprobe_output::memory(&report, now, &options);
        let text = text + &gpuprobe_output::gpus_compared(&snapshot, options.width);
        match size {
            Some((_, rows)) if self.args.watch => self.write(&redrawn(&text, rows.into())),
            _ if self.args.watch => self.write(&format!("{text}\n")),
            _ => self.write(&text),
        }
    }

    fn write(&mut self, text: &str) -> Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()).context("cannot write what is held"),
            None => match print(text) {
                Err(error) if error.is::<Closed>() => {
                    self.closed = true;
                    Ok(())
                }
                printed => printed,
            },
        }
    }

    /// Whether there is nobody to show anything to any more, or no time left.
    fn is_over(&self, most: Option<Duration>) -> bool {
        self.closed || most.is_some_and(|most| self.begun.elapsed() >= most)
    }

    /// Shows what is held at the end, and tells what could not be watched.
    fn finish(&mut self) -> Result<()> {
        if !self.closed {
            self.show()?;
        }
        if self.closed { Ok(()) } else { tell_what_is_missing(self) }
    }
}

/// Blocks need a terminal that knows them.
fn strokes() -> Strokes {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") { Strokes::Blocks } else { Strokes::Ascii }
}

/// The text from the top of the screen on, as much as it has room for.
fn redrawn(text: &str, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // the cursor has the last row
    let room = rows.saturating_sub(1).max(1);
    let (kept, more) = if lines.len() > room { (room - 1, "...\n") } else { (room, "") };
    let shown: String = lines.iter().take(kept).flat_map(|line| [*line, "\n"]).collect();
    format!("\x1b[2J\x1b[H{shown}{more}")
}

/// A command from its first instruction to its end.
fn launched(args: &MemoryArgs, view: &mut View<'_>) -> Result<u8> {
    // most programs have the loader that we have, so that none of them has to stop for it
    view.observer.probes.attach_loader_of(Tgid(std::process::id()));
    let mut command = Supervised::waiting(&args.command)?;
    command.go(&view.observer.probes)?;
    let status = loop {
        let (batch, ended) = command.look(&mut view.observer.probes)?;
        view.take(&batch)?;
        match ended {
            Some(status) => break Some(status),
            None if view.is_over(args.duration) => break None,
            None => {}
        }
    };
    let left = command.finish(&mut view.observer.probes)?;
    view.observer.take(&left.ending.batch)?;
    view.losses.add(LossCause::LateAttach, left.late);
    view.finish()?;
    if left.running > 0 {
        note!("not watched any more: {} processes that run on", left.running);
    }
    Ok(status.unwrap_or(0))
}

/// The host, or processes that run.
fn watch(args: &MemoryArgs, view: &mut View<'_>) -> Result<u8> {
    // before any thread is made, so that none of them is hit by a signal meant for us
    let mut signals = Signals::hold_back()?;
    // before processes are looked at, so that nothing falls between the two
    let mut watch = Watch::start(RESCAN_SECONDS);
    attach(&args.pids, &mut view.observer.probes)?;
    let duration = args.duration.or((!args.watch).then_some(DURATION));
    if let (Some(duration), false) = (duration, args.watch) {
        note!(
            "gpuprobe: watching for {} s, then telling what was allocated meanwhile",
            duration.as_secs_f64()
        );
    }
    let mut followed = Followed::new(&args.pids);
    loop {
        let mut others = watch.fds();
        others.push(signals.fd());
        // until ways that are not known have been learnt, every allocation by them sends its stack
        let urgent = Urgent::begin();
        view.observer.probes.capture.wait(&others, SAMPLE_EVERY / 4);
        let told = signals.told_to_end().is_some();
        let batch = view.observer.probes.take()?;
        drop(urgent);
        followed.take(&batch);
        view.losses = watch.losses().clone();
        view.take(&batch)?;
        match args.pids.is_empty() {
            true => watch.look(&mut view.observer.probes),
            false => watch.look_at(followed.running(), &mut view.observer.probes),
        }
        let all_ended = !args.pids.is_empty() && followed.running().is_empty();
        if told || all_ended || view.is_over(duration) {
            break;
        }
    }
    let ending = view.observer.probes.capture.detach()?;
    view.observer.take(&ending.batch)?;
    view.finish()?;
    Ok(0)
}

/// Probes the processes that were asked for, or everything.
fn attach(pids: &[u32], probes: &mut Probes) -> Result<()> {
    for pid in pids {
        if let Some(process) = process_of_thread(*pid) {
            bail!("{pid} is a thread of process {process}: use -d {process}");
        }
        probes.attach_process(Tgid(*pid)).with_context(|| format!("cannot watch process {pid}"))?;
        probes.capture.observe(Tgid(*pid));
        probes.capture.add_target(Tgid(*pid))?;
    }
    // a process may have mapped the runtime alone, which loads the driver at the first call
    match pids.is_empty() {
        // what they did before is nobody's question here
        true => drop(probes.attach_host()),
        false => probes.attach_host_aside(),
    }
    Ok(())
}

/// Losses that no verdict says, and what could not be watched.
fn tell_what_is_missing(view: &View<'_>) -> Result<()> {
    let losses = view.observer.losses(&view.losses)?;
    for (cause, count) in losses.iter().filter(|(cause, _)| *cause != LossCause::ForgottenEarly) {
        note!("gpuprobe: lost {count} {}: {}", cause.as_str(), cause.meaning());
    }
    let skips = &view.observer.probes.skips;
    let is_host = view.args.pids.is_empty() && view.args.command.is_empty();
    match skips.lines().count() {
        0 => {}
        n if is_host => note!("gpuprobe: {n} not probed: -v tells what and why"),
        _ => skips.lines().for_each(|line| note!("gpuprobe: not watched: {line}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_redrawn_fits_the_screen() {
        assert_eq!(redrawn("a\nb\nc\n", 4), "\x1b[2J\x1b[Ha\nb\nc\n");
        assert_eq!(redrawn("a\nb\nc\n", 3), "\x1b[2J\x1b[Ha\n...\n");
        assert_eq!(redrawn("a\n", 0), "\x1b[2J\x1b[Ha\n");
    }
}
