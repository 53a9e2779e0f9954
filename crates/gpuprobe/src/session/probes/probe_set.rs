//! All probes of a session: finds the files of a process or of the host, selects functions and attaches probes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_capture::{
    Attached, Batch, Capture, CaptureConfig, CaptureError, Collect, Ending, Mapped, kmod_version,
};
use gpuprobe_discover::{
    Device, DiscoverError, FileId, HostPaths, Inspector, Library, ProcessMaps, SkipCause, Skipped, Stall,
    StallKind, canonical, container_of, copies_stacks, devices, gpu_processes, loader_of, read_files_by,
    take_stalls,
};
use gpuprobe_event::driver::Version;
use gpuprobe_event::{Api, FunctionId, Hooks, Losses, ProcessChange, Tgid, catalogue};
use gpuprobe_output::units::printable;

use super::hook_files::unused_hooks;
use super::probe_budget::ProbeBudget;
use super::selection::Selection;
use super::skips::{self, Skips};
use super::tensor_holders::fill_holders;
use super::user_quota::UserQuota;
use super::xid_users::fill_users;
use super::{helper_commands, linux_hooks};
use crate::cli::{AttachArgs, GraphTimes};
use crate::session::gpu_time::gpu_times::{GpuTimes, Schedule};
use crate::terminal::notes::note;

pub(super) const PROC: &str = "/proc";
const GIVE: &str = "give a libcuda, a libcudart or a program with CUDA linked in";

/// Everything that is probed, and what was skipped.
#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) capture: Capture,
    pub(super) inspector: Inspector,
    pub(super) selection: Selection,
    hooks: Arc<Hooks>,
    /// Requested Linux kernel functions and tracepoints that are not probed.
    skipped_linux_hooks: Vec<Skipped>,
    pub(super) collect: Collect,
    /// Libraries that were examined, whether they have functions to probe or not.
    pub(super) considered: HashSet<(FileId, Api)>,
    /// File systems that took too long when one of their libraries was probed, by device.
    pub(super) stalled: HashMap<u64, Instant>,
    /// Probed libraries without requested functions: they are probed for state or for failures only, so calls before
    /// the attach are not reported as lost.
    pub(super) auxiliary: HashSet<FileId>,
    /// Files that the user named. They stay probed.
    pub(super) named: HashSet<FileId>,
    /// The number of probed libraries per user; `None` if only given processes are observed.
    pub(super) quota: Option<UserQuota>,
    /// Incremented whenever observation of new libraries starts.
    pub(crate) attaches: u64,
    /// Whether the functions by which frameworks report tensors are probed.
    pub(super) wants_tensors: bool,
    /// Whether functions of the CUDA runtime are selected.
    wants_runtime: bool,
    /// Probed functions that were requested, not counting those probed only for state.
    pub(crate) requested: usize,
    pub(crate) skips: Skips,
    /// Do not report files that cannot be probed: no observed process uses them yet.
    suppress_skips: bool,
    /// Device files of the NVIDIA kernel module, with `--driver`.
    devices: Option<Devices>,
    /// With `--budget`.
    pub(crate) budget: Option<ProbeBudget>,
    /// With `--gpu-time`.
    gpu_times: Option<GpuTimes>,
    pub(crate) verbose: bool,
}

/// Finds the device files of the NVIDIA kernel module. nvidia-uvm is loaded, and gets its device number, when it is
/// first needed.
#[derive(Debug, Default)]
struct Devices {
    scanned_at: Option<Instant>,
}

impl Devices {
    const SCAN_EVERY: Duration = Duration::from_millis(500);

    fn is_due(&self) -> bool {
        self.scanned_at.is_none_or(|scanned_at| scanned_at.elapsed() >= Self::SCAN_EVERY)
    }

    fn scan(&mut self, proc_root: &Path) -> Vec<Device> {
        self.scanned_at = Some(Instant::now());
        devices(proc_root, Path::new("/dev"))
    }
}

