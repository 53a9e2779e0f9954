//! Where a recording goes, and how it stays readable whatever happens.

mod place;
mod sink;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Meta, Phases, Writer};

use self::place::{cut_to_last_line, default_path, point, segment_path};
use self::sink::{Sink, is_compressed};
use crate::notes::note;

/// How old what is only in our memory may be: so much is missing when we are killed.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Segments that a trace of limited size is cut into.
const SEGMENTS: u64 = 4;

/// How much a trace may take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// All of it.
    pub(crate) total: Option<u64>,
    /// One segment.
    pub(crate) segment: Option<u64>,
}

impl Limits {
    fn segment(self) -> Option<u64> {
        let most = self.total.map(|total| total / 2);
        let segment = self.segment.or(self.total.map(|total| total / SEGMENTS));
        // of a limit there must be room for one that is whole and one that is being written
        segment.map(|segment| most.map_or(segment, |most| segment.min(most)))
    }
}

/// A segment that is whole.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    bytes: u64,
    events: u64,
}

/// A trace being written.
#[derive(Debug)]
pub(crate) struct TraceFile {
    /// Of the first segment.
    path: PathBuf,
    /// Of the one being written.
    current: PathBuf,
    /// The link that points at the first one that is there.
    latest: Option<PathBuf>,
    /// `None` once the file could not be written any further.
    writer: Option<Writer<Sink>>,
    failure: Option<io::Error>,
    phases: Phases,
    meta: Meta,
    limits: Limits,
    /// Those before the current one that are still there.
    before: VecDeque<Segment>,
    number: u32,
    /// Events of segments that were removed.
    removed: u64,
    written_before: u64,
    flushed: Instant,
}

impl TraceFile {
    /// Begins a trace; with no path given, under `traces/`, with `trace_latest.jsonl` pointing at it.
    pub(crate) fn create(path: Option<&Path>, phases: Phases, meta: Meta, limits: Limits) -> Result<Self> {
        let (path, latest) = match path {
            Some(path) => (path.to_owned(), None),
            None => default_path()?,
        };
        let cannot = || format!("cannot write the trace {}: give another place with -o", path.display());
        let writer = begin(&path, phases, &meta).with_context(cannot)?;
        if limits.segment().is_some() && !fs::metadata(&path).with_context(cannot)?.is_file() {
            bail!("{} cannot be cut into segments: give a file with -o", path.display());
        }
        if let Some(latest) = &latest {
            point(latest, &path).with_context(cannot)?;
        }
        Ok(Self {
            current: path.clone(),
            path,
            latest,
            writer: Some(writer),
            failure: None,
            phases,
            meta,
            limits,
            before: VecDeque::new(),
            number: 1,
            removed: 0,
            written_before: 0,
            flushed: Instant::now(),
        })
    }

    /// Writes an event. After a failure nothing more is written, and [`TraceFile::finish`] tells.
    pub(crate) fn event(&mut self, event: &Event) {
        let Some(writer) = &mut self.writer else { return };
        let written = writer.event(event);
        let is_full = self.limits.segment().is_some_and(|limit| writer.get_ref().written() >= limit);
        let done = written.and_then(|()| if is_full { self.next_segment() } else { Ok(()) });
        if let Err(error) = done {
            self.fail(error);
        }
    }

    /// Hands over what has waited long enough.
    pub(crate) fn keep_fresh(&mut self) {
        if self.flushed.elapsed() < FLUSH_EVERY {
            return;
        }
        self.flushed = Instant::now();
        if let Some(Err(error)) = self.writer.as_mut().map(Writer::flush) {
            self.fail(error);
        }
    }

    /// Bytes written so far, also to segments that are gone.
    pub(crate) fn written(&self) -> u64 {
        self.written_before + self.writer.as_ref().map_or(0, |writer| writer.get_ref().written())
    }

    /// Events of segments that were removed, so that the trace keeps to its size.
    pub(crate) fn removed(&self) -> u64 {
        self.removed
    }

    fn next_segment(&mut self) -> io::Result<()> {
        let next = segment_path(&self.path, self.number + 1);
        let name = next.file_name().map(|name| name.to_string_lossy().into_owned());
        self.close(&End { next: name, ..End::default() })?;
        self.number += 1;
        let meta = Meta { segment: Some(self.number), ..self.meta.clone() };
        self.writer = Some(begin(&next, self.phases, &meta)?);
        self.current = next;
        self.make_room()
    }

