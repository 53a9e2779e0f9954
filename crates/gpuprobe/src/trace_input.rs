//! Where a recorded trace is read from.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gpuprobe_event::trace::Reader;

use crate::notes::tell;

const BUFFER: usize = 1 << 18;
/// What a file that zstd has compressed begins with.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A trace that is being read.
pub(crate) struct TraceInput {
    pub(crate) reader: Reader<Box<dyn BufRead>>,
    progress: Option<Progress>,
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
            return Ok(Self {
                reader: reader(io::stdin()).context("cannot read the trace on stdin")?,
                progress: None,
            });
        }
        let file = File::open(path).with_context(cannot)?;
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
        Ok(Self { reader: reader(Counted { file, read }).with_context(cannot)?, progress })
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