/// The BPF programs report the innermost cgroup. User space can read the names of all hierarchies, unless the process
/// has exited meanwhile.
fn fill_containers(batch: &mut Batch) {
    for (_, process) in batch.processes.iter_mut().chain(&mut batch.first_calls) {
        if process.change != ProcessChange::Exit && process.container.is_none() {
            process.container = container_of(Path::new(PROC), process.tgid.0).map(Arc::from);
        }
    }
}

/// Reports files that could not be read because their file systems do not respond.
fn note_stalls() {
    for Stall { path, kind } in take_stalls() {
        let state = match kind {
            StallKind::Silent => "does not answer: skipped until it does",
            StallKind::Slow => "takes too long to answer: skipped for half a minute",
            StallKind::Recovered => "answers again",
        };
        note!("gpuprobe: {}: its file system {state}", printable(&path.to_string_lossy()));
    }
}

/// The capture configuration of these options.
pub(crate) fn config(args: &AttachArgs) -> CaptureConfig {
    let mut config = CaptureConfig { tier: args.attach, ..CaptureConfig::default() };
    if let Some(bytes) = args.buffer {
        config.ring_bytes = bytes.next_power_of_two();
    }
    config.device_syscalls = !args.driver.is_empty();
    config.hooks.clone_from(&args.resolved.functions);
    config.tracepoints.clone_from(&args.resolved.tracepoints);
    config
}

impl Probes {
    pub(crate) fn new(
        config: &CaptureConfig,
        selection: Selection,
        collect: Collect,
        verbose: bool,
    ) -> Result<Self> {
        let capture = Capture::open(config, helper_commands::attach_helper(config.pause_targets))?;
        read_files_by(helper_commands::file_reader_starter(config.pause_targets))
            .context("cannot start the process that reads files")?;
        let selection = selection.on(capture.tier());
        if selection.is_reduced() {
            let others = if matches!(selection, Selection::Driver { .. }) {
                "--memleak, --cudatrace and --bandwidth-util select all of theirs"
            } else {
                "-e selects others"
            };
            note!("gpuprobe: attaching by perf, so only the most important functions are traced ({others})");
        }
        let mut probes = Self {
            capture,
            inspector: Inspector::new(),
            wants_tensors: config.tensors,
            wants_runtime: selection.selects_any(Api::Runtime),
            selection,
            hooks: Arc::default(),
            skipped_linux_hooks: Vec::new(),
            collect,
            considered: HashSet::new(),
            stalled: HashMap::new(),
            auxiliary: HashSet::new(),
            named: HashSet::new(),
            quota: (!config.only_targets).then(UserQuota::default),
            attaches: 0,
            requested: 0,
            skips: Skips::default(),
            suppress_skips: false,
            devices: config.device_syscalls.then(Devices::default),
            budget: None,
            gpu_times: None,
            verbose,
        };
        if let Some(devices) = &mut probes.devices {
            let found = devices.scan(Path::new(PROC));
            probes.capture.attach_device_calls(&found, collect)?;
            probes.attach_unified();
            probes.report_kmod_version();
        }
        probes.verbose_note(|| format!("attaching by {}", probes.capture.tier()));
        if let Some(way) = probes.capture.xid_source() {
            probes.verbose_note(|| format!("GPU errors (XIDs): {way}"));
        }
        let (lines, skipped) = linux_hooks::attach(&mut probes.capture, config, collect)?;
        lines.into_iter().for_each(|line| probes.verbose_note(|| line));
        probes.skip_all(&skipped);
        probes.skipped_linux_hooks = skipped;
        Ok(probes)
    }

    /// Reports which version the names of ioctl commands come from. Without `--verbose`, only if that is another
    /// branch than the loaded NVIDIA kernel module.
    fn report_kmod_version(&self) {
        let Some(loaded) = kmod_version() else { return };
        let version = Version::parse(&loaded);
        if version.is_of_another_branch(&loaded) {
            note!("gpuprobe: NVIDIA kernel module {}: {}", printable(&loaded), version.describe());
        } else {
            self.verbose_note(|| format!("NVIDIA kernel module {loaded}: {}", version.describe()));
        }
    }

