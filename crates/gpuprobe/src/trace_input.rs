//! Where a recorded trace is read from.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use gpuprobe_event::Event;
use gpuprobe_event::trace::{End, Line, Reader};
use gpuprobe_output::units::{count, printable};
use nix::fcntl::OFlag;

use crate::notes::{note, tell};
use crate::output_file::{self, Access};
use crate::trace_file::segment_path;

const BUFFER: usize = 1 << 18;
/// What a file that zstd has compressed begins with.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A trace that is being read.
pub(crate) struct TraceInput {
    pub(crate) reader: Reader<Box<dyn BufRead>>,
    /// `None` for stdin.
    path: Option<PathBuf>,
    /// Lines skipped in the segments before this one.
    damaged: u64,
    /// There were any.
    has_begun_before: bool,
    progress: Option<Progress>,
}

/// How a trace ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Its last line; `None` where it has none.
    pub(crate) end: Option<End>,
    /// Why it could be read no further, where it goes on.
    pub(crate) broken: Option<Error>,
    /// It came from stdin, and goes on in another file.
    has_more: bool,
    /// The number of the segment that it began with, where that is not the first.
    late_start: Option<u32>,
}

impl Ending {
    /// What is missing of a trace, for people, a line each.
    pub(crate) fn missing(&self, damaged: u64) -> Vec<String> {
        let next = self.end.as_ref().and_then(|end| end.next.as_deref()).filter(|_| self.has_more);
        let late = self.late_start.map(|number| {
            format!(
                "the trace begins with its segment {number}: what was recorded before that is not counted"
            )
        });
        let damaged =
            (damaged > 0).then(|| format!("skipped {}", count(damaged, "damaged line", "damaged lines")));
        let next = next.map(|next| {
            let next = printable(next);
            format!(
                "the trace goes on in {next}, which is not read: give the name of the first file instead of -"
            )
        });
        let interrupted = "the trace has no end: its recording was interrupted, or goes on";
        let interrupted = self.end.is_none().then(|| interrupted.to_owned());
        [late, damaged, next, interrupted].into_iter().flatten().collect()
    }

    /// Tells it.
    pub(crate) fn tell(&self, damaged: u64) {
        self.missing(damaged).iter().for_each(|missing| note!("{missing}"));
    }
}

/// How far it has come, for people who wait.
struct Progress {
    read: Rc<Cell<u64>>,
    total: u64,
    told: Instant,
    lines: u64,
}

