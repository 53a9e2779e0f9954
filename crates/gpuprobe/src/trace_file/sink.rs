//! Writes the bytes of a trace: to a plain file, or to a file that another thread compresses.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes per write.
const BLOCK: usize = 1 << 18;
/// Most blocks in the queue to the compressor. If it is full, the recording waits; records that do not fit into the
/// ring buffer meanwhile are counted as lost.
const MOST_WAITING: usize = 16;
/// The compression level. For JSON lines, higher levels give no smaller files until they take five times as long.
const LEVEL: i32 = 1;

/// Whether a file with this name is compressed.
pub(crate) fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "zst")
}

#[derive(Debug)]
pub(crate) enum Sink {
    Plain { file: BufWriter<File>, written: u64 },
    Compressed(Compressor),
}

/// The state of a file after an error.
#[derive(Debug)]
pub(crate) struct Abandoned {
    /// Bytes in the file.
    pub(crate) written: u64,
    /// Lines that are not in it; `None` if unknown.
    pub(crate) lost_lines: Option<u64>,
}

impl Sink {
    /// Starts to write to a file that was opened by this path.
    pub(crate) fn new(file: File, path: &Path) -> io::Result<Self> {
        if is_compressed(path) {
            return Compressor::start(file).map(Self::Compressed);
        }
        Ok(Self::Plain { file: BufWriter::with_capacity(BLOCK, file), written: 0 })
    }

    /// Bytes in the file, without those that wait for the compressor.
    pub(crate) fn written(&self) -> u64 {
        match self {
            Self::Plain { written, .. } => *written,
            Self::Compressed(compressor) => compressor.written.load(Ordering::Relaxed),
        }
    }

    /// Bytes written to this sink, before compression. Until everything is in the file, it grows by less than this.
    pub(crate) fn received(&self) -> u64 {
        match self {
            Self::Plain { written, .. } => *written,
            Self::Compressed(compressor) => compressor.received,
        }
    }

    /// An upper bound of the file size when everything has been written: how well data compresses is not known before.
    pub(crate) fn upper_bound(&self) -> u64 {
        match self {
            Self::Plain { written, .. } => *written,
            Self::Compressed(compressor) => compressor.upper_bound(),
        }
    }

    /// An upper bound of the bytes that are not in the file yet.
    pub(crate) fn unwritten(&self) -> u64 {
        match self {
            Self::Plain { file, .. } => file.buffer().len() as u64,
            Self::Compressed(compressor) => compressor.upper_bound().saturating_sub(self.written()),
        }
    }

    /// Waits until everything is in the file. Returns the file size.
    pub(crate) fn settle(&mut self) -> io::Result<u64> {
        match self {
            Self::Plain { file, .. } => file.flush()?,
            Self::Compressed(compressor) => compressor.settle()?,
        }
        Ok(self.written())
    }

    /// Gives up after an error.
    pub(crate) fn abandon(self) -> Abandoned {
        match self {
            Self::Plain { file, written } => {
                let unwritten = file.into_parts().1.unwrap_or_default();
                let lost_lines = unwritten.iter().filter(|byte| **byte == b'\n').count() as u64;
                Abandoned { written: written - unwritten.len() as u64, lost_lines: Some(lost_lines) }
            }
            Self::Compressed(mut compressor) => {
                // what it has compressed stays readable
                compressor.finish().ok();
                Abandoned { written: compressor.written.load(Ordering::Acquire), lost_lines: None }
            }
        }
    }

    /// Writes the rest.
    pub(crate) fn close(self) -> io::Result<()> {
        match self {
            Self::Plain { mut file, .. } => file.flush(),
            Self::Compressed(mut compressor) => compressor.finish(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain { file, written } => {
                let n = file.write(bytes)?;
                *written += n as u64;
                Ok(n)
            }
            Self::Compressed(compressor) => compressor.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain { file, .. } => file.flush(),
            Self::Compressed(compressor) => compressor.flush(),
        }
    }
}

#[derive(Debug)]
enum Item {
    Bytes(Vec<u8>),
    /// Makes everything before it readable, even if gpuprobe is killed; notifies the sender, if given.
    Flush(Option<SyncSender<()>>),
}

/// A compressing thread and its queue.
#[derive(Debug)]
pub(crate) struct Compressor {
    block: Vec<u8>,
    queue: Option<SyncSender<Item>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Bytes written to the compressor.
    received: u64,
    /// Of these, the bytes that are certainly in the file.
    settled: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Compressor {
    fn start(file: File) -> io::Result<Self> {
        let (queue, items) = sync_channel(MOST_WAITING);
        let written = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, written: Arc::clone(&written) };
        let settled = Arc::new(AtomicU64::new(0));
        let settles = Arc::clone(&settled);
        let thread = std::thread::Builder::new()
            .name("compressor".to_owned())
            .spawn(move || compress(counted, &items, &settles))?;
        let block = Vec::with_capacity(BLOCK);
        Ok(Self { block, queue: Some(queue), thread: Some(thread), received: 0, settled, written })
    }

