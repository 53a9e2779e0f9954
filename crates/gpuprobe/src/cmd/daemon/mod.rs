//! `gpuprobe daemon`: counts the calls of every CUDA process of the host in BPF programs, and serves metrics.

mod otlp;
mod reload;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use gpuprobe_analysis::gpu_ops::cuda_kernel_series::NAME_TIMEOUT_NS;
use gpuprobe_analysis::{LiveMemory, LiveTensors, Rules};
use gpuprobe_capture::{
    CaptureConfig, Collect, NvmlLoader, ThreadIterator, Tier, Urgent, drop_privileges,
    install_seccomp_filter, return_memory_early,
};
use gpuprobe_event::{Class, Tgid};
use gpuprobe_output::otlp::Push;
use gpuprobe_output::{
    Classic, Endpoint, HttpError, HttpSettings, Latest, OnRequest, Sections, ServerHandle,
};
use nix::sys::signal::Signal;

use crate::cli::daemon_settings::require_trusted;
use crate::cli::{DaemonArgs, GraphTimes, ResolvedHooks};
use crate::session::follow::mapping_watch::Watch;
use crate::session::follow::process_set::{ProcessSet, attach_given};
use crate::session::gpu_time::gpu_times::Schedule;
use crate::session::host::gpu_numbering::GpuNumbering;
use crate::session::host::gpu_state_poller::GpuStatePoller;
use crate::session::host::nvml_loader::nvml_loader;
use crate::session::host::observer::{MEMORY, Observer};
use crate::session::host::pending_calls::PendingCalls;
use crate::session::host::processes::Processes;
use crate::session::host::self_metrics::SelfMetricsReader;
use crate::session::on_demand::{OnDemand, RecorderProcess};
use crate::session::probes::linux_hooks;
use crate::session::probes::probe_budget::{MOST_LATE, ProbeBudget};
use crate::session::probes::probe_set::Probes;
use crate::session::probes::selection::{RuntimeFailures, Selection, pattern};
use crate::session::signals::{Arrived, Signals};
use crate::session::threads::stacks_service::{SeenByProbes, StacksService, StacksSources};
use crate::session::threads::thread_samples::OpenCalls;
use crate::terminal::notes::note;
use crate::terminal::stdout::Printer;

/// Minimum time between two rounds, so that a host that starts thousands of processes does not keep gpuprobe busy.
pub(crate) const REST: Duration = Duration::from_millis(10);

/// What is counted if no feature is given.
pub(crate) const EVERYTHING: &[Class] = &[
    Class::Alloc,
    Class::Free,
    Class::HostRegister,
    Class::HostUnregister,
    Class::Memcpy,
    Class::Memset,
    Class::Launch,
    Class::GraphLaunch,
    Class::Sync,
    Class::Vmm,
    Class::Context,
    Class::Module,
    Class::Comm,
];
/// The ring buffer carries no calls here, only stacks of new call sites and names of CUDA kernels. A program allocates
/// thousands of tensors while the first stacks are read.
const RING: u32 = 4 << 20;
const RING_WITH_TENSORS: u32 = 32 << 20;
const LAUNCHES: &[Class] = &[Class::Launch, Class::GraphLaunch];
const COPIES: &[Class] = &[Class::Memcpy, Class::Memset];

/// The functions to probe, of the features with these classes.
fn selection(args: &DaemonArgs, classes: Vec<Class>) -> Result<Selection> {
    let named = args.memleak || args.cudatrace || args.bandwidth_util;
    let entry_counted = args.calls_only.iter().map(|glob| pattern(glob)).collect::<Result<_>>()?;
    let failures = if args.runtime_failures { RuntimeFailures::WithMemory } else { RuntimeFailures::Rare };
    Ok(Selection::Driver { classes, named, few: false, failures, entry_counted })
}

