//! Follows running processes, or all processes of the host, until a signal or until the processes have exited.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::{Batch, CaptureConfig, Collect};
use gpuprobe_discover::gpu_processes;
use gpuprobe_event::{Hooks, Losses, Tgid};
use nix::sys::signal::Signal;

use super::mapping_watch::Watch;
use super::process_set::{ProcessSet, process_of_thread};
use crate::cli::{GraphTimes, RESCAN};
use crate::session::gpu_time::gpu_times::Schedule;
use crate::session::probes::probe_set::Probes;
use crate::session::probes::selection::Selection;
use crate::session::record::recording::Recording;
use crate::session::signals::{Signals, ends_session};
use crate::terminal::notes::note;

/// Longest time between two reads of the ring buffer: the BPF programs do not wake us up for every record.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is followed: these processes, or all if none are given; in all libraries that they use, or only in these files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowTargets<'a> {
    pub(crate) pids: &'a [u32],
    pub(crate) paths: &'a [PathBuf],
    pub(crate) hooks: &'a Arc<Hooks>,
}

#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) probes: Probes,
    signals: Signals,
    watch: Option<Watch>,
    followed: ProcessSet,
    /// SIGQUIT, which Ctrl-\ sends, asks for stacks instead of ending the session.
    quit_shows_stacks: bool,
    wants_stacks: bool,
}

impl Following {
    pub(crate) fn start(
        config: &CaptureConfig,
        selection: Selection,
        wanted: FollowTargets<'_>,
        collect: Collect,
        verbose: bool,
        gpu_time: Option<GraphTimes>,
    ) -> Result<Self> {
        let probes = Probes::new(config, selection, collect, verbose)?;
        let mut probes =
            probes.with_hooks(Arc::clone(wanted.hooks)).with_gpu_times(gpu_time, Schedule::Always);
        // before any thread is created, so that no thread receives the signals
        let signals = Signals::block()?;
        // before processes are scanned, so that no mapping is missed
        // a recording of given processes does not last so long that it must detach what they no longer use
        let rescan = if wanted.pids.is_empty() { RESCAN } else { Duration::MAX };
        let mut watch = wanted.paths.is_empty().then(|| Watch::start(rescan));
        match &mut watch {
            Some(watch) => watch.during(|_| attach(wanted, &mut probes, verbose))?,
            None => attach(wanted, &mut probes, verbose)?,
        }
        Ok(Self {
            probes,
            signals,
            watch,
            followed: ProcessSet::new(wanted.pids),
            quit_shows_stacks: false,
            wants_stacks: false,
        })
    }

    /// Waits for records; `false` if a signal ends the session.
    pub(crate) fn wait_for_events(&mut self) -> bool {
        let mut others: Vec<_> = self.watch.iter().flat_map(Watch::fds).collect();
        others.push(self.signals.fd());
        self.probes.capture.wait(&others, LOOK_EVERY);
        let mut arrived: Vec<Signal> =
            self.signals.take().into_iter().map(|arrived| arrived.signal).collect();
        if self.quit_shows_stacks {
            self.wants_stacks |= arrived.contains(&Signal::SIGQUIT);
            arrived.retain(|signal| *signal != Signal::SIGQUIT);
        }
        !arrived.into_iter().any(ends_session)
    }

    /// The given processes that still run, or all that use GPUs.
    pub(crate) fn processes(&self) -> Vec<Tgid> {
        match self.followed.is_given() {
            true => self.followed.running().iter().copied().collect(),
            false => gpu_processes(Path::new("/proc")).into_iter().map(Tgid).collect(),
        }
    }

    /// Whether the user asked for stacks since the last time.
    pub(crate) fn take_stacks_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_stacks)
    }

    /// Shows stacks at Ctrl-\ instead of ending.
    pub(crate) fn show_stacks_at_quit(&mut self) {
        self.quit_shows_stacks = true;
    }

    /// Takes the records and probes new libraries. If processes were given, only their libraries are probed, even
    /// after all of them have exited.
    pub(crate) fn take(&mut self) -> Result<Batch> {
        let batch = self.probes.take()?;
        self.followed.take(&batch);
        if let Some(watch) = &mut self.watch {
            watch.probe_new(&self.followed, &mut self.probes);
        }
        Ok(batch)
    }

    /// Removes the probes, and takes in what is spooled. A signal that ends the session discards the rest.
    pub(crate) fn take_spooled(&mut self, recording: &mut Recording) -> Result<()> {
        let Self { probes, signals, .. } = self;
        if probes.capture.spooled_calls().is_none() {
            return Ok(());
        }
        probes.capture.detach_probes()?;
        recording.take_spooled(probes, |probes| Ok(probes.take()?), || signals.must_end())
    }

    /// Whether all given processes have exited.
    pub(crate) fn all_exited(&self) -> bool {
        self.followed.is_given() && self.followed.running().is_empty()
    }

    /// All losses up to now.
    pub(crate) fn losses(&self) -> Result<Losses> {
        let mut losses = self.probes.losses()?;
        if let Some(watch) = &self.watch {
            watch.losses().iter().for_each(|(cause, count)| losses.add(cause, count));
        }
        Ok(losses)
    }
}

/// Probes the given processes or files, or the whole host.
fn attach(wanted: FollowTargets<'_>, probes: &mut Probes, verbose: bool) -> Result<()> {
    let FollowTargets { pids, paths, .. } = wanted;
    for pid in pids {
        if let Some(process) = process_of_thread(*pid) {
            bail!("{pid} is a thread of process {process}: use -d {process}");
        }
        if paths.is_empty() {
            probes.attach_process(Tgid(*pid)).with_context(|| format!("cannot trace process {pid}"))?;
        } else if !std::path::Path::new("/proc").join(pid.to_string()).exists() {
            bail!("there is no process {pid}");
        }
    }
    for path in paths {
        probes.attach_file(path)?;
    }
    if paths.is_empty() && pids.is_empty() {
        // running processes are followed from now on; their earlier calls are not losses
        probes.attach_host();
    }
    // after all of its libraries are probed, so that no nested call appears to be an outermost one
    for pid in pids {
        probes.capture.observe(Tgid(*pid));
        probes.capture.add_target(Tgid(*pid))?;
    }
    // functions may be probed only for names and contexts
    if probes.requested == 0 && !paths.is_empty() {
        bail!("{} has none of the requested functions: see `gpuprobe list`", shown(paths));
    }
    // for given processes, report what could not be probed
    if !verbose && !pids.is_empty() {
        probes.skips.lines().for_each(|line| note!("gpuprobe: not probed: {line}"));
    }
    report_start(probes);
    probes.note_unused_hooks();
    Ok(())
}

/// Reports that calls are captured from now on: users who start a program by hand wait for this line.
fn report_start(probes: &Probes) {
    let count = gpuprobe_output::units::count;
    let (libraries, functions) =
        probes.capture.attached().fold((0, 0), |(n, functions), a| (n + 1, functions + a.functions as u64));
    if libraries == 0 {
        note!("gpuprobe: no GPU library to probe yet: libraries are probed when processes start to use them");
        return;
    }
    let functions = count(functions, "function", "functions");
    note!("gpuprobe: tracing {functions} of {}", count(libraries, "library", "libraries"));
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
