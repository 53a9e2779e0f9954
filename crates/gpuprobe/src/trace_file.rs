//! Where a recording goes, and how it stays readable whatever happens.

mod output;
mod place;
mod sink;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_event::trace::{End, Meta, Phases, Writer};
use gpuprobe_event::{Event, ProcessEvent};
use gpuprobe_output::units::{bytes, count};

use self::output::Begun;
pub(crate) use self::output::{Output, is_stdout};
use self::place::cut_to_last_line;
pub(crate) use self::place::segment_path;
use self::sink::{Abandoned, Sink, is_compressed};
use crate::notes::note;
use crate::output_file::{Access, FileId, Folder};

/// How old what is only in our memory may be: so much is missing when we are killed.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Segments that a trace of limited size is cut into.
const SEGMENTS: u64 = 4;
/// Room for the last line of a segment, which has the name of the next.
const END_BYTES: u64 = 2 << 10;

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
    /// `None` where it is no file in a folder.
    name: Option<(OsString, FileId)>,
    bytes: u64,
    events: u64,
}

/// Why a trace could not be written any further.
#[derive(Debug)]
struct Failure {
    error: io::Error,
    /// Events that are not in it.
    missing: u64,
    /// There may be more of them: nobody knows how far what was compressed came.
    is_least: bool,
}

/// A trace being written.
#[derive(Debug)]
pub(crate) struct TraceFile {
    /// Of the first segment.
    path: PathBuf,
    /// Of the one being written.
    current: PathBuf,
    /// The same one opened again. `None` for a pipe or a device.
    file: Option<File>,
    /// Its name in the folder, and that of the first segment.
    name: OsString,
    first: OsString,
    /// Where segments go.
    folder: Option<Folder>,
    access: Access,
    /// The link that points at the first one that is there.
    latest: Option<OsString>,
    /// `None` once the file could not be written any further.
    writer: Option<Writer<Sink>>,
    failure: Option<Failure>,
    phases: Phases,
    meta: Meta,
    limits: Limits,
    /// Those before the current one that are still there.
    before: VecDeque<Segment>,
    /// Bytes of these.
    before_bytes: u64,
    number: u32,
    /// Lines that the current one began with, which are no events.
    standing: u64,
    /// Events of segments that were removed.
    removed: u64,
    written_before: u64,
    flushed: Instant,
    /// Only the last lines are to come; there is room for them.
    is_ending: bool,
}

impl TraceFile {
    /// Begins a trace.
    pub(crate) fn create(output: Output, phases: Phases, meta: Meta, limits: Limits) -> Result<Self> {
        let (wanted, access) = (output.path.clone(), output.access);
        let cannot = || format!("cannot write the trace {}: give another place with -o", wanted.display());
        let (path, Begun { file, beside, latest }) = output.create().with_context(cannot)?;
        let is_file = file.metadata().with_context(cannot)?.is_file() && !is_stdout(&path);
        if limits.segment().is_some() && (!is_file || beside.is_none()) {
            bail!("{} cannot be cut into segments: give a file with -o", path.display());
        }
        let again = is_file.then(|| file.try_clone()).transpose().with_context(cannot)?;
        let writer = begin(file, &path, phases, &meta).with_context(cannot)?;
        let (folder, name) = beside.unzip();
        let name = name.unwrap_or_default();
        let trace = Self {
            current: path.clone(),
            path,
            file: again,
            first: name.clone(),
            name,
            folder,
            access,
            latest,
            writer: Some(writer),
            failure: None,
            phases,
            meta,
            limits,
            before: VecDeque::new(),
            before_bytes: 0,
            number: 1,
            standing: 0,
            removed: 0,
            written_before: 0,
            flushed: Instant::now(),
            is_ending: false,
        };
        trace.point(&trace.name).with_context(cannot)?;
        Ok(trace)
    }

    /// Has the link point at this segment.
    fn point(&self, name: &OsStr) -> io::Result<()> {
        match (&self.folder, &self.latest) {
            (Some(folder), Some(latest)) => folder.point(latest, name),
            _ => Ok(()),
        }
    }

