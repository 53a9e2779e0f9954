//! Reads several traces of one job: once to align their clocks, and again as one, merged by time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use gpuprobe_analysis::ranks::{AlignedRecording, Aligner, Alignment, Basis, Origin};
use gpuprobe_analysis::{EventFilter, Filtered};
use gpuprobe_event::trace::{End, Meta};
use gpuprobe_event::{Event, MOST_RECORDINGS};

use super::input::TraceInput;
use crate::terminal::notes::note;

/// Traces whose clocks are aligned.
pub(crate) struct SeveralTraces {
    paths: Vec<PathBuf>,
    metas: Vec<Meta>,
    filter: EventFilter,
    pub(crate) alignment: Alignment,
}

/// How several traces ended.
#[derive(Debug)]
pub(crate) struct Endings {
    /// Their last lines as one.
    pub(crate) end: End,
    /// What is missing from the traces, or is not certain.
    pub(crate) missing: Vec<String>,
    /// Why a trace could not be read to its end.
    pub(crate) broken: Option<Error>,
    pub(crate) filtered: Option<Filtered>,
}

impl Endings {
    /// Prints what is missing on stderr.
    pub(crate) fn print_missing(&self) {
        self.missing.iter().for_each(|missing| note!("{missing}"));
    }
}

impl SeveralTraces {
    /// Reads the traces for the first time. Of the second time, the filter keeps a part; its times are those of the
    /// common clock.
    pub(crate) fn align(paths: &[PathBuf], filter: EventFilter) -> Result<Self> {
        check_paths(paths)?;
        let mut inputs = paths.iter().map(|path| TraceInput::open(path)).collect::<Result<Vec<_>>>()?;
        let metas: Vec<_> = inputs.iter().map(|input| input.reader.meta().clone()).collect();
        check_metas(paths, &metas)?;
        let origin = |(path, meta): (&PathBuf, &Meta)| Origin::of(&path.to_string_lossy(), meta);
        let mut aligner = Aligner::new(paths.iter().zip(&metas).map(origin).collect());
        while let Some(next) = aligner.next() {
            match inputs.get_mut(next).map(TraceInput::next_event) {
                Some(Ok(Some(event))) => aligner.feed(next, event),
                // an error is reported when the trace is read again
                _ => aligner.end(next),
            }
        }
        inputs.iter_mut().for_each(TraceInput::end_progress);
        Ok(Self { paths: paths.to_vec(), metas, filter, alignment: aligner.finish() })
    }

    /// The first line of a trace with all their events.
    pub(crate) fn meta(&self) -> Meta {
        self.alignment.meta(&self.metas)
    }

    /// The oldest format of the traces.
    pub(crate) fn format(&self) -> u32 {
        self.metas.iter().map(|meta| meta.format).min().unwrap_or(0)
    }

    /// The names of the files.
    pub(crate) fn names(&self) -> String {
        self.paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(", ")
    }

    /// Calls `then` for every event that the filter keeps, by time, placed but not renamed. Returns the errors of `then`.
    pub(crate) fn for_each_event(&self, mut then: impl FnMut(Event) -> Result<()>) -> Result<Endings> {
        let mut inputs = Vec::with_capacity(self.paths.len());
        for (path, recording) in self.paths.iter().zip(self.alignment.recordings()) {
            let earlier = |ns: Option<u64>| ns.map(|ns| ns.saturating_sub(recording.starts_ns));
            let (from_ns, to_ns) = (earlier(self.filter.from_ns), earlier(self.filter.to_ns));
            let filter = EventFilter { from_ns, to_ns, ..self.filter.clone() };
            inputs.push(TraceInput::open_filtered(path, filter)?);
        }
        let mut broken: Vec<Option<Error>> = self.paths.iter().map(|_| None).collect();
        let mut heads: Vec<Option<Event>> = self.paths.iter().map(|_| None).collect();
        // the lines of a trace are nearly in order: none comes before the one above it
        let mut order: BinaryHeap<Reverse<(u64, usize)>> =
            (0..inputs.len()).map(|recording| Reverse((0, recording))).collect();
        while let Some(Reverse((at_ns, recording))) = order.pop() {
            if let Some(event) = heads.get_mut(recording).and_then(Option::take) {
                then(event)?;
            }
            match inputs.get_mut(recording).map(TraceInput::next_event) {
                Some(Ok(Some(mut event))) => {
                    self.alignment.place(recording, &mut event);
                    order.push(Reverse((event.ended_ns().max(at_ns), recording)));
                    if let Some(head) = heads.get_mut(recording) {
                        *head = Some(event);
                    }
                }
                Some(Err(error)) => {
                    if let Some(broken) = broken.get_mut(recording) {
                        *broken = Some(error);
                    }
                }
                _ => {}
            }
        }
        Ok(self.endings(&mut inputs, broken))
    }