impl TraceInput {
    /// Opens a trace; `-` is stdin. It may be compressed, which its first bytes tell.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the trace {}", path.display());
        if path.as_os_str() == "-" {
            if io::stdin().is_terminal() {
                bail!("the trace is to come from stdin, which is a terminal: give the name of a file");
            }
            let reader = reader(io::stdin()).context("cannot read the trace on stdin")?;
            return Ok(Self { reader, path: None, damaged: 0, has_begun_before: false, progress: None });
        }
        Self::of_file(File::open(path).with_context(cannot)?, path)
    }

    fn of_file(file: File, path: &Path) -> Result<Self> {
        let cannot = || format!("cannot read the trace {}", path.display());
        let metadata = file.metadata().with_context(cannot)?;
        if metadata.is_dir() {
            bail!("{} is a folder: give the name of a trace in it", path.display());
        }
        let read = Rc::new(Cell::new(0));
        let progress = (metadata.is_file() && io::stderr().is_terminal()).then(|| Progress {
            read: Rc::clone(&read),
            total: metadata.len(),
            told: Instant::now(),
            lines: 0,
        });
        let reader = reader(Counted { file, read }).with_context(cannot)?;
        Ok(Self { reader, path: Some(path.to_owned()), damaged: 0, has_begun_before: false, progress })
    }

    /// Goes on with the next segment of a trace that was cut into some; it lies beside this one. `false` where there is
    /// none.
    fn go_on(&mut self, end: &End) -> Result<bool> {
        let (Some(path), Some(next)) = (&self.path, &end.next) else { return Ok(false) };
        // the name comes out of the file: it leads to no other folder, to nothing but a file, and not in a circle
        let shown = printable(next);
        let mut parts = Path::new(next).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == next.as_str())
        {
            bail!("the trace goes on in {shown:?}, which is no file of its folder, and not read");
        }
        // whoever reads it by a link finds its segments beside the file itself
        let beside = path.canonicalize().unwrap_or_else(|_| path.clone()).with_file_name(next);
        let file = open_plain(&beside).with_context(|| format!("the trace goes on in {shown}"))?;
        let following = Self::of_file(file, &beside).context("the trace goes on")?;
        if following.number() <= self.number() {
            bail!("the trace goes on in {shown}, which is not its next segment");
        }
        *self = Self { damaged: self.damaged(), has_begun_before: true, ..following };
        Ok(true)
    }

    /// Hands over every event, also of the segments that follow. An error is what came of one of them; where the trace
    /// can be read no further, that is told in what is returned.
    pub(crate) fn each(&mut self, mut then: impl FnMut(Event) -> Result<()>) -> Result<Ending> {
        let mut end = None;
        let late_start = Some(self.number()).filter(|number| *number > 1);
        let broken = loop {
            match self.reader.read() {
                // known from the segments before
                Ok(Some(Line::Event(Event::Process(process))))
                    if self.has_begun_before && !process.held.is_empty() => {}
                Ok(Some(Line::Event(event))) => then(event)?,
                Ok(Some(Line::End(last))) => end = Some(last),
                Ok(None) => match end.as_ref().map_or(Ok(false), |end| self.go_on(end)) {
                    Ok(true) => end = None,
                    Ok(false) => break None,
                    Err(error) => break Some(error),
                },
                Err(error) => break Some(error.into()),
            }
            self.tell_progress();
        };
        Ok(Ending { end, broken, has_more: self.path.is_none(), late_start })
    }

    /// Which segment of the trace this is.
    fn number(&self) -> u32 {
        self.reader.meta().segment.unwrap_or(1)
    }

    /// Lines skipped because they made no sense.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged + self.reader.damaged()
    }

    /// Tells how far it has come, once in a while and on a terminal only.
    pub(crate) fn tell_progress(&mut self) {
        /// The clock is not looked at more often than this.
        const LINES: u64 = 4096;
        const EVERY: Duration = Duration::from_millis(250);
        let Some(progress) = &mut self.progress else { return };
        progress.lines += 1;
        if progress.lines % LINES == 0 && progress.told.elapsed() > EVERY {
            progress.told = Instant::now();
            let percent = progress.read.get().min(progress.total) * 100 / progress.total.max(1);
            tell(format_args!("\r\x1b[K{percent} %, {} lines", progress.lines));
        }
    }

    /// Takes the line about progress away.
    pub(crate) fn end_progress(&mut self) {
        if self.progress.take().is_some_and(|progress| progress.lines > 0) {
            tell(format_args!("\r\x1b[K"));
        }
    }
}

/// Opens a file that the user did not name: never anything that does something when it is opened, or waits.
fn open_plain(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    Ok(file)
}

/// Makes a file for what becomes of a trace, unless it is the trace itself: that would be gone before it is read.
pub(crate) fn create(path: &Path, trace: &Path) -> Result<File> {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if let Some(same) = id(path) {
        let later = (2..).map(|number| id(&segment_path(trace, number)));
        let mut parts = std::iter::once(id(trace)).chain(later.take_while(Option::is_some));
        if parts.any(|part| part == Some(same)) {
            bail!("{} is the trace itself: give another place", path.display());
        }
    }
    // it has the same content as the trace, so it gets the same permissions
    let created = output_file::create(path, Access::like(trace));
    let created = created.with_context(|| format!("cannot write {}: give another place", path.display()))?;
    Ok(created.file)
}

/// A file, and how much of it has been read.
struct Counted {
    file: File,
    read: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let taken = self.file.read(into)?;
        self.read.set(self.read.get() + taken as u64);
        Ok(taken)
    }
}

