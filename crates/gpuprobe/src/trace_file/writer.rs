//! Writes a trace in segments of limited size, and keeps it readable after errors.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_capture::SpoolFile;
use gpuprobe_event::trace::{End, Meta, Phases, Writer};
use gpuprobe_event::{Event, ProcessEvent};
use gpuprobe_output::units::{bytes, count};

use super::destination::{Destination, OpenedTrace, is_stdout};
use super::disk_space::DiskSpace;
use super::file_names::{cut_to_last_line, segment_path};
use super::limits::Limits;
use super::output_file::{Access, FileId, Folder};
use super::room::Room;
use super::sink::{Abandoned, Sink, is_compressed};
use crate::terminal::notes::note;

/// Longest time that data stays in memory only: this much is missing if gpuprobe is killed.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Room for the last line of a segment, which names the next one.
const END_BYTES: u64 = 2 << 10;

/// A complete segment.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    /// `None` if it is not a file in a folder.
    name: Option<(OsString, FileId)>,
    bytes: u64,
    events: u64,
}

/// Why a trace could not be continued.
#[derive(Debug)]
struct Failure {
    error: io::Error,
    /// Events that are not in the trace.
    missing: u64,
    /// `missing` is a lower bound: how much of the compressed data was written is not known.
    is_least: bool,
}

/// A trace being written.
#[derive(Debug)]
pub(crate) struct TraceFile {
    /// The first segment.
    path: PathBuf,
    /// The segment being written.
    current: PathBuf,
    /// A second descriptor of it. `None` for a pipe or a device.
    file: Option<File>,
    /// Its name in the folder, and the name of the first segment.
    name: OsString,
    first: OsString,
    /// The folder of all segments.
    folder: Option<Folder>,
    access: Access,
    /// The link to the first existing segment.
    latest: Option<OsString>,
    /// `None` after an error.
    writer: Option<Writer<Sink>>,
    failure: Option<Failure>,
    /// `None` for a pipe or a device.
    space: Option<DiskSpace>,
    /// Events not written since the disk was nearly full; `None` before that.
    unwritten: Option<u64>,
    phases: Phases,
    meta: Meta,
    limits: Limits,
    /// Complete segments that still exist.
    before: VecDeque<Segment>,
    /// Bytes of `before`.
    before_bytes: u64,
    number: u32,
    /// Lines at the start of the current segment that repeat live memory of earlier segments. They are not events.
    carried_over: u64,
    /// Events in removed segments.
    removed: u64,
    written_before: u64,
    flushed: Instant,
    /// Only the last lines follow; there is room for them.
    is_ending: bool,
}