pub(crate) fn run(args: &DaemonArgs) -> Result<u8> {
    // first of all: a service manager may send SIGHUP right after the start
    let signals = Signals::block()?;
    args.hooks.iter().try_for_each(|file| require_trusted(file))?;
    let resolved = linux_hooks::resolve_hooks(&args.driver, &args.hooks)?;
    return_memory_early();
    let (sections, classes) = features(args);
    let selection = selection(args, classes)?;
    let endpoint = open_endpoint(args).map_err(|error| match error {
        HttpError::Listen { .. } => Error::msg(format!("{error}: give another address with --metrics-addr")),
        error => error.into(),
    })?;
    let url = endpoint.url();
    let push = otlp::settings(args, &url)?;
    let config = capture_config(args, sections, &resolved);
    let budget =
        args.budget.map(|share| ProbeBudget::measured(share, &config, Collect::Count)).transpose()?;
    let probes = Probes::new(&config, selection, Collect::Count, args.verbose)?;
    let schedule = Schedule::Sampled { seconds: args.gpu_time.unwrap_or(0) };
    let graphs = args.gpu_time.map(|_| GraphTimes::Nodes);
    let probes = probes.with_hooks(resolved.hooks).with_budget(budget).with_gpu_times(graphs, schedule);
    let stacks = args.stacks.then(StacksSources::open).transpose()?;
    let declines_returns = config.samples_launch_returns() && probes.capture.tier() == Tier::Session;
    let pending = PendingCalls::new(declines_returns.then(ThreadIterator::new).transpose()?);
    let recorder = RecorderProcess::start(&args.on_demand, probes.capture.tier(), args.verbose)?;
    // before no program can be executed
    let nvml = match args.nvml.nvml == "off" {
        true => NvmlLoader::ThisProcess,
        false => nvml_loader().started(&args.nvml.nvml, args.refresh, true),
    };
    // before there are other threads: privileges are per thread
    drop_privileges(false).context("cannot give up privileges")?;
    // before data of other processes is read, and before foreign code (NVML) is loaded
    filter_system_calls(args.verbose)?;
    let latest = Latest::with_series(args.series());
    let stacks = stacks.map(|sources| StacksService::start(sources, latest.clone())).transpose()?;
    let push = push.map(|settings| Push::start(settings, latest.clone())).transpose()?;
    let on_demand = recorder.map(|process| OnDemand::start(process, &args.on_demand)).transpose()?;
    let mut daemon = Daemon {
        observer: observer(args, sections, probes, nvml)?
            .with_pending_calls(pending)
            .with_log_events(push.as_ref().map(Push::events)),
        signals,
        // before the host is scanned, so that no mapping is missed
        watch: Watch::start(args.rescan),
        followed: ProcessSet::new(&args.pids),
        args: args.clone(),
        latest,
        server: None,
        stacks,
        on_demand,
        push,
        self_metrics: SelfMetricsReader::new(Path::new("/proc")),
        shows_addresses: sections.memory && args.addresses,
        classic: Classic::new(sections, 0).with_addresses(args.addresses),
        printer: Printer::start().context("cannot start the display thread")?,
    };
    // from here on /readyz responds
    daemon.server = Some(endpoint.serve(daemon.latest.clone(), daemon.on_request())?);
    daemon.attach(args)?;
    daemon.observer.probes.note_unused_hooks();
    daemon.publish()?;
    daemon.classic.begin(&daemon.latest.get());
    note!("gpuprobe: metrics on {url}/metrics");
    daemon.run_until_signal()?;
    Ok(0)
}

fn filter_system_calls(verbose: bool) -> Result<()> {
    let is_filtered = install_seccomp_filter().context("cannot install the seccomp filter")?;
    if !is_filtered && verbose {
        note!(
            "gpuprobe: the Linux kernel has no seccomp filters: system calls that are not needed stay possible"
        );
    }
    Ok(())
}

fn observer(args: &DaemonArgs, sections: Sections, probes: Probes, nvml: NvmlLoader) -> Result<Observer> {
    let rules = Rules::after(args.warm_up);
    let live_memory = sections.memory.then(|| LiveMemory::new(rules, false));
    let tensors = args.tensors.then(|| LiveTensors::new(LiveMemory::new(rules, false)));
    let mut processes = Processes::new(args.max_exited).with_logs(&args.container_logs);
    processes.set_retention(args.max_exited, args.keep_exited);
    let gpus = GpuNumbering::new(&args.nvml.driver_folder, args.rescan);
    let only = (!args.pids.is_empty()).then(|| args.pids.iter().copied().map(Tgid).collect());
    let states = GpuStatePoller::start_with(nvml, &args.nvml, args.refresh, only, args.verbose)?;
    let observer = Observer::new(probes, processes, live_memory).with_tensors(tensors);
    let observer = if args.gpu_time.is_some() { observer.with_gpu_times() } else { observer };
    Ok(observer.with_gpus(gpus).with_states(states))
}

fn open_endpoint(args: &DaemonArgs) -> Result<Endpoint, HttpError> {
    if let Some(file) = &args.web_config {
        require_trusted(file).map_err(|error| HttpError::WebConfig(format!("web config {error:#}")))?;
    }
    Endpoint::open(HttpSettings {
        address: args.metrics_addr,
        web_config: args.web_config.clone(),
        report_problem: |text| note!("gpuprobe: {text}"),
    })
}

