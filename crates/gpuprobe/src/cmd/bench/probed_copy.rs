//! A copy of the measured library with one kind of probes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpuprobe_capture::{
    Capture, CaptureConfig, Collect, SeenCalls, Tier, Workload, measure_config, thread_cpu_ns,
};
use gpuprobe_discover::{Inspector, Library, plan};
use gpuprobe_event::trace::{Meta, Phases, Writer};
use gpuprobe_event::{FunctionId, Tgid, catalogue};

use super::modes::{Prologue, functions_with, prologues_with};
use crate::cmd::embedded;
use crate::session::probes::helper_commands;

/// The probes of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    Unprobed,
    /// Empty BPF programs.
    Empty,
    /// Empty BPF programs, at the entry only.
    EmptyEntry,
    /// Those of the daemon and of `trace`.
    Plain,
    /// Entry counts.
    Entry,
    /// Those of `run`, written to a file.
    ToFile,
    /// With call sites of allocations.
    WithSites,
    /// Those of the daemon for launches.
    WithLaunches,
    /// Those of the daemon with `--all-launch-returns`.
    WithLaunchReturns,
    /// Those of the daemon for copies.
    WithCopies,
    /// Those of the daemon if copies are not shown: only their number and bytes.
    WithBytes,
    /// Those of `run` for launches.
    Recorded,
    /// Those of `run --stack` for launches.
    RecordedWithSites,
    /// Another program attaches its own.
    ByOther,
}

impl ProbeKind {
    pub(super) const ALL: [Self; 14] = [
        Self::Unprobed,
        Self::Empty,
        Self::EmptyEntry,
        Self::Plain,
        Self::Entry,
        Self::ToFile,
        Self::WithSites,
        Self::WithLaunches,
        Self::WithLaunchReturns,
        Self::WithCopies,
        Self::WithBytes,
        Self::Recorded,
        Self::RecordedWithSites,
        Self::ByOther,
    ];

    /// `None` without probes of gpuprobe.
    fn config(self, tier: Option<Tier>) -> Option<CaptureConfig> {
        let config = measure_config(&CaptureConfig { tier, follow_forks: true, ..CaptureConfig::default() });
        match self {
            Self::Unprobed | Self::ByOther => None,
            Self::Empty => Some(CaptureConfig { bare: true, ..config }),
            Self::EmptyEntry => Some(CaptureConfig { bare: true, entry_only: true, ..config }),
            Self::Plain | Self::ToFile | Self::WithBytes => Some(config),
            Self::Entry => Some(CaptureConfig { entry_counts: true, ..config }),
            Self::WithSites => Some(CaptureConfig { sites: true, ..config }),
            Self::WithLaunches | Self::WithLaunchReturns => Some(CaptureConfig {
                launches: true,
                names: true,
                sample_launch_returns: self == Self::WithLaunches,
                ..config
            }),
            Self::WithCopies => Some(CaptureConfig { copies: true, ..config }),
            Self::Recorded | Self::RecordedWithSites => Some(CaptureConfig {
                call_sites: self == Self::RecordedWithSites,
                launches: true,
                names: true,
                rows: false,
                annotate_records: true,
                ..config
            }),
        }
    }

    fn is_empty_probe(self) -> bool {
        matches!(self, Self::Empty | Self::EmptyEntry)
    }
}

pub(super) struct ProbedCopy {
    kind: ProbeKind,
    libraries: BTreeMap<Prologue, PathBuf>,
    capture: Option<Capture>,
    /// Streamed calls are written to it.
    file: Option<Writer<BufWriter<File>>>,
    /// Streamed calls, and the CPU time that reading them took.
    streamed: u64,
    streamed_ns: u64,
}