impl TraceFile {
    /// Creates a trace.
    pub(crate) fn create(
        output: Destination,
        phases: Phases,
        meta: Meta,
        mut limits: Limits,
    ) -> Result<Self> {
        let (wanted, access) = (output.path.clone(), output.access);
        let cannot = || format!("cannot write the trace {}: give another path with -o", wanted.display());
        let (path, OpenedTrace { file, entry, latest }) = output.create().with_context(cannot)?;
        let is_file = file.metadata().with_context(cannot)?.is_file() && !is_stdout(&path);
        let is_splittable = is_file && entry.is_some();
        if limits.is_default && !is_splittable {
            limits.total = None;
        }
        if limits.segment().is_some() && !is_splittable {
            bail!("{} cannot be split into segments: give a file with -o", path.display());
        }
        let again = is_file.then(|| file.try_clone()).transpose().with_context(cannot)?;
        let space = again.as_ref().and_then(DiskSpace::of);
        let writer = begin(file, &path, phases, &meta).with_context(cannot)?;
        let (folder, name) = entry.unzip();
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
            space,
            unwritten: None,
            phases,
            meta,
            limits,
            before: VecDeque::new(),
            before_bytes: 0,
            number: 1,
            carried_over: 0,
            removed: 0,
            written_before: 0,
            flushed: Instant::now(),
            is_ending: false,
        };
        trace.point(&trace.name).with_context(cannot)?;
        Ok(trace)
    }

    /// Points the link at this segment.
    fn point(&self, name: &OsStr) -> io::Result<()> {
        match (&self.folder, &self.latest) {
            (Some(folder), Some(latest)) => folder.point(latest, name),
            _ => Ok(()),
        }
    }

    /// Writes an event. If it starts a new segment, `carried_over` is written before it. After an error, which is
    /// reported at once, nothing more is written.
    pub(crate) fn event(&mut self, event: &Event, carried_over: impl FnOnce() -> Vec<ProcessEvent>) {
        if let Some(failure) = &mut self.failure {
            failure.missing += 1;
        } else if let Some(unwritten) = self.unwritten.as_mut().filter(|_| !self.is_ending) {
            *unwritten += 1;
        } else if let Err(error) = self.write(event, carried_over) {
            self.fail(error, 1);
        }
    }

    fn write(&mut self, event: &Event, carried_over: impl FnOnce() -> Vec<ProcessEvent>) -> io::Result<()> {
        if !self.is_ending && !self.has_disk_space()? {
            return Ok(());
        }
        let limit = self.limits.segment().filter(|_| !self.is_ending);
        let Some(writer) = &mut self.writer else { return Ok(()) };
        // an event larger than a segment gets its own segment
        let limit = limit.filter(|_| writer.events() > 0);
        if !writer.event_if(event, |sink, line| has_room(sink, line as u64, limit))? {
            self.next_segment()?;
            self.write_carried_over(carried_over())?;
            self.writer.as_mut().map_or(Ok(()), |writer| writer.event(event))?;
        }
        self.keep_to_size(END_BYTES)
    }

    /// A file in the folder of the trace, for records that wait to be decoded. It may be as large as the trace, and also
    /// leaves part of the disk free. `None` if there is no folder, or the file system cannot have such a file.
    pub(crate) fn spool_file(&self) -> Option<SpoolFile> {
        let file = self.folder.as_ref()?.create_unnamed().ok()?;
        let most = self.limits.total.unwrap_or(u64::MAX);
        let mut space = DiskSpace::of(&file)?;
        let mut received = 0;
        Some(SpoolFile::new(file, move |file, size, added| {
            received += added;
            size <= most && (!space.is_due(received) || !space.is_low(file, received, added))
        }))
    }

    /// Writes carried-over lines to a new segment. They take at most a quarter of it.
    fn write_carried_over(&mut self, carried_over: Vec<ProcessEvent>) -> io::Result<()> {
        let (Some(writer), Some(limit)) = (&mut self.writer, self.limits.segment()) else { return Ok(()) };
        for process in carried_over {
            if writer.get_ref().upper_bound() > limit / 4 {
                break;
            }
            writer.event(&Event::Process(process))?;
        }
        self.carried_over = writer.events();
        Ok(())
    }

    /// Keeps the disk from filling up: removes the oldest segments, or else stops writing and returns `false`.
    fn has_disk_space(&mut self) -> io::Result<bool> {
        let (Some(space), Some(file), Some(writer)) = (&mut self.space, &self.file, &mut self.writer) else {
            return Ok(true);
        };
        let received = writer.get_ref().received();
        if !space.is_due(received) || !space.is_low(file, received, writer.get_ref().unwritten()) {
            return Ok(true);
        }
        // compressed data may be far smaller than the upper bound
        writer.get_mut().settle()?;
        while self
            .space
            .as_mut()
            .zip(self.file.as_ref())
            .is_some_and(|(space, file)| space.is_low(file, received, 0))
        {
            if !self.remove_oldest()? {
                self.stop();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stops writing because the disk is nearly full. The last lines still fit.
    fn stop(&mut self) {
        let free = self.space.as_ref().map_or(0, |space| space.free);
        note!(
            "gpuprobe: the trace {} stops here: only {} of the disk are free: {} are written, later events are only \
             in the summary",
            self.current.display(),
            bytes(free),
            bytes(self.written())
        );
        // the event that did not fit
        self.unwritten = Some(1);
    }

    /// Flushes the writer if the last flush is long ago.
    pub(crate) fn keep_fresh(&mut self) {
        if self.flushed.elapsed() < FLUSH_EVERY {
            return;
        }
        self.flushed = Instant::now();
        if let Some(Err(error)) = self.writer.as_mut().map(Writer::flush) {
            self.fail(error, 0);
        }
        // other programs may fill the disk
        if let (Some(space), Some(file), Some(writer)) = (&mut self.space, &self.file, &self.writer) {
            space.is_low(file, writer.get_ref().received(), writer.get_ref().unwritten());
        }
    }

    /// Events not written because the disk was nearly full.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.unwrap_or(0)
    }

    /// The limits and the state of the disk, for the progress line.
    pub(crate) fn room(&self) -> Room {
        Room {
            limit: self.limits.total,
            free: self.space.as_ref().map(|space| space.free),
            kept_free: self.space.as_ref().map(|space| space.kept),
            is_stopped: self.unwritten.is_some(),
        }
    }

    /// Whether it is a file that is not compressed.
    pub(crate) fn is_plain_file(&self) -> bool {
        self.file.is_some() && !is_compressed(&self.path)
    }

    /// Bytes written up to now, including removed segments.
    pub(crate) fn written(&self) -> u64 {
        self.written_before + self.writer.as_ref().map_or(0, |writer| writer.get_ref().written())
    }

    /// Events in segments that were removed because of the size limit.
    pub(crate) fn removed(&self) -> u64 {
        self.removed
    }

    /// Whether the reader of the trace has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        let is_closed = |failure: &Failure| failure.error.kind() == io::ErrorKind::BrokenPipe;
        self.file.is_none() && self.failure.as_ref().is_some_and(is_closed)
    }

    /// Whether it has reached its limit and cannot be continued in another segment.
    pub(crate) fn is_full(&self) -> bool {
        self.limits.in_one_file && self.limits.total.is_some_and(|total| self.written() >= total)
    }

    /// Makes room for the last lines, which have this size. Nothing is removed afterwards, so the last lines can
    /// contain the final number of removed events.
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
        // next to the real file: readers who come through a link look for it there
        let wanted = segment_path(&folder.path_of(&self.first), number);
        let (file, name) = folder.create(wanted.file_name().unwrap_or_default(), self.access)?;
        let (path, id, again) = (folder.path_of(&name), FileId::of(&file)?, file.try_clone()?);
        if path != wanted {
            note!(
                "gpuprobe: {} belongs to another user: the trace continues in {}",
                wanted.display(),
                path.display()
            );
        }
        let meta = Meta { segment: Some(number), ..self.meta.clone() };
        // before the previous segment ends, so that the name in its last line exists
        let begun = begin(file, &path, self.phases, &meta);
        let next = Some(name.to_string_lossy().into_owned());
        match begun.and_then(|writer| self.close(&End { next, ..End::default() }).map(|()| writer)) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => {
                // the new segment is empty
                self.folder.as_ref().map(|folder| folder.remove(&name, id).ok());
                return Err(error);
            }
        }
        (self.current, self.name, self.file, self.number) = (path, name, Some(again), number);
        self.space.iter_mut().for_each(DiskSpace::look_now);
        self.keep_to_size(END_BYTES)
    }

    /// Ends the current segment.
    fn close(&mut self, end: &End) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut bytes = writer.get_mut().settle()?;
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let events = writer.events() - std::mem::take(&mut self.carried_over);
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

    /// Removes the oldest segments until there is room for the current one, and for `more` bytes in it in any case.
    fn keep_to_size(&mut self, more: u64) -> io::Result<()> {
        let (Some(total), Some(segment)) = (self.limits.total, self.limits.segment()) else { return Ok(()) };
        let current = self.writer.as_ref().map_or(0, |writer| writer.get_ref().upper_bound()) + more;
        let needed = if self.is_ending { current } else { current.max(segment) };
        while self.before_bytes.saturating_add(needed) > total && self.remove_oldest()? {}
        Ok(())
    }

    /// Removes the oldest complete segment. Returns whether there was one.
    fn remove_oldest(&mut self) -> io::Result<bool> {
        let Some(oldest) = self.before.pop_front() else { return Ok(false) };
        self.before_bytes -= oldest.bytes;
        match self.remove(&oldest) {
            // another process has removed it
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.removed += oldest.events,
        }
        let first = self.before.front().and_then(|segment| segment.name.as_ref());
        self.point(first.map_or(&self.name, |(name, _)| name))?;
        Ok(true)
    }

    fn remove(&self, segment: &Segment) -> io::Result<()> {
        match (&self.folder, &segment.name) {
            (Some(folder), Some((name, id))) => folder.remove(name, *id),
            _ => Ok(()),
        }
    }

    /// Handles a write error: keeps what was written and reports the error at once. `refused` events were not written.
    fn fail(&mut self, error: io::Error, refused: u64) {
        let mut lost = Some(0);
        if let Some(writer) = self.writer.take() {
            let Abandoned { written, lost_lines } = writer.into_inner().abandon();
            (self.written_before, lost) = (self.written_before + written, lost_lines);
        }
        self.remove_partial_line();
        // at the end, `finish` returns the error
        if !self.is_ending {
            let (trace, size) = (self.current.display(), bytes(self.written()));
            note!(
                "gpuprobe: the trace {trace} ends here: {error}: {size} are written, later events are only in the summary"
            );
        }
        self.failure =
            Some(Failure { error, missing: refused + lost.unwrap_or(0), is_least: lost.is_none() });
    }

    /// Removes a partial line at the end, so that the file ends with a complete one.
    fn remove_partial_line(&self) {
        if !is_compressed(&self.current)
            && let Some(file) = &self.file
            && let Err(error) = cut_to_last_line(file)
        {
            note!("gpuprobe: cannot remove the partial last line of {}: {error}", self.current.display());
        }
    }

    /// Ends the trace. Returns the path of its first remaining segment.
    pub(crate) fn finish(mut self, end: &End) -> Result<Finished> {
        if let Err(error) = self.close(end) {
            self.fail(error, 0);
        }
        let (is_closed, room) = (self.is_closed(), self.file.as_ref().map(|_| self.room()));
        let Some(Failure { error, missing, is_least }) = self.failure.filter(|_| !is_closed) else {
            return Ok(Finished {
                path: self.before.front().map_or(self.path, |segment| segment.path.clone()),
                segments: self.before.len(),
                bytes: self.before_bytes,
                room,
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

/// A complete trace.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The first remaining segment.
    pub(crate) path: PathBuf,
    /// Number of segments.
    pub(crate) segments: usize,
    /// Bytes of all segments.
    pub(crate) bytes: u64,
    /// `None` for a pipe or a device.
    pub(crate) room: Option<Room>,
}

/// Writes the first line at once, so that a write error is reported before the command runs.
fn begin(file: File, path: &Path, phases: Phases, meta: &Meta) -> io::Result<Writer<Sink>> {
    let mut writer = Writer::new(Sink::new(file, path)?, phases, meta)?;
    writer.get_mut().settle()?;
    Ok(writer)
}

/// Whether a segment with this limit has room for a line and for its last line.
fn has_room(sink: &mut Sink, line: u64, limit: Option<u64>) -> io::Result<bool> {
    let Some(limit) = limit else { return Ok(true) };
    let needed = line + END_BYTES;
    if sink.upper_bound() + needed <= limit {
        return Ok(true);
    }
    // compressed data may be far smaller than the upper bound; settling is too slow to do for every line
    let left = limit.saturating_sub(sink.settle()?);
    Ok(left >= needed.max(limit / 8))
}

#[cfg(test)]
mod tests;
