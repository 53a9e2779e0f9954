//! Discovery, selection and capture together: from a process, a file or the host to probes.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gpuprobe_capture::{Batch, Capture, CaptureConfig, CaptureError, Collect};
use gpuprobe_discover::{
    DiscoverError, FileId, HostPaths, Inspector, Library, Scan, Skipped, container_of, loader_of, plan,
};
use gpuprobe_event::{ProcessChange, Tgid};

use crate::cli::AttachArgs;
use crate::guard;
use crate::notes::note;
use crate::select::Selection;

const PROC: &str = "/proc";
const GIVE: &str = "give a libcuda, a libcudart or a program with CUDA linked in";

/// Everything that is probed, and what could not be.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) capture: Capture,
    inspector: Inspector,
    selection: Selection,
    collect: Collect,
    /// Libraries that were looked at, whether there was something to probe in them or not.
    considered: HashSet<(FileId, bool)>,
    skipped: BTreeSet<(PathBuf, String)>,
    verbose: bool,
}

/// Only user space can read names of cgroups. A process that ended meanwhile has lost its own.
fn fill_containers(batch: &mut Batch) {
    for (_, process) in batch.processes.iter_mut().chain(&mut batch.first_calls) {
        if process.change != ProcessChange::Exit {
            process.container = container_of(Path::new(PROC), process.tgid.0).map(Arc::from);
        }
    }
}

/// The capture that the flags ask for.
pub(crate) fn config(args: &AttachArgs) -> CaptureConfig {
    let mut config = CaptureConfig { tier: args.attach, ..CaptureConfig::default() };
    if let Some(mebibytes) = args.buffer {
        config.ring_bytes = mebibytes.next_power_of_two() << 20;
    }
    config
}

impl Probes {
    pub(crate) fn new(
        config: &CaptureConfig,
        selection: Selection,
        collect: Collect,
        verbose: bool,
    ) -> Result<Self> {
        let capture = Capture::open(config, guard::command(config.hold))?;
        let selection = selection.on(capture.tier());
        if matches!(selection, Selection::Few { .. }) {
            note!(
                "gpuprobe: this kernel attaches by perf, so only the most telling functions are traced (-e names others)"
            );
        }
        let probes = Self {
            capture,
            inspector: Inspector::new(),
            selection,
            collect,
            considered: HashSet::new(),
            skipped: BTreeSet::new(),
            verbose,
        };
        probes.tell(|| format!("attaching by {}", probes.capture.tier()));
        Ok(probes)
    }

