//! Reads a recorded trace, with all of its segments.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use gpuprobe_analysis::{EventFilter, Filtered};
use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Line, Reader};
use gpuprobe_output::units::{count, printable};
use nix::fcntl::OFlag;

use super::file_names::segment_path;
use super::output_file::{Access, Replacement};
use super::read_ahead::ReadAhead;
use crate::terminal::notes::{note, print_stderr};

const BUFFER: usize = 1 << 18;
/// The first bytes of a zstd file.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A trace that is being read.
pub(crate) struct TraceInput {
    pub(crate) reader: Reader<Box<dyn BufRead>>,
    /// `None` for stdin.
    path: Option<PathBuf>,
    /// Damaged lines in the segments before this one.
    damaged: u64,
    /// This is not the first segment that was read.
    is_continued: bool,
    progress: Option<Progress>,
    filter: EventFilter,
    so_far: SoFar,
}

/// What was read of a trace.
#[derive(Debug, Default)]
struct SoFar {
    /// The last line of a segment.
    end: Option<End>,
    events: u64,
    removed: u64,
    kept_calls: u64,
    /// The number of the first segment.
    first_segment: Option<u32>,
}

/// How a trace ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Its last line; `None` if it is missing.
    pub(crate) end: Option<End>,
    /// Why the rest of the trace could not be read.
    pub(crate) broken: Option<Error>,
    /// What the filter did; `None` without a filter.
    pub(crate) filtered: Option<Filtered>,
    /// It came from stdin, and continues in another file.
    has_more: bool,
    /// The number of the first segment that was read, if it is not 1.
    late_start: Option<u32>,
}

impl Ending {
    /// What is missing from a trace, a line each.
    pub(crate) fn missing(&self, damaged: u64) -> Vec<String> {
        let next = self.end.as_ref().and_then(|end| end.next.as_deref()).filter(|_| self.has_more);
        let late = self.late_start.map(|number| {
            format!("the trace starts with its segment {number}: earlier events are not counted")
        });
        let damaged =
            (damaged > 0).then(|| format!("skipped {}", count(damaged, "damaged line", "damaged lines")));
        let next = next.map(|next| {
            let next = printable(next);
            format!(
                "the trace continues in {next}, which is not read: give the name of the first file instead of -"
            )
        });
        let interrupted = "the trace has no last line: its recording was interrupted, or is still running";
        let interrupted = self.end.is_none().then(|| interrupted.to_owned());
        [late, damaged, next, interrupted].into_iter().flatten().collect()
    }

    /// Prints what is missing on stderr.
    pub(crate) fn print_missing(&self, damaged: u64) {
        self.missing(damaged).iter().for_each(|missing| note!("{missing}"));
    }
}

/// The progress of reading, shown on a terminal.
struct Progress {
    read: Arc<AtomicU64>,
    total: u64,
    shown: Instant,
    lines: u64,
}

impl TraceInput {
    /// Opens a trace of which only the events that the filter keeps are read.
    pub(crate) fn open_filtered(path: &Path, filter: EventFilter) -> Result<Self> {
        Ok(Self { filter, ..Self::open(path)? })
    }

