//! Readings of this host, by probes of its own.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use gpuprobe_analysis::{LiveMemory, Rules};
use gpuprobe_capture::{CaptureConfig, Collect, ThreadIterator, Tier, Urgent};
use gpuprobe_event::Tgid;
use gpuprobe_output::top::reading_of;

use super::host_reader::{Answer, HostSource, Hosts};
use crate::cli::{RESCAN, TopArgs};
use crate::cmd::daemon::{EVERYTHING, REST};
use crate::session::follow::mapping_watch::Watch;
use crate::session::follow::process_set::{ProcessSet, attach_given};
use crate::session::host::gpu_numbering::GpuNumbering;
use crate::session::host::gpu_state_poller::GpuStatePoller;
use crate::session::host::observer::Observer;
use crate::session::host::pending_calls::PendingCalls;
use crate::session::host::processes::Processes;
use crate::session::host::self_metrics::SelfMetricsReader;
use crate::session::probes::probe_budget::ProbeBudget;
use crate::session::probes::probe_set::Probes;
use crate::session::probes::selection::{RuntimeFailures, Selection};

/// Exited processes are listed for this long, and this many of them.
const LIST_EXITED: (u32, Duration) = (100, Duration::from_secs(30));
/// How long a call site may grow before it is judged.
const WARM_UP: Duration = Duration::from_secs(30);

struct LocalSource {
    observer: Observer,
    watch: Watch,
    followed: ProcessSet,
    self_metrics: SelfMetricsReader,
}

/// Probes this host and starts to read it.
pub(super) fn open_this_host(args: &TopArgs) -> Result<Hosts> {
    let mut hosts = Hosts::none()?;
    let interval = args.interval;
    let args = args.clone();
    hosts.add(None, interval, move || LocalSource::open(&args))?;
    Ok(hosts)
}

impl LocalSource {
    fn open(args: &TopArgs) -> Result<Self> {
        let config = CaptureConfig {
            tier: args.attach,
            only_targets: !args.pids.is_empty(),
            launches: true,
            sample_launch_returns: true,
            names: true,
            copies: true,
            sites: true,
            detachable: args.budget.is_some(),
            ..CaptureConfig::default()
        };
        let selection = Selection::Driver {
            classes: EVERYTHING.to_vec(),
            named: false,
            few: false,
            failures: RuntimeFailures::Rare,
            entry_counted: Vec::new(),
        };
        let budget =
            args.budget.map(|share| ProbeBudget::measured(share, &config, Collect::Count)).transpose()?;
        let probes = Probes::new(&config, selection, Collect::Count, false)?.with_budget(budget);
        let declines_returns = probes.capture.tier() == Tier::Session;
        let pending = PendingCalls::new(declines_returns.then(ThreadIterator::new).transpose()?);
        let (most, listed_for) = LIST_EXITED;
        let mut processes = Processes::new(most);
        processes.set_retention(most, listed_for);
        let only = (!args.pids.is_empty()).then(|| args.pids.iter().copied().map(Tgid).collect());
        let states = GpuStatePoller::start(&args.nvml, args.interval, only, false)?;
        let observer = Observer::new(probes, processes, Some(LiveMemory::new(Rules::after(WARM_UP), false)))
            .with_gpus(GpuNumbering::new(&args.nvml.driver_folder, RESCAN))
            .with_states(states)
            .with_pending_calls(pending);
        // before the host is scanned, so that no mapping is missed
        let watch = Watch::start(RESCAN);
        let followed = ProcessSet::new(&args.pids);
        let self_metrics = SelfMetricsReader::new(Path::new("/proc"));
        let mut source = Self { observer, watch, followed, self_metrics };
        source.attach(&args.pids)?;
        Ok(source)
    }

    /// Calls before the start are no losses of a view that has just begun.
    fn attach(&mut self, pids: &[u32]) -> Result<()> {
        let Self { observer, watch, .. } = self;
        watch.during(|_| {
            if pids.is_empty() {
                observer.probes.attach_host();
                return Ok(());
            }
            attach_given(pids, &mut observer.probes)
        })
    }
}

impl HostSource for LocalSource {
    const HAS_PROBES: bool = true;

    fn read(&mut self) -> Result<Answer> {
        self.observer.processes.forget_old(self.observer.probes.capture.clock().elapsed_ns());
        self.observer.sample()?;
        let mut snapshot = self.observer.snapshot(self.watch.losses(), &[])?;
        snapshot.self_metrics = self.self_metrics.read();
        Ok(Ok(reading_of(&snapshot)?))
    }

    fn is_readable(&self) -> bool {
        self.observer.probes.is_between_strata()
    }

    fn wait(&mut self, stop: BorrowedFd<'_>, most: Duration) -> Result<()> {
        let mut others = self.watch.fds();
        others.push(stop);
        // every allocation from an unknown call site sends its stack, until user space has registered the site
        let urgent = Urgent::begin();
        let due = self.observer.due().map_or(most, |due| due.min(most));
        self.observer.probes.capture.wait(&others, due);
        let batch = self.observer.probes.take()?;
        drop(urgent);
        self.observer.take(&batch)?;
        self.followed.take(&batch);
        self.watch.probe_new(&self.followed, &mut self.observer.probes);
        self.observer.probes.enforce_budget_by_counters()?;
        let budget_due = self.observer.probes.budget_due();
        let rest = budget_due.into_iter().chain([most, REST]).min().unwrap_or_default();
        self.observer.probes.capture.rest(rest);
        Ok(())
    }
}