    /// Counts faults and migrations of unified memory if nvidia-uvm is loaded.
    fn attach_unified(&mut self) {
        match self.capture.attach_unified() {
            Some(Ok(tier)) => {
                self.verbose_note(|| format!("faults and migrations of unified memory by {}", tier.as_str()))
            }
            Some(Err(error)) => {
                let reason =
                    format!("faults and migrations are not counted: {error}; `gpuprobe doctor` says more");
                self.skip(&Skipped::function(Path::new("unified memory"), reason));
            }
            None => {}
        }
    }

    /// Enforces this budget. It requires [`CaptureConfig::apart`].
    pub(crate) fn with_budget(self, budget: Option<ProbeBudget>) -> Self {
        Self { budget, ..self }
    }

    /// Collects GPU times.
    pub(crate) fn with_gpu_times(mut self, graphs: Option<GraphTimes>, schedule: Schedule) -> Self {
        self.gpu_times = graphs.map(|graphs| GpuTimes::new(graphs, schedule, self.capture.clock()));
        self
    }

    /// Also probes these functions, in all libraries that match.
    pub(crate) fn with_hooks(mut self, hooks: Arc<Hooks>) -> Self {
        self.inspector = Inspector::with_hooks(Arc::clone(&hooks));
        self.hooks = hooks;
        self
    }

    /// Reports hooks that match nothing yet, and Linux kernel functions that are not probed.
    pub(crate) fn note_unused_hooks(&self) {
        // --verbose has reported them already
        for skipped in self.skipped_linux_hooks.iter().filter(|_| !self.verbose) {
            note!("gpuprobe: {}", skips::line(skipped));
        }
        for (_, why) in unused_hooks(&self.hooks, self.inspector.hooked_files()) {
            note!("gpuprobe: {}", printable(&why));
        }
    }

    /// Adds hooks that matched nothing to the skips, at the end.
    pub(crate) fn skip_unused_hooks(&mut self) {
        for (location, why) in unused_hooks(&self.hooks, self.inspector.hooked_files()) {
            self.skip(&Skipped::function(Path::new(&location), why));
        }
    }

    /// The catalogue row of a function, if it is selected. A hook that names it exactly takes precedence over the
    /// catalogue.
    pub(super) fn function(&self, library: &Library, name: &str) -> Option<FunctionId> {
        let file = library.path.file_name().unwrap_or_default().to_string_lossy();
        match library.kind {
            Api::Hook => self.hooks.function(&file, name).filter(|id| self.selection.selects_id(*id)),
            _ if self.hooks.name_exactly(&file, name) => None,
            Api::Framework if !self.wants_tensors => None,
            Api::Framework => catalogue().lookup(library.kind, None, name).map(|f| f.id),
            _ => self.selection.function(library, name),
        }
    }

    /// What the probes of a function collect.
    pub(crate) fn collect(&self, id: FunctionId) -> Collect {
        self.selection.collect(id, self.collect)
    }