    /// A note for `--verbose`.
    fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            note!("gpuprobe: {}", text());
        }
    }

    /// Takes what the kernel side has sent, with the containers of processes filled in.
    pub(crate) fn take(&mut self) -> Result<Batch, CaptureError> {
        let mut batch = self.capture.take()?;
        fill_containers(&mut batch);
        Ok(batch)
    }

    /// Whether a process has mapped something that was never considered. At its exec the loader is what matters:
    /// the program itself is looked at again, with its libraries, when the loader has mapped them.
    pub(crate) fn has_new(&mut self, tgid: Tgid, at_exec: bool) -> bool {
        let proc_root = Path::new(PROC);
        match loader_of(proc_root, tgid.0) {
            Ok(Some(loader)) if !self.capture.holds_by(&loader) => return true,
            Ok(Some(_)) if at_exec => return false,
            _ => {}
        }
        let scan = self.inspector.of_pid(proc_root, tgid.0).unwrap_or_default();
        scan.libraries.iter().any(|l| !self.considered.contains(&(l.id, l.is_static)))
    }

    /// Probes what a process has mapped; tells how many libraries were new.
    pub(crate) fn attach_process(&mut self, tgid: Tgid) -> Result<usize, DiscoverError> {
        let scan = self.inspector.new_of_pid(Path::new(PROC), tgid.0)?;
        Ok(self.attach_scan(scan))
    }

    /// Probes one file. It must have something to probe.
    pub(crate) fn attach_file(&mut self, path: &Path) -> Result<()> {
        let real = path.canonicalize().with_context(|| format!("cannot open {}", path.display()))?;
        let libraries =
            self.inspector.inspect(&real, &real).with_context(|| format!("nothing to probe: {GIVE}"))?;
        if libraries.is_empty() {
            bail!("{} has no CUDA functions: {GIVE}", path.display());
        }
        self.attach_scan(Scan { libraries, skipped: Vec::new() });
        Ok(())
    }

    /// Probes whatever a file of our own mount namespace has to probe; tells how many libraries were new.
    pub(crate) fn attach_path(&mut self, path: &Path) -> Result<usize, DiscoverError> {
        let libraries = self.inspector.inspect(path, path)?;
        Ok(self.attach_scan(Scan { libraries, skipped: Vec::new() }))
    }

    /// Probes every library that can be found on the host.
    pub(crate) fn attach_host(&mut self) {
        let scan = self.inspector.of_host(Path::new(PROC), &HostPaths::default());
        self.attach_scan(scan);
    }

    /// Holds processes started with this program's loader until their libraries are probed.
    pub(crate) fn attach_loader_of(&mut self, tgid: Tgid) {
        match loader_of(Path::new(PROC), tgid.0) {
            Ok(Some(loader)) => {
                if let Err(error) = self.capture.attach_loader(&loader) {
                    self.skip(loader.path, error.to_string());
                }
            }
            Ok(None) => self.tell(|| format!("process {tgid} has no dynamic loader")),
            Err(DiscoverError::NoSuchProcess { .. }) => {}
            Err(error) => self.skip(PathBuf::from(format!("process {tgid}")), error.to_string()),
        }
    }

    /// Takes the probes out of libraries of other mount namespaces that no process maps any more: they would keep
    /// the container's mounts from going away. Those of our own are kept for the next process.
    pub(crate) fn detach_unused(&mut self) {
        let foreign: Vec<_> = self.capture.attached().filter(|a| a.is_foreign).map(|a| a.id).collect();
        if foreign.is_empty() {
            return;
        }
        let scan = self.inspector.of_processes(Path::new(PROC));
        let used: BTreeSet<_> = scan.libraries.iter().map(|l| l.id).collect();
        let unused: HashSet<_> = foreign.into_iter().filter(|id| !used.contains(id)).collect();
        for id in &unused {
            self.tell(|| format!("detached from a library that nobody uses any more (inode {})", id.inode));
        }
        self.capture.detach_files(&unused);
        self.considered.retain(|(considered, _)| !unused.contains(considered));
    }

    /// Probes what is new in a scan; tells how many libraries that were.
    fn attach_scan(&mut self, scan: Scan) -> usize {
        let before = self.capture.attached().count();
        let Scan { libraries, skipped } = scan;
        for Skipped { path, reason } in skipped {
            self.skip(path, reason);
        }
        let new: Vec<Library> =
            libraries.into_iter().filter(|l| self.considered.insert((l.id, l.is_static))).collect();
        let (plan, skipped) = plan(&new, &|library, name| self.selection.function(library, name));
        for Skipped { path, reason } in skipped {
            self.skip(path, reason);
        }
        for target in &plan.targets {
            let begun = Instant::now();
            let result = self.capture.attach(target, self.collect);
            match result {
                Ok(attached) => {
                    let (count, skipped) = (attached.functions, attached.skipped.clone());
                    let took = gpuprobe_output::units::duration(begun.elapsed().as_nanos() as u64);
                    self.tell(|| format!("{}: {count} functions in {took}", target.library.path.display()));
                    for Skipped { path, reason } in skipped {
                        self.skip(path, reason);
                    }
                }
                Err(error) => self.skip(target.library.path.clone(), error.to_string()),
            }
        }
        self.capture.attached().count() - before
    }

    fn skip(&mut self, path: PathBuf, reason: String) {
        self.tell(|| format!("skipped {}: {reason}", path.display()));
        self.skipped.insert((path, reason));
    }

    /// What could not be probed, each once.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = String> + '_ {
        self.skipped.iter().map(|(path, reason)| format!("{}: {reason}", path.display()))
    }
}