fn reader(input: impl Read + 'static) -> Result<Reader<Box<dyn BufRead>>> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    let plain: Box<dyn BufRead> = if input.fill_buf()?.starts_with(&ZSTD) {
        let decoder = zstd::Decoder::with_buffer(input)?;
        Box::new(BufReader::with_capacity(BUFFER, decoder))
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
    fn segments_are_read_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        write(&place("a"), None, Some("b"));
        write(&place("b"), Some(2), Some("c"));
        write(&place("c"), Some(3), None);
        let mut input = TraceInput::open(&place("a")).unwrap();
        for more in [true, true, false] {
            let end = end(&mut input);
            assert_eq!(input.go_on(&end).unwrap(), more);
        }
        assert_eq!(input.damaged(), 3);
    }

    #[test]
    fn a_segment_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&place("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        write(&place("c"), Some(3), None);
        std::os::unix::fs::symlink(place("c"), place("link")).unwrap();
        std::fs::create_dir(place("folder")).unwrap();
        for (next, said) in [
            ("a", "not its next segment"),
            ("../a", "no file of its folder"),
            ("/dev/stdin", "no file of its folder"),
            ("c/", "no file of its folder"),
            (".", "no file of its folder"),
            ("..", "no file of its folder"),
            ("", "no file of its folder"),
            ("x", "goes on in x: No such file"),
            ("\u{1b}[2J", "goes on in \\u{1b}[2J: No such file"),
            ("-", "goes on in -: No such file"),
            ("fifo", "no plain file"),
            ("folder", "no plain file"),
            ("link", "goes on in link"),
        ] {
            write(&place("a"), Some(2), Some(next));
            let mut input = TraceInput::open(&place("a")).unwrap();
            let end = end(&mut input);
            let error = format!("{:#}", input.go_on(&end).unwrap_err());
            assert!(error.contains(said), "{next}: {error}");
        }
    }

    #[test]
    fn segments_lie_beside_the_file_that_a_link_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("traces")).unwrap();
        write(&place("traces/a"), None, Some("b"));
        write(&place("traces/b"), Some(2), None);
        std::os::unix::fs::symlink("traces/a", place("link")).unwrap();
        let mut input = TraceInput::open(&place("link")).unwrap();
        let end = end(&mut input);
        assert!(input.go_on(&end).unwrap());
    }

    #[test]
    fn a_compressed_trace_is_known_by_its_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, packed) = (folder.path().join("plain"), folder.path().join("packed"));
        write(&plain, None, None);
        let mut encoder = zstd::Encoder::new(File::create(&packed).unwrap(), 1).unwrap();
        for line in std::fs::read_to_string(&plain).unwrap().split_inclusive('\n') {
            encoder.write_all(line.as_bytes()).unwrap();
            // a block of its own, which can be read when the next is cut
            encoder.flush().unwrap();
        }
        encoder.finish().unwrap();
        let mut input = TraceInput::open(&packed).unwrap();
        assert_eq!(end(&mut input), End::default());
        // a file that was cut is one that ends sooner
        let bytes = std::fs::read(&packed).unwrap();
        std::fs::write(&packed, &bytes[..bytes.len() - 1]).unwrap();
        let mut input = TraceInput::open(&packed).unwrap();
        assert_eq!(end(&mut input), End::default());
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| format!("{:#}", TraceInput::open(path).err().unwrap());
        assert!(said(folder.path()).contains("is a folder"));
        assert!(said(&folder.path().join("none")).contains("none"));
        let other = folder.path().join("other");
        std::fs::write(&other, "hello\n").unwrap();
        assert!(said(&other).contains("not a gpuprobe trace"), "{}", said(&other));
    }

    #[test]
    fn the_trace_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let (trace, link) = (folder.path().join("t"), folder.path().join("l"));
        std::fs::write(&trace, "x").unwrap();
        std::os::unix::fs::symlink(&trace, &link).unwrap();
        assert!(create(&link, &trace).unwrap_err().to_string().contains("is the trace itself"));
        assert_eq!(std::fs::read_to_string(&trace).unwrap(), "x");
        create(&folder.path().join("o"), &trace).unwrap();
    }
}