    /// Incompressible data grows a little: by a few bytes for each block, and at the end.
    fn upper_bound(&self) -> u64 {
        const END: u64 = 64;
        // in this order: bytes that settle meanwhile are counted twice rather than not at all
        let settled = self.settled.load(Ordering::Acquire);
        let written = self.written.load(Ordering::Acquire);
        let waiting = self.received - settled;
        written + waiting + waiting / 256 + END
    }

    fn settle(&mut self) -> io::Result<()> {
        let (sender, receiver) = sync_channel(1);
        self.send_block()?;
        self.send(Item::Flush(Some(sender)))?;
        match receiver.recv() {
            Ok(()) => Ok(()),
            Err(_) => self.thread_error(),
        }
    }

    /// The error of a thread that ended early.
    fn thread_error(&mut self) -> io::Result<()> {
        self.finish().and_then(|()| Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn send(&mut self, item: Item) -> io::Result<()> {
        match &self.queue {
            Some(queue) if queue.send(item).is_ok() => Ok(()),
            _ => self.thread_error(),
        }
    }

    fn send_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        self.send(Item::Bytes(block))
    }

    fn finish(&mut self) -> io::Result<()> {
        let sent = if self.queue.is_some() && !self.block.is_empty() {
            let block = std::mem::take(&mut self.block);
            self.queue.as_ref().is_some_and(|queue| queue.send(Item::Bytes(block)).is_ok())
        } else {
            true
        };
        self.queue = None;
        let result = self.thread.take().map(JoinHandle::join);
        match result {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the compressing thread has panicked")),
            None if sent => Ok(()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for Compressor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.block.extend_from_slice(bytes);
        self.received += bytes.len() as u64;
        if self.block.len() >= BLOCK {
            self.send_block()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_block()?;
        self.send(Item::Flush(None))
    }
}

fn compress(file: Counted, items: &Receiver<Item>, settled: &AtomicU64) -> io::Result<()> {
    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
    let mut taken = 0;
    for item in items {
        match item {
            Item::Bytes(bytes) => {
                encoder.write_all(&bytes)?;
                taken += bytes.len() as u64;
            }
            Item::Flush(sender) => {
                encoder.flush()?;
                settled.store(taken, Ordering::Release);
                // the receiver may be gone
                sender.map(|sender| sender.send(()).ok());
            }
        }
    }
    encoder.finish()?.flush()
}

/// Counts written bytes.
#[derive(Debug)]
struct Counted {
    file: File,
    written: Arc<AtomicU64>,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.written.fetch_add(n as u64, Ordering::AcqRel);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The readable part of a compressed file, even if its end is missing.
    fn read(path: &Path) -> Vec<u8> {
        let mut all = Vec::new();
        let mut decoder = zstd::Decoder::new(File::open(path).unwrap()).unwrap();
        let mut block = [0; 4096];
        while let Ok(n @ 1..) = decoder.read(&mut block) {
            all.extend_from_slice(&block[..n]);
        }
        all
    }

    #[test]
    fn flushed_data_is_readable_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl.zst");
        let mut sink = Sink::new(File::create(&path).unwrap(), &path).unwrap();
        sink.write_all(b"one line\n").unwrap();
        sink.flush().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while read(&path) != b"one line\n" {
            assert!(std::time::Instant::now() < deadline, "{:?}", read(&path));
        }
        let many = b"another line\n".repeat(100_000);
        sink.write_all(&many).unwrap();
        sink.close().unwrap();
        assert!(read(&path) == [&b"one line\n"[..], &many].concat());
    }

    #[test]
    fn the_upper_bound_is_never_below_the_file_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl.zst");
        let mut sink = Sink::new(File::create(&path).unwrap(), &path).unwrap();
        let size = || std::fs::metadata(&path).unwrap().len();
        let mut noise = 1_u64;
        for lines in 0..2000_u64 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sink.write_all(noise.to_string().as_bytes()).unwrap();
            let upper_bound = sink.upper_bound();
            if lines % 100 == 0 {
                assert_eq!(sink.settle().unwrap(), size());
                assert!(size() <= upper_bound, "{} of at upper_bound {upper_bound}", size());
            }
        }
        let upper_bound = sink.upper_bound();
        sink.close().unwrap();
        assert!(size() <= upper_bound, "{} of at upper_bound {upper_bound}", size());
    }

    #[test]
    fn a_full_disk_is_reported_by_write_or_close() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut compressor = Compressor::start(full).unwrap();
        let line: Vec<u8> = (0..BLOCK).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let failed = (0..1000).find_map(|_| compressor.write_all(&line).err());
        let error = failed.unwrap_or_else(|| compressor.finish().unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut compressor = Compressor::start(full).unwrap();
        compressor.write_all(b"one line\n").unwrap();
        assert_eq!(compressor.settle().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