    /// A message for `--verbose`. It is escaped because other users choose file names.
    pub(super) fn verbose_note(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            note!("gpuprobe: {}", printable(&text()));
        }
    }

    /// Takes the records of the BPF programs, with containers and the users of failed GPUs filled in.
    pub(crate) fn take(&mut self) -> Result<Batch, CaptureError> {
        if let Some(devices) = self.devices.as_mut().filter(|devices| devices.is_due()) {
            let found = devices.scan(Path::new(PROC));
            self.capture.add_devices(&found)?;
        }
        note_stalls();
        let mut batch = self.capture.take()?;
        for (tgid, why) in self.capture.take_unsupported_python() {
            note!("gpuprobe: no Python frames of process {tgid}: {why}");
        }
        fill_containers(&mut batch);
        fill_users(&mut batch.xids, Path::new(PROC));
        fill_holders(&mut batch, &mut self.capture)?;
        if let Some(gpu_times) = &mut self.gpu_times {
            gpu_times.add_to(&mut batch, &mut self.capture)?;
        }
        Ok(batch)
    }

    /// Ends observation at one instant and removes every probe: see [`Capture::detach`].
    pub(crate) fn end_observation(&mut self) -> Result<Ending, CaptureError> {
        let reports =
            self.gpu_times.as_mut().map(|gpu_times| gpu_times.stop(&mut self.capture)).transpose()?;
        let mut ending = self.capture.detach()?;
        fill_holders(&mut ending.batch, &mut self.capture)?;
        if let Some(gpu_times) = &mut self.gpu_times {
            gpu_times.add_last(reports.unwrap_or_default(), &mut ending, &mut self.capture)?;
        }
        Ok(ending)
    }

    /// All losses since the start.
    pub(crate) fn losses(&self) -> Result<Losses, CaptureError> {
        let mut losses = self.capture.losses()?;
        let of_agents = self.gpu_times.as_ref().map(GpuTimes::losses).unwrap_or_default();
        of_agents.iter().for_each(|(cause, count)| losses.add(cause, count));
        Ok(losses)
    }

    /// Whether a process has mapped a library that was never considered. At its exec only the dynamic loader matters:
    /// the program is examined again when the loader has mapped its libraries.
    pub(crate) fn has_new_libraries(&mut self, tgid: Tgid, at_exec: bool) -> bool {
        let proc_root = Path::new(PROC);
        match loader_of(proc_root, tgid.0) {
            Ok(Some(loader)) if !self.capture.pauses_by(&loader) => return true,
            Ok(Some(_)) if at_exec => return false,
            _ => {}
        }
        if self.gpu_times.as_ref().is_some_and(|gpu_times| gpu_times.agents.has_new(tgid)) {
            return true;
        }
        let scan = self.inspector.of_pid(proc_root, tgid.0).unwrap_or_default();
        scan.libraries.iter().any(|l| !self.considered.contains(&(l.id, l.kind)))
    }

    /// Probes what a process has mapped. Returns the number of new libraries.
    pub(crate) fn attach_process(&mut self, tgid: Tgid) -> Result<usize, DiscoverError> {
        self.attach_maps(tgid, &ProcessMaps::read(Path::new(PROC), tgid.0)?)
    }

    /// Probes what a paused process has mapped, and prepares for its exit: that may come before its first stack is read.
    pub(crate) fn attach_paused(&mut self, tgid: Tgid) -> Result<(), DiscoverError> {
        let maps = ProcessMaps::read(Path::new(PROC), tgid.0)?;
        let attached = self.attach_maps(tgid, &maps);
        self.capture.observe_maps(tgid, &maps);
        attached.map(drop)
    }

    fn attach_maps(&mut self, tgid: Tgid, maps: &ProcessMaps) -> Result<usize, DiscoverError> {
        let libraries = self.attach_libraries_of(maps)?;
        // afterwards, so that the calls of all executions are seen
        if let Some(gpu_times) = &mut self.gpu_times {
            gpu_times.agents.consider(tgid, &mut self.capture);
        }
        Ok(libraries)
    }

    fn attach_libraries_of(&mut self, maps: &ProcessMaps) -> Result<usize, DiscoverError> {
        let scan = self.inspector.new_of_maps(maps)?;
        let new = self.attach_scan(scan);
        if !new.library_removed {
            return Ok(new.libraries);
        }
        // the process has exited, which the second scan reports, or its library has been renamed or deleted
        self.inspector.forget(maps.pid());
        let scan = self.inspector.new_of_pid(Path::new(PROC), maps.pid())?;
        Ok(new.libraries + self.attach_scan(scan).libraries)
    }

    /// Whether a process had a file mapped at its last scan.
    pub(crate) fn has_mapped(&self, mapped: &Mapped) -> bool {
        self.inspector.has_mapped(mapped.tgid.0, mapped.device, mapped.inode)
    }

    /// Whether a mapped file is a probed library. It is identified by inode number and file name: a path of another
    /// mount namespace cannot be opened, and overlay file systems have their own device numbers.
    pub(crate) fn is_probed(&self, mapped: &Mapped) -> bool {
        let is_it =
            |a: &Attached| a.id.inode == mapped.inode && a.path.file_name() == mapped.path.file_name();
        self.capture.attached().any(is_it)
    }

    /// Whether a process mapped a library before its probes were attached: some of its calls may be lost.
    pub(crate) fn was_mapped_early(&self, mapped: &Mapped) -> bool {
        let is_it = |a: &&Attached| {
            a.id.inode == mapped.inode
                && a.path.file_name() == mapped.path.file_name()
                && !self.auxiliary.contains(&a.id)
        };
        let is_early = |a: &Attached| a.observed_since_ns.is_some_and(|since| mapped.at_ns < since);
        self.capture.attached().filter(is_it).any(is_early)
    }

    /// Whether the name of a mapped file is that of a library with functions to probe.
    pub(crate) fn has_library_name(&self, mapped: &Mapped) -> bool {
        self.inspector.may_have_targets(&mapped.path)
    }

    /// Probes one file. It is an error if it has no functions to probe.
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

    /// Probes a file of gpuprobe's own mount namespace. Returns the number of new libraries.
    pub(crate) fn attach_path(&mut self, path: &Path) -> Result<usize, DiscoverError> {
        let scan = self.inspector.inspect(path, path)?;
        Ok(self.attach_scan(scan).libraries)
    }

    /// Probes all libraries of the host. Returns the processes that had already mapped one.
    pub(crate) fn attach_host(&mut self) -> HashSet<Tgid> {
        if let Some(gpu_times) = &mut self.gpu_times {
            for pid in gpu_processes(Path::new(PROC)) {
                gpu_times.agents.consider(Tgid(pid), &mut self.capture);
            }
        }
        let scan = self.inspector.of_host(Path::new(PROC), &HostPaths::default());
        let late = self.attach_scan(scan).late;
        // their next call may need a stack
        late.iter().for_each(|tgid| self.capture.observe(*tgid));
        late
    }

    /// Probes the installed libraries because the given processes may use them later. Files that cannot be probed are not
    /// reported until one of these processes has mapped them.
    pub(crate) fn attach_installed_quietly(&mut self) {
        self.suppress_skips = true;
        let scan = self.inspector.of_installed(&HostPaths::default());
        self.attach_scan(scan);
        self.suppress_skips = false;
        let attached: HashSet<_> = self.capture.attached().map(|a| a.id).collect();
        self.considered.retain(|(id, _)| attached.contains(id));
    }

    /// Pauses processes that start with the dynamic loader of this process until their libraries are probed.
    pub(crate) fn attach_loader_of(&mut self, tgid: Tgid) {
        match loader_of(Path::new(PROC), tgid.0) {
            Ok(Some(loader)) => {
                if let Err(error) = self.capture.attach_loader(&loader) {
                    let (cause, reason) = (SkipCause::Refused, error.to_string());
                    self.skip(&Skipped::file(&loader.path, Some(loader.id), cause, reason));
                }
            }
            Ok(None) => self.verbose_note(|| format!("process {tgid} has no dynamic loader")),
            Err(DiscoverError::NoSuchProcess { .. }) => {}
            Err(error) => {
                let process = PathBuf::from(format!("process {tgid}"));
                self.skip(&Skipped::file(&process, None, SkipCause::Unreadable, error.to_string()));
            }
        }
    }

    /// Marks a process that copies stacks: its return probes need extra care. If the table is full, its calls are
    /// probed like those of others.
    pub(super) fn mark_stack_copier(&mut self, tgid: Tgid) {
        if let Err(error) = self.capture.add_stack_copier(tgid) {
            self.verbose_note(|| format!("process {tgid}: {error}"));
        }
    }

    /// Checks whether a file that a process has just mapped copies stacks.
    pub(crate) fn check_mapping(&mut self, mapped: &Mapped) {
        if copies_stacks(&mapped.path) {
            self.mark_stack_copier(mapped.tgid);
        }
    }

    pub(super) fn skip_all(&mut self, skipped: &[Skipped]) {
        skipped.iter().for_each(|skipped| self.skip(skipped));
    }

    pub(crate) fn skip(&mut self, skipped: &Skipped) {
        // nothing is missing if no function of the runtime is selected
        if skipped.cause == Some(SkipCause::HiddenRuntime) && !self.wants_runtime {
            return;
        }
        // a skip without a cause is a function of a probed library
        if self.suppress_skips && skipped.cause.is_some() {
            return;
        }
        if let Some(line) = self.skips.add(skipped) {
            self.verbose_note(|| format!("skipped {line}"));
        }
    }
}