    /// Opens a trace; `-` is stdin. Compression is recognized by the first bytes.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the trace {}", path.display());
        if path.as_os_str() == "-" {
            if io::stdin().is_terminal() {
                bail!("the trace is read from stdin, which is a terminal: give the name of a file");
            }
            let reader = reader(io::stdin()).context("cannot read the trace on stdin")?;
            return Ok(Self::of_reader(reader, None, None));
        }
        Self::of_file(File::open(path).with_context(cannot)?, path)
    }

    fn of_file(file: File, path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the trace {}", path.display());
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_dir() {
            bail!("{} is a folder: give the name of a trace in it", path.display());
        }
        let read = Arc::new(AtomicU64::new(0));
        let progress = (metadata.is_file() && io::stderr().is_terminal()).then(|| Progress {
            read: Arc::clone(&read),
            total: metadata.len(),
            shown: Instant::now(),
            lines: 0,
        });
        let reader = reader(Counted { file, read }).with_context(cannot)?;
        Ok(Self::of_reader(reader, Some(path.to_owned()), progress))
    }

    fn of_reader(
        reader: Reader<Box<dyn BufRead>>,
        path: Option<PathBuf>,
        progress: Option<Progress>,
    ) -> Self {
        let (filter, so_far) = (EventFilter::default(), SoFar::default());
        Self { reader, path, damaged: 0, is_continued: false, progress, filter, so_far }
    }

    /// Continues with the next segment, which lies next to this one. `false` if there is none.
    fn open_next_segment(&mut self, end: &End) -> Result<bool> {
        let (Some(path), Some(next)) = (&self.path, &end.next) else { return Ok(false) };
        // the name comes from the file: it must not lead to another folder, to anything but a file, or in a circle
        let shown = printable(next);
        let mut parts = Path::new(next).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == next.as_str())
        {
            bail!("the trace continues in {shown:?}, which is not a file in its folder, and not read");
        }
        // segments lie next to the real file, even if it is opened through a link
        let next_path = path.canonicalize().unwrap_or_else(|_| path.clone()).with_file_name(next);
        let file = open_plain(&next_path).with_context(|| format!("the trace continues in {shown}"))?;
        let following = Self::of_file(file, &next_path).context("the trace continues")?;
        if following.number() <= self.number() {
            bail!("the trace continues in {shown}, which is not its next segment");
        }
        let filter = std::mem::take(&mut self.filter);
        let so_far = std::mem::take(&mut self.so_far);
        *self = Self { damaged: self.damaged(), is_continued: true, filter, so_far, ..following };
        Ok(true)
    }

    /// Calls `then` for every event that the filter keeps, including those of later segments. Returns the errors of
    /// `then`; errors of the trace itself are part of the result.
    pub(crate) fn for_each_event(&mut self, mut then: impl FnMut(Event) -> Result<()>) -> Result<Ending> {
        loop {
            match self.next_event() {
                Ok(Some(event)) => then(event)?,
                Ok(None) => return Ok(self.ending(None)),
                Err(error) => return Ok(self.ending(Some(error))),
            }
        }
    }

    /// The next event that the filter keeps, also of later segments; `None` at the end of the trace.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>> {
        let number = self.number();
        self.so_far.first_segment.get_or_insert(number);
        loop {
            self.show_progress();
            match self.reader.read()? {
                // carried-over live memory: known from earlier segments
                Some(Line::Event(Event::Process(process)))
                    if self.is_continued && !process.live.is_empty() => {}
                Some(Line::Event(event)) => {
                    self.so_far.events += u64::from(!matches!(event, Event::Loss(_)));
                    match self.filter.apply(event) {
                        Some(event) => {
                            self.so_far.kept_calls += u64::from(matches!(event, Event::Call(_)));
                            return Ok(Some(event));
                        }
                        None => self.so_far.removed += 1,
                    }
                }
                Some(Line::End(last)) => self.so_far.end = Some(last),
                None => {
                    let Some(end) = self.so_far.end.take() else { return Ok(None) };
                    let is_continued = self.open_next_segment(&end);
                    if !matches!(is_continued, Ok(true)) {
                        self.so_far.end = Some(end);
                    }
                    if !is_continued? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// How the trace ended, after its last event or after an error.
    pub(crate) fn ending(&mut self, broken: Option<Error>) -> Ending {
        let SoFar { end, events, removed, kept_calls, first_segment } = std::mem::take(&mut self.so_far);
        let filtered = (!self.filter.is_empty()).then(|| Filtered {
            filter: self.filter.text.clone(),
            events,
            removed,
            kept_calls,
            has_partial_streams: self.filter.has_partial_streams(),
        });
        let end = end.map(|end| self.filter.end(&end));
        let late_start = first_segment.filter(|number| *number > 1);
        Ending { end, broken, filtered, has_more: self.path.is_none(), late_start }
    }

    /// The number of this segment.
    fn number(&self) -> u32 {
        self.reader.meta().segment.unwrap_or(1)
    }

    /// Damaged lines that were skipped.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged + self.reader.damaged()
    }

    /// Shows the progress from time to time, only on a terminal.
    pub(crate) fn show_progress(&mut self) {
        /// Lines between two reads of the clock.
        const LINES: u64 = 4096;
        const EVERY: Duration = Duration::from_millis(250);
        let Some(progress) = &mut self.progress else { return };
        progress.lines += 1;
        if progress.lines % LINES == 0 && progress.shown.elapsed() > EVERY {
            progress.shown = Instant::now();
            let percent =
                progress.read.load(Ordering::Relaxed).min(progress.total) * 100 / progress.total.max(1);
            print_stderr(format_args!("\r\x1b[K{percent} %, {} lines", progress.lines));
        }
    }

    /// Clears the progress line.
    pub(crate) fn end_progress(&mut self) {
        if self.progress.take().is_some_and(|progress| progress.lines > 0) {
            print_stderr(format_args!("\r\x1b[K"));
        }
    }
}

/// Opens a file that the user did not name. Links, FIFOs and devices are refused.
fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(file)
}

/// Starts an output file that is derived from traces; it appears when it is complete. Refuses to overwrite a trace.
pub(crate) fn create(path: &Path, traces: &[PathBuf]) -> Result<Replacement> {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if let Some(same) = id(path) {
        for trace in traces {
            let later = (2..).map(|number| id(&segment_path(trace, number)));
            let mut parts = std::iter::once(id(trace)).chain(later.take_while(Option::is_some));
            if parts.any(|part| part == Some(same)) {
                bail!("{} is the trace itself: give another path", path.display());
            }
        }
    }
    // it has the same content as the traces, so it gets the same permissions
    let begun = Replacement::begin(path, Access::like(traces));
    begun.with_context(|| format!("cannot write {}: give another path", path.display()))
}

/// A file that counts the bytes read from it.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let taken = self.file.read(into)?;
        self.read.fetch_add(taken as u64, Ordering::Relaxed);
        Ok(taken)
    }
}