    /// Ends the segment being written.
    fn close(&mut self, end: &End) -> io::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let events = writer.events();
        writer.finish(end)?.close()?;
        let bytes = fs::metadata(&self.current).map_or(0, |file| file.len());
        self.written_before += bytes;
        self.before.push_back(Segment { path: self.current.clone(), bytes, events });
        Ok(())
    }

    /// Removes the oldest segments until the current one can be filled.
    fn make_room(&mut self) -> io::Result<()> {
        let (Some(total), Some(segment)) = (self.limits.total, self.limits.segment()) else { return Ok(()) };
        while self.before.iter().map(|s| s.bytes).sum::<u64>().saturating_add(segment) > total {
            let Some(oldest) = self.before.pop_front() else { break };
            match fs::remove_file(&oldest.path) {
                // somebody was there before us
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.removed += oldest.events,
            }
            let first = self.before.front().map_or(&self.current, |segment| &segment.path);
            if let Some(latest) = &self.latest {
                point(latest, first)?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) {
        self.writer = None;
        self.failure = Some(error);
        // what is left of a line that was cut is taken away, so that the file ends with a whole one
        if !is_compressed(&self.current)
            && let Err(error) = cut_to_last_line(&self.current)
        {
            note!("gpuprobe: cannot mend {}: {error}", self.current.display());
        }
    }

    /// Ends the trace; tells where it, or the first segment that is left of it, is.
    pub(crate) fn finish(mut self, end: &End) -> Result<Finished> {
        if let Err(error) = self.close(end) {
            self.fail(error);
        }
        match self.failure {
            None => Ok(Finished {
                path: self.before.front().map_or(self.path, |segment| segment.path.clone()),
                segments: self.before.len(),
                bytes: self.before.iter().map(|segment| segment.bytes).sum(),
            }),
            Some(error) => Err(error).with_context(|| {
                format!(
                    "the trace {} is incomplete, it is readable to where it stops",
                    self.current.display()
                )
            }),
        }
    }
}

/// A trace that is whole.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Its first segment.
    pub(crate) path: PathBuf,
    /// How many there are.
    pub(crate) segments: usize,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

/// A file with its first line, which is written at once: whoever cannot write says so before anything runs.
fn begin(path: &Path, phases: Phases, meta: &Meta) -> io::Result<Writer<Sink>> {
    let mut writer = Writer::new(Sink::create(path)?, phases, meta)?;
    writer.flush()?;
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use gpuprobe_event::trace::{Line, Reader};
    use gpuprobe_event::{ProcessChange, ProcessEvent, Tgid, Tid};

    use super::*;

    fn event(id: u64) -> Event {
        Event::Process(ProcessEvent {
            id,
            at_ns: id,
            change: ProcessChange::Start,
            tgid: Tgid(1),
            tid: Tid(1),
            process: "p".into(),
            parent: None,
            ns_pid: None,
            container: None,
            exit_status: None,
        })
    }

    #[test]
    fn a_full_disk_is_told_before_anything_runs() {
        let full = Some(Path::new("/dev/full"));
        assert!(TraceFile::create(full, Phases::Together, Meta::default(), Limits::default()).is_err());
    }

    #[test]
    fn segments_follow_each_other_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let limits = Limits { total: Some(40_000), segment: None };
        let mut trace = TraceFile::create(Some(&path), Phases::Together, Meta::default(), limits).unwrap();
        (0..2000).for_each(|id| trace.event(&event(id)));
        let removed = trace.removed();
        let finished = trace.finish(&End::default()).unwrap();
        assert!(removed > 500 && finished.bytes <= 40_000, "{removed} {finished:?}");
        let mut next = Some(finished.path.file_name().unwrap().to_string_lossy().into_owned());
        let (mut ids, mut files) = (Vec::new(), 0);
        while let Some(name) = next.take() {
            files += 1;
            let mut reader =
                Reader::new(fs::File::open(folder.path().join(name)).map(io::BufReader::new).unwrap())
                    .unwrap();
            while let Some(line) = reader.read().unwrap() {
                match line {
                    Line::Event(Event::Process(process)) => ids.push(process.id),
                    Line::End(end) => next = end.next,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(ids, (removed..2000).collect::<Vec<_>>());
        assert_eq!(files, fs::read_dir(folder.path()).unwrap().count());
        assert_eq!(files, finished.segments);
    }
}
