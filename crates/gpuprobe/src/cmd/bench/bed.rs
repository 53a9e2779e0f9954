//! A copy of the library that is measured on, with the probes of one kind in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpuprobe_capture::bench::thread_cpu_ns;
use gpuprobe_capture::{Capture, CaptureConfig, Collect, Tier};
use gpuprobe_discover::{Inspector, Library, plan};
use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::trace::{Meta, Phases, Writer};
use gpuprobe_event::{FunctionId, LossCause, Tgid, catalogue};

use super::modes::{Prologue, Work, functions_with, prologues_with};
use crate::{builtin, guard};

/// The one whose calls are streamed.
pub(super) const STREAMED: &str = "cuStreamSynchronize";
/// Bytes of each copy that the program makes.
const COPY_BYTES: u64 = 4096;

/// Which probes are in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    Not,
    /// By programs that do nothing.
    Bare,
    /// Likewise, at the entry alone.
    BareEntry,
    /// As the daemon and the tracer do it.
    Plain,
    /// Calls are counted at the entry alone.
    Entry,
    /// As `run` records calls.
    ToFile,
    /// And where allocations come from.
    WithSites,
    /// As the daemon counts launches, and copies.
    WithLaunches,
    WithCopies,
    /// As it counts copies that nobody asked about: how many, and their bytes.
    WithBytes,
    /// Another program puts its own in.
    ByOther,
}

impl Probed {
    pub(super) const ALL: [Self; 11] = [
        Self::Not,
        Self::Bare,
        Self::BareEntry,
        Self::Plain,
        Self::Entry,
        Self::ToFile,
        Self::WithSites,
        Self::WithLaunches,
        Self::WithCopies,
        Self::WithBytes,
        Self::ByOther,
    ];

    /// Nothing where there are no probes of ours.
    fn config(self, tier: Option<Tier>) -> Option<CaptureConfig> {
        // as where one program is watched and others are not
        let config =
            CaptureConfig { tier, only_targets: true, follow_forks: true, ..CaptureConfig::default() };
        match self {
            Self::Not | Self::ByOther => None,
            Self::Bare => Some(CaptureConfig { bare: true, ..config }),
            Self::BareEntry => Some(CaptureConfig { bare: true, entry_only: true, ..config }),
            Self::Plain | Self::ToFile | Self::WithBytes => Some(config),
            Self::Entry => Some(CaptureConfig { tallies: true, ..config }),
            Self::WithSites => Some(CaptureConfig { sites: true, ..config }),
            Self::WithLaunches => Some(CaptureConfig { launches: true, names: true, ..config }),
            Self::WithCopies => Some(CaptureConfig { copies: true, ..config }),
        }
    }

    fn is_bare(self) -> bool {
        matches!(self, Self::Bare | Self::BareEntry)
    }
}

pub(super) struct Bed {
    probed: Probed,
    libraries: BTreeMap<Prologue, PathBuf>,
    capture: Option<Capture>,
    /// Where calls that come through the ring are written.
    file: Option<Writer<BufWriter<File>>>,
    /// Calls that came through the ring, and the CPU time that this took us.
    streamed: u64,
    streamed_ns: u64,
}

impl Bed {
    /// Each copy is a file of its own, so that no probe is in two of them. None has the name of a CUDA library: another
    /// gpuprobe that watches the host would put probes into it as well.
    pub(super) fn make(folder: &Path, probed: Probed, tier: Option<Tier>) -> Result<Self> {
        let mut libraries = BTreeMap::new();
        for prologue in prologues_with(probed) {
            let library = folder.join(format!("measured.{}.{}", probed as u8, prologue as u8));
            builtin::write(&library, prologue.library())?;
            libraries.insert(prologue, library);
        }
        let (streamed, streamed_ns) = (0, 0);
        let mut bed = Self { probed, libraries, capture: None, file: None, streamed, streamed_ns };
        if probed == Probed::ToFile {
            let file = File::create(folder.join("calls.jsonl")).context("cannot make a file for calls")?;
            bed.file = Some(Writer::new(BufWriter::new(file), Phases::Together, &Meta::default())?);
        }
        if let Some(config) = probed.config(tier) {
            let mut capture = Capture::open(&config, guard::command(false))?;
            // the program that calls will be a child of ours
            capture.add_target(Tgid(std::process::id()))?;
            for (prologue, library) in &bed.libraries {
                attach(&mut capture, library, probed, &functions_with(probed, *prologue))?;
            }
            bed.capture = Some(capture);
        }
        Ok(bed)
    }