fn capture_config(args: &DaemonArgs, sections: Sections, resolved: &ResolvedHooks) -> CaptureConfig {
    CaptureConfig {
        tier: args.attach,
        only_targets: !args.pids.is_empty(),
        launches: sections.launches,
        // what Linux does inside a call is counted with the call, so its return must be probed
        sample_launch_returns: !args.all_launch_returns && args.driver.is_empty() && args.hooks.is_empty(),
        names: sections.launches,
        copies: sections.copies,
        device_syscalls: !args.driver.is_empty(),
        hooks: resolved.functions.clone(),
        tracepoints: resolved.tracepoints.clone(),
        detachable: args.budget.is_some(),
        entry_counts: !args.calls_only.is_empty(),
        failure_points: true,
        sites: sections.memory || args.tensors,
        tensors: args.tensors,
        gpu_time: args.gpu_time.is_some(),
        ring_bytes: if args.tensors { RING_WITH_TENSORS } else { RING },
        live_entries: args.max_allocations,
        count_entries: args.max_counters,
        process_entries: args.max_processes,
        launch_entries: args.max_kernels,
        ..CaptureConfig::default()
    }
}

/// What is shown, and the classes of functions for it. Without a feature, everything.
fn features(args: &DaemonArgs) -> (Sections, Vec<Class>) {
    let named = [(args.memleak, MEMORY), (args.cudatrace, LAUNCHES), (args.bandwidth_util, COPIES)];
    let classes: Vec<Class> =
        named.iter().filter(|(wanted, _)| *wanted).flat_map(|(_, classes)| *classes).copied().collect();
    if classes.is_empty() {
        return (Sections::ALL, EVERYTHING.to_vec());
    }
    let sections = Sections { memory: args.memleak, launches: args.cudatrace, copies: args.bandwidth_util };
    (sections, classes)
}

/// Whether a signal ends the daemon. SIGHUP from a closed terminal ends it; SIGHUP from a process means to read the
/// settings again.
fn ends(arrived: &Arrived) -> bool {
    match arrived.signal {
        Signal::SIGHUP => !arrived.from_process,
        signal => matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT),
    }
}

/// Launches are read this long before a snapshot if snapshots are further apart, so that launches without a name are
/// counted as unnamed in it and not only in the next one. It is a little longer than the wait for names.
const READ_LAUNCHES_BEFORE: Duration = Duration::from_nanos(NAME_TIMEOUT_NS + 500_000_000);

struct Daemon {
    /// With `--record-dir`. Declared first, so that a recording ends first.
    on_demand: Option<OnDemand>,
    observer: Observer,
    signals: Signals,
    watch: Watch,
    followed: ProcessSet,
    args: DaemonArgs,
    latest: Latest,
    server: Option<ServerHandle>,
    /// With `--stacks`.
    stacks: Option<StacksService>,
    /// With `--otlp`.
    push: Option<Push>,
    self_metrics: SelfMetricsReader,
    shows_addresses: bool,
    classic: Classic,
    printer: Printer,
}

impl Daemon {
    /// What clients of the endpoint may ask for.
    fn on_request(&self) -> OnRequest {
        OnRequest {
            stacks: self.stacks.as_ref().map(StacksService::source),
            recordings: self.on_demand.as_ref().map(OnDemand::source),
        }
    }

    fn attach(&mut self, args: &DaemonArgs) -> Result<()> {
        let Self { observer, watch, .. } = self;
        watch.during(|watch| -> Result<()> {
            for path in &args.paths {
                observer.probes.attach_file(path)?;
            }
            if args.pids.is_empty() {
                let late = observer.probes.attach_host();
                watch.count_late_attach(late);
            } else {
                attach_given(&args.pids, &mut observer.probes)?;
            }
            Ok(())
        })?;
        if self.observer.probes.capture.attached().next().is_none() {
            note!(
                "gpuprobe: no GPU library found yet: libraries are probed when processes start to use them"
            );
        }
        Ok(())
    }