    /// Writes an event. Where it begins another segment, what stands by then is written before it. After a failure, which
    /// is told at once, nothing more is written.
    pub(crate) fn event(&mut self, event: &Event, standing: impl FnOnce() -> Vec<ProcessEvent>) {
        if let Some(failure) = &mut self.failure {
            failure.missing += 1;
        } else if let Err(error) = self.write(event, standing) {
            self.fail(error, 1);
        }
    }

    fn write(&mut self, event: &Event, standing: impl FnOnce() -> Vec<ProcessEvent>) -> io::Result<()> {
        let limit = self.limits.segment().filter(|_| !self.is_ending);
        let Some(writer) = &mut self.writer else { return Ok(()) };
        // what is longer than a segment has one of its own
        let limit = limit.filter(|_| writer.events() > 0);
        if !writer.event_if(event, |sink, line| has_room(sink, line as u64, limit))? {
            self.next_segment()?;
            self.stand(standing())?;
            self.writer.as_mut().map_or(Ok(()), |writer| writer.event(event))?;
        }
        self.keep_to_size(END_BYTES)
    }

    /// Begins a segment with what stands, as long as most of it is left for what happens.
    fn stand(&mut self, standing: Vec<ProcessEvent>) -> io::Result<()> {
        let (Some(writer), Some(limit)) = (&mut self.writer, self.limits.segment()) else { return Ok(()) };
        for process in standing {
            if writer.get_ref().most() > limit / 4 {
                break;
            }
            writer.event(&Event::Process(process))?;
        }
        self.standing = writer.events();
        Ok(())
    }

    /// Hands over what has waited long enough.
    pub(crate) fn keep_fresh(&mut self) {
        if self.flushed.elapsed() < FLUSH_EVERY {
            return;
        }
        self.flushed = Instant::now();
        if let Some(Err(error)) = self.writer.as_mut().map(Writer::flush) {
            self.fail(error, 0);
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

    /// Whether whoever read the trace has gone.
    pub(crate) fn is_closed(&self) -> bool {
        let gone = |failure: &Failure| failure.error.kind() == io::ErrorKind::BrokenPipe;
        self.file.is_none() && self.failure.as_ref().is_some_and(gone)
    }

    /// Makes room for the last lines, of so many bytes. Nothing is removed after that, so they can tell how much was.
    pub(crate) fn prepare_end(&mut self, bytes: u64) {
        self.is_ending = true;
        let Some(writer) = &mut self.writer else { return };
        let settled = writer.get_mut().settle();
        if let Err(error) = settled.and_then(|_| self.keep_to_size(bytes)) {
            self.fail(error, 0);
        }
    }

    fn next_segment(&mut self) -> io::Result<()> {
        let number = self.number + 1;
        let Some(folder) = &self.folder else { return Err(io::ErrorKind::Unsupported.into()) };
        // beside the file itself, where whoever reads it by a link looks for it
        let wanted = segment_path(&folder.path_of(&self.first), number);
        let (file, name) = folder.create(wanted.file_name().unwrap_or_default(), self.access)?;
        let (path, id, again) = (folder.path_of(&name), FileId::of(&file)?, file.try_clone()?);
        if path != wanted {
            note!(
                "gpuprobe: {} is somebody else's: the trace goes on in {}",
                wanted.display(),
                path.display()
            );
        }
        let meta = Meta { segment: Some(number), ..self.meta.clone() };
        // before the other is ended, so that it leads to one that is there
        let begun = begin(file, &path, self.phases, &meta);
        let next = Some(name.to_string_lossy().into_owned());
        match begun.and_then(|writer| self.close(&End { next, ..End::default() }).map(|()| writer)) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => {
                // nothing is in it
                self.folder.as_ref().map(|folder| folder.remove(&name, id).ok());
                return Err(error);
            }
        }
        (self.current, self.name, self.file, self.number) = (path, name, Some(again), number);
        self.keep_to_size(END_BYTES)
    }

    /// Ends the segment being written.
    fn close(&mut self, end: &End) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut bytes = writer.get_mut().settle()?;
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let events = writer.events() - std::mem::take(&mut self.standing);
        if let Err(error) = writer.finish(end).and_then(Sink::close) {
            self.written_before += bytes;
            return Err(error);
        }
        let id = self.file.as_ref().and_then(|file| FileId::of(file).ok());
        if let Some(file) = &self.file {
            bytes = file.metadata().map_or(bytes, |file| file.len());
        }
        self.written_before += bytes;
        self.before_bytes += bytes;
        let name = id.map(|id| (self.name.clone(), id));
        self.before.push_back(Segment { path: self.current.clone(), name, bytes, events });
        Ok(())
    }

