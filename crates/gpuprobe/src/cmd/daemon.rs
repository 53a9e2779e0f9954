//! `gpuprobe daemon`: every CUDA process of the host, counted in the kernel.

mod reload;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use gpuprobe_analysis::gpu_ops::cuda_kernel_series::NAME_COMES_WITHIN_NS;
use gpuprobe_analysis::{Holdings, Rules};
use gpuprobe_capture::{
    CaptureConfig, Collect, Urgent, give_memory_back, give_up_privileges, refuse_system_calls,
};
use gpuprobe_event::{Class, Tgid};
use gpuprobe_output::{Classic, Endpoint, HttpError, HttpSettings, Latest, Sections, ServerHandle};
use nix::sys::signal::Signal;

use crate::budget::KeptBudget;
use crate::cli::DaemonArgs;
use crate::gpus::Gpus;
use crate::kernel::{self, Chosen};
use crate::notes::note;
use crate::observer::{MEMORY, Observer};
use crate::own::Own;
use crate::probes::Probes;
use crate::processes::Processes;
use crate::select::{Selection, pattern};
use crate::settings::require_trusted;
use crate::signals::{Arrived, Signals};
use crate::states::States;
use crate::stdout::Printer;
use crate::watch::Watch;

/// The shortest time between two looks, so that a host that starts thousands of processes does not keep us busy.
const REST: Duration = Duration::from_millis(10);

/// What is looked at where no feature is named.
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
];
const LAUNCHES: &[Class] = &[Class::Launch, Class::GraphLaunch];
const COPIES: &[Class] = &[Class::Memcpy, Class::Memset];

pub(crate) fn run(args: &DaemonArgs) -> Result<u8> {
    // from the first moment on: whoever starts a service may tell it to read its settings again at once
    let signals = Signals::hold_back()?;
    args.hooks.iter().try_for_each(|file| require_trusted(file))?;
    let chosen = kernel::chosen(&args.kernel, &args.hooks)?;
    give_memory_back();
    let (sections, classes) = features(args);
    let named = args.memleak || args.cudatrace || args.bandwidth_util;
    let tallied = args.calls_only.iter().map(|glob| pattern(glob)).collect::<Result<_>>()?;
    let selection = Selection::Driver { classes, named, few: false, failures: true, tallied };
    let endpoint = open_endpoint(args).map_err(|error| match error {
        HttpError::Listen { .. } => Error::msg(format!("{error}: give another address with --metrics-addr")),
        error => error.into(),
    })?;
    let url = endpoint.url();
    let config = capture_config(args, sections, &chosen);
    let budget = args.budget.map(|share| KeptBudget::measured(share, &config, Collect::Count)).transpose()?;
    let probes = Probes::new(&config, selection, Collect::Count, args.verbose)?;
    let probes = probes.with_hooks(chosen.hooks).with_budget(budget);
    // before there are other threads: each has its own
    give_up_privileges(false).context("cannot give up privileges")?;
    // before anything of other processes is read, and before code that is not ours is loaded
    let is_filtered = refuse_system_calls().context("cannot set a filter on our own system calls")?;
    if !is_filtered && args.verbose {
        note!(
            "gpuprobe: the Linux kernel has no seccomp filters: system calls that are not needed stay possible"
        );
    }
    let mut daemon = Daemon {
        observer: observer(args, sections, probes)?,
        signals,
        // before the host is looked at, so that nothing falls between the two
        watch: Watch::start(args.rescan),
        args: args.clone(),
        latest: Latest::default(),
        server: None,
        own: Own::new(Path::new("/proc")),
        shows_memory: sections.memory,
        classic: Classic::new(sections, 0),
        printer: Printer::start().context("cannot start the thread of the display")?,
    };
    // whether it is ready can be asked from here on
    daemon.server = Some(endpoint.serve(daemon.latest.clone())?);
    for pid in &args.pids {
        daemon.observer.probes.attach_process(Tgid(*pid))?;
        daemon.observer.probes.capture.add_target(Tgid(*pid))?;
    }
    for path in &args.paths {
        daemon.observer.probes.attach_file(path)?;
    }
    let late = daemon.observer.probes.attach_host();
    daemon.watch.count_late(late);
    if daemon.observer.probes.capture.attached().next().is_none() {
        note!("gpuprobe: no CUDA library found yet: they are probed as processes begin to use them");
    }
    daemon.observer.probes.note_unused_hooks();
    daemon.publish()?;
    daemon.classic.begin(&daemon.latest.get());
    note!("gpuprobe: metrics on {url}/metrics");
    daemon.until_told()?;
    Ok(0)
}

fn observer(args: &DaemonArgs, sections: Sections, probes: Probes) -> Result<Observer> {
    let holdings = sections.memory.then(|| Holdings::new(Rules::after(args.warm_up), false));
    let mut processes = Processes::new(args.max_ended).with_logs(&args.container_logs);
    processes.keep_ended(args.max_ended, args.keep_ended);
    let gpus = Gpus::new(&args.nvml.driver_folder, Duration::from_secs(args.rescan));
    let only = (!args.pids.is_empty()).then(|| args.pids.iter().copied().map(Tgid).collect());
    let states = States::start(&args.nvml, args.refresh, only, args.verbose)?;
    Ok(Observer::new(probes, processes, holdings).with_gpus(gpus).with_states(states))
}