    pub(super) fn probed(&self) -> Probed {
        self.probed
    }

    pub(super) fn library(&self, prologue: Prologue) -> Result<&Path> {
        self.libraries.get(&prologue).map(PathBuf::as_path).context("a mode has no library")
    }

    pub(super) fn tier(&self) -> Option<Tier> {
        self.capture.as_ref().map(Capture::tier)
    }

    /// Waits for calls, where some are streamed, and throws them away or writes them to the file.
    pub(super) fn take(&mut self, wait: Duration) -> Result<()> {
        let Some(capture) = self.capture.as_mut().filter(|_| !self.probed.is_bare()) else { return Ok(()) };
        capture.wait(&[], wait);
        let begun = thread_cpu_ns();
        let batch = capture.take()?;
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

    /// CPU time that a call took us, where calls came through the ring.
    pub(super) fn reader_ns(&self, work: Work) -> Option<f64> {
        (work == Work::Stream && self.streamed > 0).then(|| self.streamed_ns as f64 / self.streamed as f64)
    }

    /// Everything that tells how many calls, or allocations and frees, the probes saw; nothing where they do not look.
    pub(super) fn seen(&mut self, work: Work) -> Result<Vec<u64>> {
        let Some(capture) = self.capture.as_mut().filter(|_| !self.probed.is_bare()) else {
            return Ok(Vec::new());
        };
        let (counts, done) = (capture.counts()?, capture.work()?);
        let calls = |name: &str| -> u64 {
            let is_it = |id| catalogue().get(id).is_some_and(|f| f.name == name);
            counts.iter().chain(&done.calls).filter(|row| is_it(row.function)).map(|row| row.calls).sum()
        };
        Ok(match work {
            Work::Other => Vec::new(),
            Work::Count => vec![calls("cuCtxSynchronize")],
            // what found the ring full was seen all the same
            Work::Stream => vec![self.streamed + capture.losses()?.get(LossCause::RingFull)],
            Work::Memory => {
                let mut seen = vec![calls("cuMemAlloc_v2"), calls("cuMemFree_v2")];
                let (rows, _) = capture.memory()?;
                seen.push(rows.iter().map(|row| row.allocations).sum());
                seen.push(rows.iter().map(|row| row.frees).sum());
                seen
            }
            Work::Launches => {
                let launched = done.launches.iter().map(|row| row.totals.launches).sum();
                vec![calls("cuLaunchKernel"), launched]
            }
            Work::Copies if self.probed == Probed::WithBytes => {
                let bytes: u64 = counts.iter().map(|row| row.bytes).sum();
                vec![calls("cuMemcpyHtoD_v2"), bytes / COPY_BYTES]
            }
            Work::Copies => {
                let from_pinned = done.copies.iter().map(|row| &row.totals).filter(|totals| {
                    totals.direction == CopyDirection::HostToDevice && totals.host == HostMemory::Pinned
                });
                vec![calls("cuMemcpyHtoD_v2"), from_pinned.map(|totals| totals.copies).sum()]
            }
        })
    }

    /// Takes the probes out.
    pub(super) fn end(&mut self) -> Result<()> {
        if let Some(capture) = &mut self.capture {
            capture.detach()?;
            capture.dismiss();
        }
        Ok(())
    }
}

fn attach(capture: &mut Capture, library: &Path, probed: Probed, functions: &BTreeSet<&str>) -> Result<()> {
    let scan = Inspector::new().inspect(Path::new("libcuda.so.1"), library)?;
    let id = |library: &Library, name: &str| {
        let function = catalogue().lookup(library.kind, library.cuda_major, name);
        function.filter(|f| functions.contains(f.name)).map(|f| f.id)
    };
    let (plan, _) = plan(&scan.libraries, &id);
    let collect = |id: FunctionId| {
        let is_streamed = catalogue().get(id).is_some_and(|f| f.name == STREAMED);
        match probed {
            Probed::Entry => Collect::Entries,
            _ if is_streamed => Collect::Stream,
            _ => Collect::Count,
        }
    };
    let target = plan.targets.first().context("the built-in library has nothing to probe")?;
    let attached = capture.attach(target, &collect)?;
    let is_whole = attached.skipped.is_empty() && target.functions.len() == functions.len();
    ensure!(is_whole, "not every function of the built-in library can be probed here");
    capture.start_observing()?;
    Ok(())
}
