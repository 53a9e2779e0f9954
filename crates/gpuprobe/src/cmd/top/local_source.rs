//! Readings of this host, by probes of its own.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gpuprobe_analysis::view::Reading;
use gpuprobe_analysis::{LiveMemory, Rules};
use gpuprobe_capture::{CaptureConfig, Collect, ThreadIterator, Tier, Urgent};
use gpuprobe_event::Tgid;
use gpuprobe_output::top::reading_of;

use super::Source;
use crate::cli::{RESCAN, TopArgs};
use crate::cmd::daemon::EVERYTHING;
use crate::session::follow::mapping_watch::Watch;
use crate::session::host::gpu_numbering::GpuNumbering;
use crate::session::host::gpu_state_poller::GpuStatePoller;
use crate::session::host::observer::Observer;
use crate::session::host::pending_calls::PendingCalls;
use crate::session::host::processes::Processes;
use crate::session::host::self_metrics::SelfMetricsReader;
use crate::session::probes::probe_budget::ProbeBudget;
use crate::session::probes::probe_set::Probes;
use crate::session::probes::selection::{RuntimeFailures, Selection};
use crate::session::signals::Signals;

/// Exited processes are listed for this long, and this many of them.
const LIST_EXITED: (u32, Duration) = (100, Duration::from_secs(30));
/// How long a call site may grow before it is judged.
const WARM_UP: Duration = Duration::from_secs(30);

pub(super) struct LocalSource {
    observer: Observer,
    watch: Watch,
    self_metrics: SelfMetricsReader,
}

impl LocalSource {
    pub(super) fn open(args: &TopArgs) -> Result<Self> {
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
        let mut source = Self { observer, watch, self_metrics: SelfMetricsReader::new(Path::new("/proc")) };
        source.attach(&args.pids)?;
        Ok(source)
    }

    fn attach(&mut self, pids: &[u32]) -> Result<()> {
        let probes = &mut self.observer.probes;
        for pid in pids {
            probes.attach_process(Tgid(*pid)).with_context(|| format!("cannot watch process {pid}"))?;
            probes.capture.add_target(Tgid(*pid))?;
        }
        let late = probes.attach_host();
        // calls before the start are no losses of a view that has just begun
        drop(late);
        Ok(())
    }
}

impl Source for LocalSource {
    fn wait(&mut self, signals: &Signals, keys: Option<io::Stdin>, most: Duration) -> Result<()> {
        let mut others = self.watch.fds();
        others.push(signals.fd());
        others.extend(keys.as_ref().map(AsFd::as_fd));
        // every allocation from an unknown call site sends its stack, until user space has registered the site
        let urgent = Urgent::begin();
        let due = self.observer.due().map_or(most, |due| due.min(most));
        self.observer.probes.capture.wait(&others, due);
        let batch = self.observer.probes.take()?;
        drop(urgent);
        self.observer.take(&batch)?;
        self.watch.rescan_if_due(&mut self.observer.probes);
        self.observer.probes.enforce_budget_by_counters()
    }

    fn readings(&mut self) -> Result<Vec<(usize, Reading)>> {
        self.observer.processes.forget_old(self.observer.probes.capture.clock().elapsed_ns());
        self.observer.sample()?;
        let mut snapshot = self.observer.snapshot(self.watch.losses(), &[])?;
        snapshot.self_metrics = self.self_metrics.read();
        Ok(vec![(0, reading_of(&snapshot)?)])
    }

    fn hosts(&self) -> &[String] {
        &[]
    }

    fn has_problem(&self, _host: usize) -> bool {
        false
    }

    fn problem(&self) -> Option<String> {
        None
    }
}
