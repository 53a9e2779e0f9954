//! What is known of all watched processes at a moment: the kernel's counters with names to them. Whoever shows that, once
//! or again and again, for people or as metrics, takes it from here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gpuprobe_analysis::{Holdings, Inputs, LibraryProbes, MemoryReport, ProcessPlaces, Rules, Snapshot};
use gpuprobe_capture::{Batch, Capture};
use gpuprobe_event::counters::Allocation;
use gpuprobe_event::{Class, LossCause, Losses, SiteId};

use crate::budget::KeptBudget;
use crate::gpus::Gpus;
use crate::probes::Probes;
use crate::processes::Processes;
use crate::states::States;
use crate::xids::XidCounts;

/// The functions that live memory is made of.
pub(crate) const MEMORY: &[Class] =
    &[Class::Alloc, Class::Free, Class::HostRegister, Class::HostUnregister, Class::Vmm];

#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) probes: Probes,
    pub(crate) processes: Processes,
    /// What is held from where, where that is wanted.
    holdings: Option<Holdings>,
    /// Sites that shall have names, the most urgent last.
    nameless: Vec<SiteId>,
    /// Which GPUs are meant, where that is wanted.
    gpus: Option<Gpus>,
    /// How it stands with them, where that is wanted.
    states: Option<States>,
    /// Errors of GPUs that the driver's tracepoint told of.
    xids: XidCounts,
}

impl Observer {
    /// Without `holdings`, memory is not what is looked at.
    pub(crate) fn new(probes: Probes, processes: Processes, holdings: Option<Holdings>) -> Self {
        let processes = if holdings.is_some() { processes } else { processes.without_memory() };
        Self {
            probes,
            processes,
            holdings,
            nameless: Vec::new(),
            gpus: None,
            states: None,
            xids: XidCounts::default(),
        }
    }

    /// Finds out which of the host's GPUs those of processes are.
    pub(crate) fn with_gpus(self, gpus: Gpus) -> Self {
        Self { gpus: Some(gpus), ..self }
    }

    /// Puts beside what processes do how it stands with the GPUs.
    pub(crate) fn with_states(self, states: Option<States>) -> Self {
        Self { states, ..self }
    }

    /// From now on, places are judged after so long.
    pub(crate) fn set_warm_up(&mut self, warm_up: Duration) {
        if let Some(holdings) = &mut self.holdings {
            holdings.judge_by(Rules::after(warm_up));
        }
    }

    /// From now on, the host is asked for its GPUs that often.
    pub(crate) fn look_every(&mut self, every: Duration) {
        if let Some(gpus) = &mut self.gpus {
            gpus.ask_every(every);
        }
    }

    /// From now on, NVML is read that often.
    pub(crate) fn read_states_every(&self, every: Duration) {
        if let Some(states) = &self.states {
            states.read_every(every);
        }
    }

    fn now_ns(&self) -> u64 {
        self.probes.capture.clock().elapsed_ns()
    }

    /// How long it can be before [`Observer::take`] is called again, if nothing happens.
    pub(crate) fn due(&self) -> Option<Duration> {
        let naming = (!self.nameless.is_empty()).then_some(Duration::ZERO);
        let budget = self.probes.budget.as_ref().map(KeptBudget::due);
        naming.or_else(|| self.processes.due().into_iter().chain(budget).min())
    }

    /// Takes in what happened to processes, and the rows of those that ended out of the kernel.
    pub(crate) fn take(&mut self, batch: &Batch) -> Result<()> {
        self.processes.take(batch, self.now_ns());
        batch.xids.iter().for_each(|xid| self.xids.add(xid));
        // with its rows goes what it held at its end
        let keeps_ended = self.holdings.as_ref().is_some_and(Holdings::keeps_ended);
        if keeps_ended && self.processes.takes_now() {
            self.sample()?;
            self.name_all();
            self.date()?;
        }
        // one at a time, and none while stacks come in: a name may take some milliseconds, and the ring must not fill up
        if batch.stacks == 0
            && let Some(site) = self.nameless.pop()
        {
            self.name(site);
        }
        self.processes.settle(&mut self.probes.capture)?;
        Ok(())
    }

    /// Looks at what is held from where.
    pub(crate) fn sample(&mut self) -> Result<()> {
        let now_ns = self.now_ns();
        if let Some(holdings) = &mut self.holdings {
            let rows = self.probes.capture.sites()?;
            holdings.feed(&rows, self.processes.infos(), now_ns);
            self.nameless = holdings.unnamed();
            self.nameless.reverse();
        }
        Ok(())
    }