impl ProbedCopy {
    /// Each copy is a separate file, so that its probes are in no other copy. None has the name of a CUDA library:
    /// another gpuprobe that observes the host would probe it as well.
    pub(super) fn create(folder: &Path, kind: ProbeKind, tier: Option<Tier>) -> Result<Self> {
        let mut libraries = BTreeMap::new();
        for prologue in prologues_with(kind) {
            let library = folder.join(format!("measured.{}.{}", kind as u8, prologue as u8));
            embedded::write(&library, prologue.library())?;
            libraries.insert(prologue, library);
        }
        let (streamed, streamed_ns) = (0, 0);
        let mut copy = Self { kind, libraries, capture: None, file: None, streamed, streamed_ns };
        if kind == ProbeKind::ToFile {
            let file = File::create(folder.join("calls.jsonl")).context("cannot create a file for calls")?;
            copy.file = Some(Writer::new(BufWriter::new(file), Phases::Together, &Meta::default())?);
        }
        if let Some(config) = kind.config(tier) {
            let mut capture = Capture::open(&config, helper_commands::attach_helper(false))?;
            // the calling program will be a child of this process
            capture.add_target(Tgid(std::process::id()))?;
            for (prologue, library) in &copy.libraries {
                attach(&mut capture, library, kind, &functions_with(kind, *prologue))?;
            }
            copy.capture = Some(capture);
        }
        Ok(copy)
    }

    pub(super) fn kind(&self) -> ProbeKind {
        self.kind
    }

    pub(super) fn library(&self, prologue: Prologue) -> Result<&Path> {
        self.libraries.get(&prologue).map(PathBuf::as_path).context("a mode has no library")
    }

    pub(super) fn tier(&self) -> Option<Tier> {
        self.capture.as_ref().map(Capture::tier)
    }

    /// Waits for streamed calls, and discards them or writes them to the file.
    pub(super) fn take(&mut self, wait: Duration) -> Result<()> {
        let Some(capture) = self.capture.as_mut().filter(|_| !self.kind.is_empty_probe()) else {
            return Ok(());
        };
        capture.wait(&[], wait);
        let begun = thread_cpu_ns();
        let batch = capture.take()?;
        // all of them are whole: no beginnings are streamed. To look at each would add to the measured time
        self.streamed += batch.calls.len() as u64;
        if let Some(file) = &mut self.file {
            for event in batch.into_events() {
                file.event(&event)?;
            }
            file.flush()?;
        }
        self.streamed_ns += thread_cpu_ns() - begun;
        Ok(())
    }

    /// CPU time for reading a streamed call.
    pub(super) fn reader_ns(&self, workload: Workload) -> Option<f64> {
        (workload == Workload::Stream && self.streamed > 0)
            .then(|| self.streamed_ns as f64 / self.streamed as f64)
    }

    /// All counters that must equal the number of calls; empty if the probes do not count.
    pub(super) fn seen(&mut self, workload: Workload) -> Result<Vec<u64>> {
        let Some(capture) = self.capture.as_mut().filter(|_| !self.kind.is_empty_probe()) else {
            return Ok(Vec::new());
        };
        Ok(SeenCalls::read(capture, self.streamed)?.counters(workload)?)
    }

    /// Detaches the probes.
    pub(super) fn end(&mut self) -> Result<()> {
        if let Some(capture) = &mut self.capture {
            capture.detach()?;
            capture.dismiss();
        }
        Ok(())
    }
}

fn attach(capture: &mut Capture, library: &Path, kind: ProbeKind, functions: &BTreeSet<&str>) -> Result<()> {
    let scan = Inspector::new().inspect(Path::new("libcuda.so.1"), library)?;
    let id = |library: &Library, name: &str| {
        let function = catalogue().lookup(library.kind, library.cuda_major, name);
        function.filter(|f| functions.contains(f.name)).map(|f| f.id)
    };
    let (plan, _) = plan(&scan.libraries, &id, &|_, _| None);
    let collect = |id: FunctionId| match kind {
        ProbeKind::Entry => Collect::EntryCount,
        ProbeKind::Recorded | ProbeKind::RecordedWithSites => Collect::Stream,
        _ if Workload::Stream.has(id) => Collect::Stream,
        _ => Collect::Count,
    };
    let target = plan.targets.first().context("the embedded library has no functions to probe")?;
    let attached = capture.attach(target, &collect)?;
    let is_whole = attached.skipped.is_empty() && target.functions.len() == functions.len();
    ensure!(is_whole, "not every function of the embedded library can be kind here");
    capture.start_observing()?;
    Ok(())
}