fn open_endpoint(args: &DaemonArgs) -> Result<Endpoint, HttpError> {
    if let Some(file) = &args.web_config {
        require_trusted(file).map_err(|error| HttpError::WebConfig(format!("web config {error:#}")))?;
    }
    Endpoint::open(HttpSettings {
        address: args.metrics_addr,
        web_config: args.web_config.clone(),
        complain: |text| note!("gpuprobe: {text}"),
    })
}

fn capture_config(args: &DaemonArgs, sections: Sections, chosen: &Chosen) -> CaptureConfig {
    CaptureConfig {
        tier: args.attach,
        only_targets: !args.pids.is_empty(),
        launches: sections.launches,
        names: sections.launches,
        copies: sections.copies,
        driver: !args.kernel.is_empty(),
        hooks: chosen.functions.clone(),
        tracepoints: chosen.tracepoints.clone(),
        apart: args.budget.is_some(),
        tallies: !args.calls_only.is_empty(),
        // counting sends no records of calls, only stacks by ways that are not known yet, and names of kernels
        sites: sections.memory,
        ring_bytes: 4 << 20,
        live_entries: args.max_allocations,
        count_entries: args.max_counters,
        process_entries: args.max_processes,
        launch_entries: args.max_kernels,
        ..CaptureConfig::default()
    }
}

/// What is shown, and the functions that it takes. With no feature named, everything.
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

/// Whether a signal is to end the daemon. A terminal that goes away ends it; a process that says the same means that
/// the settings are to be read again.
fn ends(arrived: &Arrived) -> bool {
    match arrived.signal {
        Signal::SIGHUP => !arrived.from_process,
        signal => matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT),
    }
}

/// So long before a snapshot launches are looked at, where snapshots are further apart: those without a name are counted as
/// such in the snapshot then, and do not wait for the next. A little more than their names are waited for.
const LOOK_BEFORE: Duration = Duration::from_nanos(NAME_COMES_WITHIN_NS + 500_000_000);

struct Daemon {
    observer: Observer,
    signals: Signals,
    watch: Watch,
    /// Its settings.
    args: DaemonArgs,
    latest: Latest,
    server: Option<ServerHandle>,
    own: Own,
    shows_memory: bool,
    classic: Classic,
    printer: Printer,
}

impl Daemon {
    fn until_told(&mut self) -> Result<()> {
        let start = Instant::now();
        let (mut published, mut displayed, mut has_looked) = (start, start, false);
        loop {
            let mut others = self.watch.fds();
            others.push(self.signals.fd());
            let look_after = self.args.refresh.saturating_sub(LOOK_BEFORE);
            has_looked |= look_after.is_zero();
            let next = if has_looked { self.args.refresh } else { look_after };
            let snapshot_due = next.saturating_sub(published.elapsed());
            let due = self.observer.due().map_or(snapshot_due, |due| due.min(snapshot_due));
            // until ways that are not known have been learnt, every allocation by them sends its stack
            let urgent = Urgent::begin();
            self.observer.probes.capture.wait(&others, due);
            let arrived = self.signals.take();
            if arrived.iter().any(ends) {
                return Ok(());
            }
            if arrived.iter().any(|a| a.signal == Signal::SIGHUP) {
                self.reload();
            }
            let batch = self.observer.probes.take()?;
            drop(urgent);
            self.observer.take(&batch)?;
            self.watch.look(&mut self.observer.probes);
            self.observer.probes.keep_counted()?;
            if !has_looked && published.elapsed() >= look_after {
                has_looked = true;
                self.observer.look_at_launches()?;
            }
            if published.elapsed() >= self.args.refresh {
                (published, has_looked) = (Instant::now(), false);
                self.publish()?;
            }
            let display_every = Duration::from_secs(self.args.display_interval);
            if !display_every.is_zero() && displayed.elapsed() >= display_every {
                displayed = Instant::now();
                self.display()?;
            }
            self.observer.probes.capture.rest(REST);
        }
    }

    fn publish(&mut self) -> Result<()> {
        self.observer.processes.forget_old(self.observer.probes.capture.clock().elapsed_ns());
        self.observer.sample()?;
        let mut snapshot = self.observer.snapshot(self.watch.losses(), &[])?;
        snapshot.own = self.own.read();
        self.latest.publish(snapshot, self.args.refresh);
        Ok(())
    }

    /// Allocations are read here, and for the ages of what is accused: there may be a million of them, and metrics
    /// need only their sums.
    fn display(&mut self) -> Result<()> {
        let text = if self.shows_memory {
            // those of ended processes would be shown as somebody's
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
    fn features_named_together_take_the_functions_of_each_and_no_others() {
        assert_eq!(of(&["-v"]), (Sections::ALL, EVERYTHING.to_vec()));
        let (sections, classes) = of(&["--memleak", "--bandwidth-util"]);
        assert_eq!(sections, Sections { memory: true, launches: false, copies: true });
        assert_eq!(classes, [MEMORY, COPIES].concat());
        assert_eq!(of(&["--cudatrace"]).1, LAUNCHES);
    }
}