    fn endings(&self, inputs: &mut [TraceInput], broken: Vec<Option<Error>>) -> Endings {
        let mut all =
            Endings { end: End::default(), missing: self.uncertain(), broken: None, filtered: None };
        let mut ends = Vec::new();
        for ((input, path), broken) in inputs.iter_mut().zip(&self.paths).zip(broken) {
            let shown = path.display();
            input.end_progress();
            let ending = input.ending(None);
            if let Some(error) = broken {
                all.missing.push(format!("{shown}: {error:#}"));
                all.broken.get_or_insert_with(|| error.context(format!("cannot read {shown} to its end")));
            } else {
                let missing = ending.missing(input.damaged()).into_iter();
                all.missing.extend(missing.map(|missing| format!("{shown}: {missing}")));
            }
            ends.push(ending.end);
            let Some(filtered) = ending.filtered else { continue };
            match &mut all.filtered {
                Some(sum) => sum.add(&filtered),
                // its words, not those of the times of this recording
                none => *none = Some(Filtered { filter: self.filter.text.clone(), ..filtered }),
            }
        }
        all.end = self.alignment.end(&ends);
        all
    }

    /// Traces whose clocks could not be compared with others.
    fn uncertain(&self) -> Vec<String> {
        let of = |(path, recording): (&PathBuf, &AlignedRecording)| {
            (recording.basis == Basis::UnixTime).then(|| {
                format!(
                    "{}: no collective in common with the other traces, so its times are aligned by Unix time only",
                    path.display()
                )
            })
        };
        self.paths.iter().zip(self.alignment.recordings()).filter_map(of).collect()
    }
}

/// Whether these can be read as several traces.
pub(crate) fn check_paths(paths: &[PathBuf]) -> Result<()> {
    if paths.len() > MOST_RECORDINGS {
        bail!("{} traces are given: give at most {MOST_RECORDINGS}", paths.len());
    }
    let mut files: HashMap<(u64, u64), &Path> = HashMap::new();
    for path in paths {
        if path.as_os_str() == "-" {
            bail!("stdin cannot be one of several traces: give the names of files");
        }
        let metadata = std::fs::metadata(path);
        let metadata = metadata.with_context(|| format!("cannot read the trace {}", path.display()))?;
        if !metadata.is_file() {
            bail!("{} is not a file: give the name of a trace", path.display());
        }
        if let Some(first) = files.insert((metadata.dev(), metadata.ino()), path) {
            bail!("{} and {} are the same file: give each trace once", first.display(), path.display());
        }
    }
    Ok(())
}

/// Copies of a trace, and its segments, begin at the same time on the same host.
fn check_metas(paths: &[PathBuf], metas: &[Meta]) -> Result<()> {
    let mut known: HashMap<(&str, u64), &Path> = HashMap::new();
    for (path, meta) in paths.iter().zip(metas) {
        let start = (meta.host.as_str(), meta.start_unix.to_bits());
        let Some(first) = known.insert(start, path).filter(|_| meta.start_unix > 0.0) else { continue };
        bail!(
            "{} and {} are of the same recording: give each recording once, and of segments the first",
            first.display(),
            path.display()
        );
    }
    Ok(())
}
