//! Processes that run already, or all of the host, watched until somebody says that it is enough.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::{Batch, CaptureConfig, Collect};
use gpuprobe_event::{Hooks, Losses, Tgid};

use crate::followed::{Followed, process_of_thread};
use crate::notes::note;
use crate::probes::Probes;
use crate::select::Selection;
use crate::signals::Signals;
use crate::watch::{RESCAN_SECONDS, Watch};

/// How long records may wait in the ring before they are looked at without being called.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who is watched: these processes, or with none given all; by all libraries that they use, or only by these files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) pids: &'a [u32],
    pub(crate) paths: &'a [PathBuf],
    pub(crate) hooks: &'a Arc<Hooks>,
}

#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) probes: Probes,
    signals: Signals,
    watch: Option<Watch>,
    followed: Followed,
    /// Only processes that were asked for are watched.
    has_pids: bool,
}

impl Following {
    pub(crate) fn start(
        config: &CaptureConfig,
        selection: Selection,
        wanted: Wanted<'_>,
        collect: Collect,
        verbose: bool,
    ) -> Result<Self> {
        let probes = Probes::new(config, selection, collect, verbose)?;
        let mut probes = probes.with_hooks(Arc::clone(wanted.hooks));
        // before any thread is made, so that none of them is hit by a signal meant for us
        let signals = Signals::hold_back()?;
        // before processes are looked at, so that nothing falls between the two
        let watch = if wanted.paths.is_empty() { Some(Watch::start(RESCAN_SECONDS)) } else { None };
        attach(wanted, &mut probes, verbose)?;
        let has_pids = !wanted.pids.is_empty();
        Ok(Self { probes, signals, watch, followed: Followed::new(wanted.pids), has_pids })
    }

    /// Waits for something to happen; `false` when a signal has told us to end.
    pub(crate) fn goes_on(&mut self) -> bool {
        let mut others: Vec<_> = self.watch.iter().flat_map(Watch::fds).collect();
        others.push(self.signals.fd());
        self.probes.capture.wait(&others, LOOK_EVERY);
        self.signals.told_to_end().is_none()
    }

    /// What has happened, and probes in what is new: of the processes asked for alone where some were, also when all of
    /// them have ended.
    pub(crate) fn take(&mut self) -> Result<Batch> {
        let batch = self.probes.take()?;
        self.followed.take(&batch);
        match &mut self.watch {
            Some(watch) if !self.has_pids => watch.look(&mut self.probes),
            Some(watch) => watch.look_at(self.followed.running(), &mut self.probes),
            None => {}
        }
        Ok(batch)
    }

    /// Whether all processes that were asked for have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.has_pids && self.followed.running().is_empty()
    }

    /// Everything lost so far.
    pub(crate) fn losses(&self) -> Result<Losses> {
        let mut losses = self.probes.capture.losses()?;
        if let Some(watch) = &self.watch {
            watch.losses().iter().for_each(|(cause, count)| losses.add(cause, count));
        }
        Ok(losses)
    }
}

/// Probes what was asked for, or everything.
fn attach(wanted: Wanted<'_>, probes: &mut Probes, verbose: bool) -> Result<()> {
    let Wanted { pids, paths, .. } = wanted;
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
        // whoever runs already is joined in the middle, as was asked for
        probes.attach_host();
    }
    // after all of its libraries, so that none of its calls seems to be made outside of another
    for pid in pids {
        probes.capture.observe(Tgid(*pid));
        probes.capture.add_target(Tgid(*pid))?;
    }
    // others may be probed for what they tell of names and contexts
    if probes.asked_for == 0 && !paths.is_empty() {
        bail!("none of the functions asked for is in {}: see `gpuprobe list`", shown(paths));
    }
    // of a process that was asked for by name
    if !verbose && !pids.is_empty() {
        probes.skips.lines().for_each(|line| note!("gpuprobe: not probed: {line}"));
    }
    tell_begin(probes);
    probes.note_unused_hooks();
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

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