fn reader(input: impl Read + Send + 'static) -> Result<Reader<Box<dyn BufRead>>> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    let plain: Box<dyn BufRead> = if input.fill_buf()?.starts_with(&ZSTD) {
        Box::new(ReadAhead::start(zstd::Decoder::with_buffer(input)?)?)
    } else {
        Box::new(input)
    };
    Ok(Reader::new(plain)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use gpuprobe_event::trace::{FORMAT, Meta, Phases, Writer};

    use super::*;

    fn write(path: &Path, segment: Option<u32>, next: Option<&str>) {
        let meta = Meta { format: FORMAT, segment, ..Meta::default() };
        let end = End { next: next.map(str::to_owned), ..End::default() };
        let bytes = Writer::new(Vec::new(), Phases::Together, &meta).unwrap().finish(&end).unwrap();
        let damage = b"damage\n";
        std::fs::write(path, [&bytes[..], damage].concat()).unwrap();
    }

    fn end(input: &mut TraceInput) -> End {
        let mut end = None;
        while let Some(line) = input.reader.read().unwrap() {
            match line {
                Line::End(last) => end = Some(last),
                Line::Event(_) => {}
            }
        }
        end.unwrap()
    }

    #[test]
    fn segments_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("a"), None, Some("b"));
        write(&at("b"), Some(2), Some("c"));
        write(&at("c"), Some(3), None);
        let mut input = TraceInput::open(&at("a")).unwrap();
        for more in [true, true, false] {
            let end = end(&mut input);
            assert_eq!(input.open_next_segment(&end).unwrap(), more);
        }
        assert_eq!(input.damaged(), 3);
    }

    #[test]
    fn only_a_regular_file_in_the_same_folder_is_a_next_segment() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        write(&at("c"), Some(3), None);
        std::os::unix::fs::symlink(at("c"), at("link")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for (next, expected) in [
            ("a", "not its next segment"),
            ("../a", "not a file in its folder"),
            ("/dev/stdin", "not a file in its folder"),
            ("c/", "not a file in its folder"),
            (".", "not a file in its folder"),
            ("..", "not a file in its folder"),
            ("", "not a file in its folder"),
            ("x", "continues in x: No such file"),
            ("\u{1b}[2J", "continues in \\u{1b}[2J: No such file"),
            ("-", "continues in -: No such file"),
            ("fifo", "not a regular file"),
            ("folder", "not a regular file"),
            ("link", "continues in link"),
        ] {
            write(&at("a"), Some(2), Some(next));
            let mut input = TraceInput::open(&at("a")).unwrap();
            let end = end(&mut input);
            let error = format!("{:#}", input.open_next_segment(&end).unwrap_err());
            assert!(error.contains(expected), "{next}: {error}");
        }
    }

    #[test]
    fn segments_lie_next_to_the_target_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("traces")).unwrap();
        write(&at("traces/a"), None, Some("b"));
        write(&at("traces/b"), Some(2), None);
        std::os::unix::fs::symlink("traces/a", at("link")).unwrap();
        let mut input = TraceInput::open(&at("link")).unwrap();
        let end = end(&mut input);
        assert!(input.open_next_segment(&end).unwrap());
    }

    #[test]
    fn a_compressed_trace_is_recognized_by_its_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
        write(&plain, None, None);
        let mut encoder = zstd::Encoder::new(File::create(&packed).unwrap(), 1).unwrap();
        for line in std::fs::read_to_string(&plain).unwrap().split_inclusive('\n') {
            encoder.write_all(line.as_bytes()).unwrap();
            // its own block, readable even if the next one is truncated
            encoder.flush().unwrap();
        }
        encoder.finish().unwrap();
        let mut input = TraceInput::open(&packed).unwrap();
        assert_eq!(end(&mut input), End::default());
        // a truncated file just ends earlier
        let bytes = std::fs::read(&packed).unwrap();
        std::fs::write(&packed, &bytes[..bytes.len() - 1]).unwrap();
        let mut input = TraceInput::open(&packed).unwrap();
        assert_eq!(end(&mut input), End::default());
    }

    #[test]
    fn other_files_are_refused_with_their_name() {
        let folder = tempfile::tempdir().unwrap();
        let error_of = |path: &Path| format!("{:#}", TraceInput::open(path).err().unwrap());
        assert!(error_of(folder.path()).contains("is a folder"));
        assert!(error_of(&folder.path().join("none")).contains("none"));
        let other = folder.path().join("other");
        std::fs::write(&other, "hello\n").unwrap();
        assert!(error_of(&other).contains("not a gpuprobe trace"), "{}", error_of(&other));
    }

    #[test]
    fn the_trace_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let (trace, link) = (folder.path().join("t"), folder.path().join("l"));
        std::fs::write(&trace, "x").unwrap();
        std::os::unix::fs::symlink(&trace, &link).unwrap();
        assert!(
            create(&link, std::slice::from_ref(&trace))
                .unwrap_err()
                .to_string()
                .contains("is the trace itself")
        );
        assert_eq!(std::fs::read_to_string(&trace).unwrap(), "x");
        create(&folder.path().join("o"), &[trace]).unwrap();
    }
}