    /// Removes the oldest segments until the current one can be filled, and `more` can be written to it in any case.
    fn keep_to_size(&mut self, more: u64) -> io::Result<()> {
        let (Some(total), Some(segment)) = (self.limits.total, self.limits.segment()) else { return Ok(()) };
        let current = self.writer.as_ref().map_or(0, |writer| writer.get_ref().most()) + more;
        let needed = if self.is_ending { current } else { current.max(segment) };
        while self.before_bytes.saturating_add(needed) > total {
            let Some(oldest) = self.before.pop_front() else { break };
            self.before_bytes -= oldest.bytes;
            match self.remove(&oldest) {
                // somebody was there before us
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.removed += oldest.events,
            }
            let first = self.before.front().and_then(|segment| segment.name.as_ref());
            self.point(first.map_or(&self.name, |(name, _)| name))?;
        }
        Ok(())
    }

    fn remove(&self, segment: &Segment) -> io::Result<()> {
        match (&self.folder, &segment.name) {
            (Some(folder), Some((name, id))) => folder.remove(name, *id),
            _ => Ok(()),
        }
    }

    /// It cannot be written any further: what is there stays, and people are told now. So many events were not even taken.
    fn fail(&mut self, error: io::Error, refused: u64) {
        let mut lost = Some(0);
        if let Some(writer) = self.writer.take() {
            let Abandoned { written, lost_lines } = writer.into_inner().abandon();
            (self.written_before, lost) = (self.written_before + written, lost_lines);
        }
        self.mend();
        // at the end that is told as the result of it all
        if !self.is_ending {
            let (trace, size) = (self.current.display(), bytes(self.written()));
            note!(
                "gpuprobe: the trace {trace} ends here: {error}: {size} are written, what comes now is only in the summary"
            );
        }
        self.failure =
            Some(Failure { error, missing: refused + lost.unwrap_or(0), is_least: lost.is_none() });
    }

    /// Takes away what is left of a line that was cut, so that the file ends with a whole one.
    fn mend(&self) {
        if !is_compressed(&self.current)
            && let Some(file) = &self.file
            && let Err(error) = cut_to_last_line(file)
        {
            note!("gpuprobe: cannot mend {}: {error}", self.current.display());
        }
    }

    /// Ends the trace; tells where it, or the first segment that is left of it, is.
    pub(crate) fn finish(mut self, end: &End) -> Result<Finished> {
        if let Err(error) = self.close(end) {
            self.fail(error, 0);
        }
        let is_closed = self.is_closed();
        let Some(Failure { error, missing, is_least }) = self.failure.filter(|_| !is_closed) else {
            return Ok(Finished {
                path: self.before.front().map_or(self.path, |segment| segment.path.clone()),
                segments: self.before.len(),
                bytes: self.before_bytes,
            });
        };
        let least = if is_least { "at least " } else { "" };
        let missing = count(missing, "event is", "events are");
        Err(error).with_context(|| {
            format!(
                "the trace {} is incomplete: it is readable to where it stops, {least}{missing} not in it",
                self.current.display()
            )
        })
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
fn begin(file: File, path: &Path, phases: Phases, meta: &Meta) -> io::Result<Writer<Sink>> {
    let mut writer = Writer::new(Sink::new(file, path)?, phases, meta)?;
    writer.get_mut().settle()?;
    Ok(writer)
}

/// Whether a segment of this limit has room for a line, and for its end.
fn has_room(sink: &mut Sink, line: u64, limit: Option<u64>) -> io::Result<bool> {
    let Some(limit) = limit else { return Ok(true) };
    let needed = line + END_BYTES;
    if sink.most() + needed <= limit {
        return Ok(true);
    }
    // what is compressed may come to far less than it could; this is not asked for every line
    let left = limit.saturating_sub(sink.settle()?);
    Ok(left >= needed.max(limit / 8))
}

#[cfg(test)]
mod tests;
