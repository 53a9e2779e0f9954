//! Discovery, selection and capture together: from a process, a file or the host to probes.

mod libraries;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_capture::{
    Attached, Batch, Capture, CaptureConfig, CaptureError, Collect, Mapped, driver_version,
};
use gpuprobe_discover::{
    Device, DiscoverError, FileId, HostPaths, Inspector, Library, SkipCause, Skipped, Stall, StallKind,
    canonical, container_of, copies_stacks, devices, loader_of, read_files_by, take_stalls,
};
use gpuprobe_event::driver::Version;
use gpuprobe_event::{Api, FunctionId, Hooks, ProcessChange, Tgid};
use gpuprobe_output::units::printable;

use crate::budget::KeptBudget;
use crate::cli::AttachArgs;
use crate::guard;
use crate::hooks::why_unused;
use crate::kernel;
use crate::notes::note;
use crate::quota::Quota;
use crate::reader;
use crate::select::Selection;
use crate::skips::{self, Skips};
use crate::xids::fill_users;

const PROC: &str = "/proc";
const GIVE: &str = "give a libcuda, a libcudart or a program with CUDA linked in";

/// Everything that is probed, and what could not be.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) capture: Capture,
    inspector: Inspector,
    selection: Selection,
    hooks: Arc<Hooks>,
    /// What was asked for in the kernel and is not probed.
    not_in_kernel: Vec<Skipped>,
    collect: Collect,
    /// Libraries that were looked at, whether there was something to probe in them or not.
    considered: HashSet<(FileId, Api)>,
    /// File systems that kept us for too long when one of their libraries was probed, by device.
    stalled: HashMap<u64, Instant>,
    /// Of those with probes, the libraries of which nothing was asked for: what they tell is about others, or only that
    /// calls fail. Nobody misses their first calls.
    beside: HashSet<FileId>,
    /// Files that were asked for by name, and stay probed.
    named: HashSet<FileId>,
    /// How many libraries are probed for each user; nothing where only processes that were asked for are observed.
    quota: Option<Quota>,
    /// Counts up whenever libraries come to be observed.
    pub(crate) attaches: u64,
    /// Whether anything of the runtime is to be probed.
    wants_runtime: bool,
    /// Functions probed because they were asked for, and not only for what they tell of others.
    pub(crate) asked_for: usize,
    pub(crate) skips: Skips,
    /// Whether files that cannot be probed are nobody's concern yet.
    aside: bool,
    /// Of the driver, where what is asked of it is watched.
    devices: Option<Devices>,
    /// What probes may take, where that has a bound.
    pub(crate) budget: Option<KeptBudget>,
    pub(crate) verbose: bool,
}

/// The driver's devices. Its second half is loaded when somebody first needs it, and gets a number then.
#[derive(Debug, Default)]
struct Devices {
    looked: Option<Instant>,
}

impl Devices {
    const LOOK_EVERY: Duration = Duration::from_millis(500);

    fn is_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= Self::LOOK_EVERY)
    }

    fn look(&mut self, proc_root: &Path) -> Vec<Device> {
        self.looked = Some(Instant::now());
        devices(proc_root, Path::new("/dev"))
    }
}

/// The kernel side tells the innermost cgroups. Only user space can read all names, in every hierarchy; a process that ended
/// meanwhile has lost its own.
fn fill_containers(batch: &mut Batch) {
    for (_, process) in batch.processes.iter_mut().chain(&mut batch.first_calls) {
        if process.change != ProcessChange::Exit && process.container.is_none() {
            process.container = container_of(Path::new(PROC), process.tgid.0).map(Arc::from);
        }
    }
}

/// Says which files could not be looked at because their file systems do not answer.
fn note_stalls() {
    for Stall { path, kind } in take_stalls() {
        let said = match kind {
            StallKind::Silent => "does not answer: skipped until it does",
            StallKind::Slow => "takes too long to answer: skipped for half a minute",
            StallKind::Over => "answers again",
        };
        note!("gpuprobe: {}: its file system {said}", printable(&path.to_string_lossy()));
    }
}

