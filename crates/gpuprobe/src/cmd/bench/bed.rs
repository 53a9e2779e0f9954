//! A copy of the library that is measured on, with the probes of one kind in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpuprobe_capture::{Capture, CaptureConfig, Collect, Tier};
use gpuprobe_discover::{Inspector, Library, plan};
use gpuprobe_event::counters::{CopyDirection, HostMemory};
use gpuprobe_event::{FunctionId, LossCause, catalogue};

use super::Work;
use crate::{builtin, guard};

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo/libbench.so"));
/// The one whose calls are streamed.
pub(super) const STREAMED: &str = "cuStreamSynchronize";

/// Which probes are in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    Not,
    /// By programs that do nothing.
    Bare,
    /// As the daemon and the tracer do it.
    Plain,
    /// And where allocations come from.
    WithSites,
    /// As the daemon counts launches, and copies.
    WithLaunches,
    WithCopies,
}

impl Probed {
    pub(super) const ALL: [Self; 6] =
        [Self::Not, Self::Bare, Self::Plain, Self::WithSites, Self::WithLaunches, Self::WithCopies];

    /// Nothing where there are no probes.
    fn config(self, tier: Option<Tier>) -> Option<CaptureConfig> {
        let config = CaptureConfig { tier, ..CaptureConfig::default() };
        match self {
            Self::Not => None,
            Self::Bare => Some(CaptureConfig { bare: true, ..config }),
            Self::Plain => Some(config),
            Self::WithSites => Some(CaptureConfig { sites: true, ..config }),
            Self::WithLaunches => Some(CaptureConfig { launches: true, names: true, ..config }),
            Self::WithCopies => Some(CaptureConfig { copies: true, ..config }),
        }
    }
}

pub(super) struct Bed {
    probed: Probed,
    library: PathBuf,
    capture: Option<Capture>,
    /// Calls that came through the ring.
    streamed: u64,
}

impl Bed {
    /// Each copy is a file of its own, so that no probe is in two of them. None has the name of a CUDA library: another
    /// gpuprobe that watches the host would put probes into it as well.
    pub(super) fn make(
        folder: &Path,
        probed: Probed,
        functions: &BTreeSet<&str>,
        tier: Option<Tier>,
    ) -> Result<Self> {
        let library = folder.join(format!("measured.{}", probed as u8));
        builtin::write(&library, LIBRARY)?;
        let mut bed = Self { probed, library, capture: None, streamed: 0 };
        if let Some(config) = probed.config(tier) {
            let mut capture = Capture::open(&config, guard::command(false))?;
            bed.attach(&mut capture, functions)?;
            bed.capture = Some(capture);
        }
        Ok(bed)
    }

    fn attach(&self, capture: &mut Capture, functions: &BTreeSet<&str>) -> Result<()> {
        let scan = Inspector::new().inspect(Path::new("libcuda.so.1"), &self.library)?;
        let id = |library: &Library, name: &str| {
            let function = catalogue().lookup(library.kind, library.cuda_major, name);
            function.filter(|f| functions.contains(f.name)).map(|f| f.id)
        };
        let (plan, _) = plan(&scan.libraries, &id);
        let collect = |id: FunctionId| {
            let is_streamed = catalogue().get(id).is_some_and(|f| f.name == STREAMED);
            if is_streamed { Collect::Stream } else { Collect::Count }
        };
        let target = plan.targets.first().context("the built-in library has nothing to probe")?;
        let attached = capture.attach(target, &collect)?;
        let is_whole = attached.skipped.is_empty() && target.functions.len() == functions.len();
        ensure!(is_whole, "not every function of the built-in library can be probed here");
        Ok(())
    }

    pub(super) fn probed(&self) -> Probed {
        self.probed
    }

    pub(super) fn library(&self) -> &Path {
        &self.library
    }

    pub(super) fn tier(&self) -> Option<Tier> {
        self.capture.as_ref().map(Capture::tier)
    }

    /// Waits for calls, where some are streamed, and throws them away.
    pub(super) fn take(&mut self, wait: Duration) -> Result<()> {
        if let Some(capture) = self.capture.as_mut().filter(|_| self.probed != Probed::Bare) {
            capture.wait(&[], wait);
            self.streamed += capture.take()?.calls.len() as u64;
        }
        Ok(())
    }

    /// Everything that tells how many calls, or allocations and frees, the probes saw; nothing where they do not look.
    pub(super) fn seen(&mut self, work: Work) -> Result<Vec<u64>> {
        let Some(capture) = self.capture.as_mut().filter(|_| self.probed != Probed::Bare) else {
            return Ok(Vec::new());
        };
        let (counts, done) = (capture.counts()?, capture.work()?);
        let calls = |name: &str| -> u64 {
            let is_it = |id| catalogue().get(id).is_some_and(|f| f.name == name);
            counts.iter().chain(&done.calls).filter(|row| is_it(row.function)).map(|row| row.calls).sum()
        };
        Ok(match work {
            Work::Count => vec![calls("cuCtxSynchronize")],
            // what found the ring full was seen all the same
            Work::Stream => vec![self.streamed + capture.losses()?.get(LossCause::RingFull)],
            Work::Memory => {
                let mut seen = vec![calls("cuMemAlloc_v2"), calls("cuMemFree_v2")];
                let rows = capture.memory()?;
                seen.push(rows.iter().map(|row| row.allocations).sum());
                seen.push(rows.iter().map(|row| row.frees).sum());
                seen
            }
            Work::Launches => {
                let launched = done.launches.iter().map(|row| row.totals.launches).sum();
                vec![calls("cuLaunchKernel"), launched]
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