    fn run_until_signal(&mut self) -> Result<()> {
        let start = Instant::now();
        let (mut published, mut displayed, mut has_read_launches) = (start, start, false);
        loop {
            let mut others = self.watch.fds();
            others.push(self.signals.fd());
            let read_launches_after = self.args.refresh.saturating_sub(READ_LAUNCHES_BEFORE);
            has_read_launches |= read_launches_after.is_zero();
            let next = if has_read_launches { self.args.refresh } else { read_launches_after };
            let snapshot_due = next.saturating_sub(published.elapsed());
            let due = self.observer.due().map_or(snapshot_due, |due| due.min(snapshot_due));
            // every allocation from an unknown call site sends its stack, until user space has registered the site
            let urgent = Urgent::begin();
            self.observer.probes.capture.wait(&others, due);
            let arrived = self.signals.take();
            if arrived.iter().any(ends) {
                return self.push_last();
            }
            if arrived.iter().any(|a| a.signal == Signal::SIGHUP) {
                self.reload();
            }
            if arrived.iter().any(|a| a.signal == Signal::SIGUSR1) {
                self.record_busiest();
            }
            let batch = self.observer.probes.take()?;
            drop(urgent);
            self.observer.take(&batch)?;
            self.followed.take(&batch);
            self.watch.probe_new(&self.followed, &mut self.observer.probes);
            self.observer.probes.enforce_budget_by_counters()?;
            if !has_read_launches && published.elapsed() >= read_launches_after {
                has_read_launches = true;
                self.observer.update_launches()?;
            }
            let is_late = published.elapsed() >= self.args.refresh + MOST_LATE;
            let can_publish = self.observer.probes.is_between_strata() || is_late;
            if published.elapsed() >= self.args.refresh && can_publish {
                (published, has_read_launches) = (Instant::now(), false);
                self.publish()?;
            }
            let display_every = self.args.display_interval;
            if !display_every.is_zero() && displayed.elapsed() >= display_every {
                displayed = Instant::now();
                self.display()?;
            }
            let rest = self.observer.probes.budget_due().map_or(REST, |due| due.min(REST));
            self.observer.probes.capture.rest(rest);
        }
    }

    /// SIGUSR1 asks for a recording.
    fn record_busiest(&self) {
        match &self.on_demand {
            Some(on_demand) => on_demand.record_busiest(),
            None => note!("gpuprobe: SIGUSR1 is ignored: give a directory with --record-dir to record at it"),
        }
    }

    /// What happened since the last snapshot is pushed at the end.
    fn push_last(&mut self) -> Result<()> {
        if self.push.is_some() { self.publish() } else { Ok(()) }
    }

    fn publish(&mut self) -> Result<()> {
        self.observer.processes.forget_old(self.observer.probes.capture.clock().elapsed_ns());
        self.observer.sample()?;
        let mut snapshot = self.observer.snapshot(self.watch.losses(), &[])?;
        snapshot.self_metrics = self.self_metrics.read();
        snapshot.pushed = self.push.as_ref().map(Push::counts);
        snapshot.recordings = self.on_demand.as_ref().map(OnDemand::counts);
        snapshot.summed_up = self.observer.processes.take_summed_up();
        if let Some(on_demand) = &mut self.on_demand {
            let is_limited = !self.args.pids.is_empty();
            let observed = is_limited.then(|| self.observer.probes.capture.targets()).transpose()?;
            on_demand.set_seen(&snapshot, observed);
        }
        self.latest.publish(snapshot, self.args.refresh);
        if let Some(stacks) = &self.stacks {
            let capture = &mut self.observer.probes.capture;
            let calls = capture.open_calls()?;
            let open = OpenCalls { calls, now_ns: capture.clock().elapsed_ns() };
            let processes = if self.args.pids.is_empty() { None } else { Some(capture.targets()?) };
            stacks.set_seen(SeenByProbes { processes, open });
        }
        Ok(())
    }

    /// Prints a display. Only here, and for the ages at suspected call sites, are single allocations read: there may
    /// be a million of them, and metrics need only their sums.
    fn display(&mut self) -> Result<()> {
        let text = if self.shows_addresses {
            // allocations of exited processes must not be shown
            let observer = &mut self.observer;
            observer.processes.release(&mut observer.probes.capture)?;
            let allocations = observer.probes.capture.allocations()?;
            self.classic.render(&observer.snapshot(self.watch.losses(), &allocations)?)
        } else {
            self.classic.render(&self.latest.get())
        };
        self.printer.print(text)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn of(words: &[&str]) -> (Sections, Vec<Class>) {
        features(&Cli::try_parse_from([&["gpuprobe"], words].concat()).unwrap().daemon)
    }

    #[test]
    fn several_features_select_the_classes_of_each() {
        assert_eq!(of(&["-v"]), (Sections::ALL, EVERYTHING.to_vec()));
        let (sections, classes) = of(&["--memleak", "--bandwidth-util"]);
        assert_eq!(sections, Sections { memory: true, launches: false, copies: true });
        assert_eq!(classes, [MEMORY, COPIES].concat());
        assert_eq!(of(&["--cudatrace"]).1, LAUNCHES);
    }
}
