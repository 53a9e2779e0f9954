//! Where the bytes of a trace go: a plain file, or one that another thread compresses.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes that are handed over at once.
const BLOCK: usize = 1 << 18;
/// Blocks that may wait to be compressed. Whoever records waits for room then; what the ring cannot hold meanwhile is
/// counted as lost.
const MOST_WAITING: usize = 16;
/// The level of compression. Higher ones make lines of JSON no smaller until they take five times as long.
const LEVEL: i32 = 1;

/// Whether a file of this name is compressed.
pub(crate) fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "zst")
}

#[derive(Debug)]
pub(crate) enum Sink {
    Plain { file: BufWriter<File>, written: u64 },
    Compressed(Compressor),
}

impl Sink {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        if is_compressed(path) {
            return Compressor::start(file).map(Self::Compressed);
        }
        Ok(Self::Plain { file: BufWriter::with_capacity(BLOCK, file), written: 0 })
    }

    /// Bytes of the file so far; of a compressed one, without what is not compressed yet.
    pub(crate) fn written(&self) -> u64 {
        match self {
            Self::Plain { written, .. } => *written,
            Self::Compressed(compressor) => compressor.written.load(Ordering::Relaxed),
        }
    }

    /// Writes all that is left.
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
    /// All that came before it shall be readable, whatever happens to us.
    Flush,
}

/// A thread that compresses, and the queue to it.
#[derive(Debug)]
pub(crate) struct Compressor {
    block: Vec<u8>,
    queue: Option<SyncSender<Item>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    written: Arc<AtomicU64>,
}

impl Compressor {
    fn start(file: File) -> io::Result<Self> {
        let (queue, items) = sync_channel(MOST_WAITING);
        let written = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, written: Arc::clone(&written) };
        let thread = std::thread::Builder::new()
            .name("compressor".to_owned())
            .spawn(move || compress(counted, &items))?;
        let block = Vec::with_capacity(BLOCK);
        Ok(Self { block, queue: Some(queue), thread: Some(thread), written })
    }

    fn send(&mut self, item: Item) -> io::Result<()> {
        match &self.queue {
            Some(queue) if queue.send(item).is_ok() => Ok(()),
            // the thread has ended, and knows why
            _ => self.finish().and_then(|()| Err(io::ErrorKind::BrokenPipe.into())),
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
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the thread that compresses has ended")),
            None if sent => Ok(()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for Compressor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.block.extend_from_slice(bytes);
        if self.block.len() >= BLOCK {
            self.send_block()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_block()?;
        self.send(Item::Flush)
    }
}

fn compress(file: Counted, items: &Receiver<Item>) -> io::Result<()> {
    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
    for item in items {
        match item {
            Item::Bytes(bytes) => encoder.write_all(&bytes)?,
            Item::Flush => encoder.flush()?,
        }
    }
    encoder.finish()?.flush()
}

/// Counts what is written.
#[derive(Debug)]
struct Counted {
    file: File,
    written: Arc<AtomicU64>,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.written.fetch_add(n as u64, Ordering::Relaxed);
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

    /// What is compressed of a file can be read, also where its end is missing.
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
    fn what_was_flushed_is_readable_before_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl.zst");
        let mut sink = Sink::create(&path).unwrap();
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
    fn a_full_disk_is_told_by_whoever_writes_or_closes() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut compressor = Compressor::start(full).unwrap();
        let line: Vec<u8> = (0..BLOCK).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let failed = (0..1000).find_map(|_| compressor.write_all(&line).err());
        let error = failed.unwrap_or_else(|| compressor.finish().unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    }
}