/// The capture that the flags ask for.
pub(crate) fn config(args: &AttachArgs) -> CaptureConfig {
    let mut config = CaptureConfig { tier: args.attach, ..CaptureConfig::default() };
    if let Some(mebibytes) = args.buffer {
        config.ring_bytes = mebibytes.next_power_of_two() << 20;
    }
    config.driver = !args.kernel.is_empty();
    config.hooks.clone_from(&args.chosen.functions);
    config.tracepoints.clone_from(&args.chosen.tracepoints);
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
        read_files_by(reader::starter(config.hold)).context("cannot start the process that reads files")?;
        let selection = selection.on(capture.tier());
        if selection.is_few() {
            let others = if matches!(selection, Selection::Driver { .. }) {
                "--memleak, --cudatrace and --bandwidth-util take all of theirs"
            } else {
                "-e names others"
            };
            note!("gpuprobe: attaching by perf, so only the most telling functions are traced ({others})");
        }
        let mut probes = Self {
            capture,
            inspector: Inspector::new(),
            wants_runtime: selection.takes_any(Api::Runtime),
            selection,
            hooks: Arc::default(),
            not_in_kernel: Vec::new(),
            collect,
            considered: HashSet::new(),
            stalled: HashMap::new(),
            beside: HashSet::new(),
            named: HashSet::new(),
            quota: (!config.only_targets).then(Quota::default),
            attaches: 0,
            asked_for: 0,
            skips: Skips::default(),
            aside: false,
            devices: config.driver.then(Devices::default),
            budget: None,
            verbose,
        };
        if let Some(devices) = &mut probes.devices {
            let found = devices.look(Path::new(PROC));
            probes.capture.attach_driver(&found, collect)?;
            probes.attach_unified();
            probes.tell_release();
        }
        probes.tell(|| format!("attaching by {}", probes.capture.tier()));
        if let Some(way) = probes.capture.xid_way() {
            probes.tell(|| format!("errors of GPUs (XIDs): {way}"));
        }
        let (told, skipped) = kernel::attach(&mut probes.capture, config, collect)?;
        told.into_iter().for_each(|told| probes.tell(|| told));
        probes.skip_all(&skipped);
        probes.not_in_kernel = skipped;
        Ok(probes)
    }

    /// Tells whose names the driver's commands have, where that is not the branch of the driver that is loaded.
    fn tell_release(&self) {
        let Some(loaded) = driver_version() else { return };
        let version = Version::parse(&loaded);
        if version.is_of_another_branch(&loaded) {
            note!("gpuprobe: driver {}: {}", printable(&loaded), version.told());
        } else {
            self.tell(|| format!("driver {loaded}: {}", version.told()));
        }
    }

    /// Counts faults and migrations of unified memory, where the driver has any.
    fn attach_unified(&mut self) {
        match self.capture.attach_unified() {
            Some(Ok(tier)) => {
                self.tell(|| format!("faults and migrations of unified memory by {}", tier.as_str()))
            }
            Some(Err(error)) => {
                let reason =
                    format!("faults and migrations are not counted: {error}; `gpuprobe doctor` says more");
                self.skip(&Skipped::function(Path::new("unified memory"), reason));
            }
            None => {}
        }
    }

    /// Keeps what probes take of each process within this budget, for which [`CaptureConfig::apart`] was asked for.
    pub(crate) fn with_budget(self, budget: Option<KeptBudget>) -> Self {
        Self { budget, ..self }
    }

    /// Probes these as well, wherever they are found.
    pub(crate) fn with_hooks(mut self, hooks: Arc<Hooks>) -> Self {
        self.inspector = Inspector::with_hooks(Arc::clone(&hooks));
        self.hooks = hooks;
        self
    }

    /// Tells which hooks have found nothing yet, and what is not probed in the kernel.
    pub(crate) fn note_unused_hooks(&self) {
        // it was told already where everything is
        for skipped in self.not_in_kernel.iter().filter(|_| !self.verbose) {
            note!("gpuprobe: {}", skips::line(skipped));
        }
        for (_, why) in why_unused(&self.hooks, self.inspector.hooked_files()) {
            note!("gpuprobe: {}", printable(&why));
        }
    }

    /// The same at the end, among what could not be probed.
    pub(crate) fn skip_unused_hooks(&mut self) {
        for (place, why) in why_unused(&self.hooks, self.inspector.hooked_files()) {
            self.skip(&Skipped::function(Path::new(&place), why));
        }
    }

    /// The row of a library's function, if it is to be probed. What a hook names exactly is the hook's.
    fn function(&self, library: &Library, name: &str) -> Option<FunctionId> {
        let file = library.path.file_name().unwrap_or_default().to_string_lossy();
        match library.kind {
            Api::Hook => self.hooks.function(&file, name).filter(|id| self.selection.takes_id(*id)),
            _ if self.hooks.name_exactly(&file, name) => None,
            _ => self.selection.function(library, name),
        }
    }

    /// What the probes of a function do.
    pub(crate) fn collect(&self, id: FunctionId) -> Collect {
        self.selection.collect(id, self.collect)
    }

    /// A note for `--verbose`. There are names in it that others chose.
    fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            note!("gpuprobe: {}", printable(&text()));
        }
    }

    /// Takes what the kernel side has sent, with the containers of processes filled in.
    pub(crate) fn take(&mut self) -> Result<Batch, CaptureError> {
        if let Some(devices) = self.devices.as_mut().filter(|devices| devices.is_due()) {
            let found = devices.look(Path::new(PROC));
            self.capture.tell_devices(&found)?;
        }
        note_stalls();
        let mut batch = self.capture.take()?;
        fill_containers(&mut batch);
        fill_users(&mut batch.xids, Path::new(PROC));
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
        scan.libraries.iter().any(|l| !self.considered.contains(&(l.id, l.kind)))
    }

    /// Probes what a process has mapped; tells how many libraries were new.
    pub(crate) fn attach_process(&mut self, tgid: Tgid) -> Result<usize, DiscoverError> {
        let scan = self.inspector.new_of_pid(Path::new(PROC), tgid.0)?;
        let new = self.attach_scan(scan);
        if !new.is_gone {
            return Ok(new.libraries);
        }
        // the process has ended, which the second look tells, or its library has lost its name
        self.inspector.forget(tgid.0);
        let scan = self.inspector.new_of_pid(Path::new(PROC), tgid.0)?;
        Ok(new.libraries + self.attach_scan(scan).libraries)
    }

    /// Whether a process had a file mapped when it was last looked at.
    pub(crate) fn has_mapped(&self, mapped: &Mapped) -> bool {
        self.inspector.has_mapped(mapped.tgid.0, mapped.device, mapped.inode)
    }

    /// Whether what a process mapped is a library with probes in it. Only the number of the inode and the name tell:
    /// a path of another mount namespace cannot be looked at, and overlays have devices of their own.
    pub(crate) fn is_probed(&self, mapped: &Mapped) -> bool {
        let is_it =
            |a: &Attached| a.id.inode == mapped.inode && a.path.file_name() == mapped.path.file_name();
        self.capture.attached().any(is_it)
    }

    /// Whether a process mapped a library before its calls were observed: some of them may be missing.
    pub(crate) fn was_mapped_early(&self, mapped: &Mapped) -> bool {
        let is_it = |a: &&Attached| {
            a.id.inode == mapped.inode
                && a.path.file_name() == mapped.path.file_name()
                && !self.beside.contains(&a.id)
        };
        let is_early = |a: &Attached| a.observed_since_ns.is_some_and(|since| mapped.at_ns < since);
        self.capture.attached().filter(is_it).any(is_early)
    }

    /// Whether what a process mapped has the name of a library that has something to probe.
    pub(crate) fn is_telling(&self, mapped: &Mapped) -> bool {
        self.inspector.is_telling(&mapped.path)
    }

    /// Probes one file. It must have something to probe.
    pub(crate) fn attach_file(&mut self, path: &Path) -> Result<()> {
        let real = canonical(path).with_context(|| format!("cannot open {}", path.display()))?;
        let scan =
            self.inspector.inspect(&real, &real).with_context(|| format!("nothing to probe: {GIVE}"))?;
        if scan.libraries.is_empty() {
            match scan.skipped.first() {
                Some(skipped) => bail!("{}: {GIVE}", skips::line(skipped)),
                None => bail!("{} has no CUDA functions: {GIVE}", path.display()),
            }
        }
        self.named.extend(scan.libraries.iter().map(|l| l.id));
        self.attach_scan(scan);
        Ok(())
    }

    /// Probes whatever a file of our own mount namespace has to probe; tells how many libraries were new.
    pub(crate) fn attach_path(&mut self, path: &Path) -> Result<usize, DiscoverError> {
        let scan = self.inspector.inspect(path, path)?;
        Ok(self.attach_scan(scan).libraries)
    }

    /// Probes every library that can be found on the host; tells which processes had mapped one before.
    pub(crate) fn attach_host(&mut self) -> HashSet<Tgid> {
        let scan = self.inspector.of_host(Path::new(PROC), &HostPaths::default());
        self.attach_scan(scan).late
    }

    /// The same for some processes that may come to use what others do. Of files that cannot be probed nothing is told
    /// until one of these processes has mapped them.
    pub(crate) fn attach_host_aside(&mut self) {
        self.aside = true;
        self.attach_host();
        self.aside = false;
        let attached: HashSet<_> = self.capture.attached().map(|a| a.id).collect();
        self.considered.retain(|(id, _)| attached.contains(id));
    }

    /// Holds processes started with this program's loader until their libraries are probed.
    pub(crate) fn attach_loader_of(&mut self, tgid: Tgid) {
        match loader_of(Path::new(PROC), tgid.0) {
            Ok(Some(loader)) => {
                if let Err(error) = self.capture.attach_loader(&loader) {
                    let (cause, reason) = (SkipCause::Refused, error.to_string());
                    self.skip(&Skipped::file(&loader.path, Some(loader.id), cause, reason));
                }
            }
            Ok(None) => self.tell(|| format!("process {tgid} has no dynamic loader")),
            Err(DiscoverError::NoSuchProcess { .. }) => {}
            Err(error) => {
                let process = PathBuf::from(format!("process {tgid}"));
                self.skip(&Skipped::file(&process, None, SkipCause::Unreadable, error.to_string()));
            }
        }
    }

    /// Return probes take more care of a process that copies stacks. Without room for the mark its calls are probed as
    /// those of others are.
    pub(super) fn mark_stack_copier(&mut self, tgid: Tgid) {
        if let Err(error) = self.capture.add_stack_copier(tgid) {
            self.tell(|| format!("process {tgid}: {error}"));
        }
    }

    /// Looks at the name of a file that a process has just mapped, whether it was mapped by others before or not.
    pub(crate) fn note_mapping(&mut self, mapped: &Mapped) {
        if copies_stacks(&mapped.path) {
            self.mark_stack_copier(mapped.tgid);
        }
    }

    fn skip_all(&mut self, skipped: &[Skipped]) {
        skipped.iter().for_each(|skipped| self.skip(skipped));
    }

    pub(crate) fn skip(&mut self, skipped: &Skipped) {
        // who does not ask for the runtime misses nothing of it
        if skipped.cause == Some(SkipCause::HiddenRuntime) && !self.wants_runtime {
            return;
        }
        // what is told without a cause is a function of a library that is probed
        if self.aside && skipped.cause.is_some() {
            return;
        }
        if let Some(line) = self.skips.add(skipped) {
            self.tell(|| format!("skipped {line}"));
        }
    }
}