    /// Asks for the way to a site.
    fn name(&mut self, site: SiteId) {
        if let Some(holdings) = &mut self.holdings {
            holdings.name(site, self.probes.capture.frames_of(site).to_vec());
        }
    }

    fn name_all(&mut self) {
        std::mem::take(&mut self.nameless).into_iter().for_each(|site| self.name(site));
    }

    /// Looks at how old what is held is. There may be a million allocations, so this is done for displays, and now and then
    /// where somebody is accused.
    fn date(&mut self) -> Result<()> {
        let Some(holdings) = &mut self.holdings else { return Ok(()) };
        let clock = self.probes.capture.clock();
        holdings.date(&self.probes.capture.allocations()?, |ns| clock.since_start(ns));
        Ok(())
    }

    /// Who holds what, from where, with everything named and dated.
    pub(crate) fn memory(&mut self, more_lost: &Losses) -> Result<MemoryReport> {
        self.sample()?;
        self.name_all();
        self.date()?;
        let (losses, now_ns) = (self.losses(more_lost)?, self.now_ns());
        Ok(self.holdings.as_mut().map(|holdings| holdings.report(&losses, now_ns)).unwrap_or_default())
    }

    /// What was lost, with what was lost elsewhere.
    pub(crate) fn losses(&self, more: &Losses) -> Result<Losses> {
        let mut losses = self.probes.capture.losses()?;
        more.iter().for_each(|(cause, count)| losses.add(cause, count));
        losses.add(LossCause::ForgottenEarly, self.processes.ended().forgotten_early());
        Ok(losses)
    }

    /// Looks at launches alone, so that those without a name have been waited for when the next snapshot is due.
    pub(crate) fn look_at_launches(&mut self) -> Result<()> {
        let launches = self.probes.capture.launches()?;
        self.processes.look_at_launches(&launches, self.now_ns());
        Ok(())
    }

    /// Everything as it stands, with these allocations.
    pub(crate) fn snapshot(&mut self, more_lost: &Losses, allocations: &[Allocation]) -> Result<Snapshot> {
        let (losses, now_ns) = (self.losses(more_lost)?, self.now_ns());
        let places = self.places(&losses, now_ns)?;
        let work = self.probes.capture.work()?;
        self.processes.look_at(&work, now_ns);
        let capture = &self.probes.capture;
        let (mut memory, mut contexts) = capture.memory()?;
        if let Some(gpus) = &mut self.gpus {
            gpus.learn(&capture.identities()?, &contexts, &mut self.processes);
        }
        // it may be followed all the same, for the addresses of copies
        if self.holdings.is_none() {
            memory.clear();
            contexts.clear();
        }
        // before the failures, so that none of their errors is without a name
        let calls = capture.counts()?;
        let mut snapshot = Snapshot::build(&Inputs {
            calls: &calls,
            failures: &capture.failures()?,
            memory: &memory,
            contexts: &contexts,
            gpus: self.gpus.as_ref().map(Gpus::host).unwrap_or_default(),
            allocations,
            places: &places,
            work: &work,
            processes: self.processes.infos(),
            ended: self.processes.ended(),
            losses: &losses,
            libraries: &libraries(capture),
            skipped: &self.probes.skips.counts(),
            unix_seconds: unix_seconds(),
        });
        if let Some(states) = &self.states {
            states.put_beside(&mut snapshot, self.holdings.is_some());
        }
        snapshot.budget = self.probes.budget_report();
        // NVML tells of them late, and of some in a burst not at all
        if self.probes.capture.xid_way().is_some() {
            snapshot.gpu_states.xids = self.xids.numbered(&snapshot.gpus);
        }
        Ok(snapshot)
    }

    /// What is held from where. Nobody is accused before it is known how old what it holds is.
    fn places(&mut self, losses: &Losses, now_ns: u64) -> Result<Vec<ProcessPlaces>> {
        let Some(holdings) = &mut self.holdings else { return Ok(Vec::new()) };
        let report = holdings.report(losses, now_ns);
        if !holdings.wants_dates(&report) {
            return Ok(report.processes);
        }
        self.date()?;
        Ok(self
            .holdings
            .as_mut()
            .map(|holdings| holdings.report(losses, now_ns).processes)
            .unwrap_or_default())
    }
}

pub(crate) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn libraries(capture: &Capture) -> Vec<LibraryProbes> {
    let library = |a: &gpuprobe_capture::Attached| LibraryProbes {
        path: a.path.display().to_string(),
        attached: a.functions as u64,
        skipped: a.skipped.len() as u64,
        state: "attached".to_owned(),
    };
    capture.attached().map(library).collect()
}
