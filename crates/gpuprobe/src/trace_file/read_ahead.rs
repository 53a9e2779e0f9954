//! Decompresses in a thread of its own, so that a trace is decompressed and analysed at the same time.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes of a block.
const BLOCK: usize = 1 << 18;
/// Most blocks that wait for their reader.
const MOST_WAITING: usize = 8;

/// What another thread has read.
#[derive(Debug)]
pub(super) struct ReadAhead {
    blocks: Receiver<io::Result<Vec<u8>>>,
    block: Vec<u8>,
    /// How much of the block was consumed.
    at: usize,
}

impl ReadAhead {
    /// Starts to read. The thread ends at the end of the input, or after this is dropped.
    pub(super) fn start(input: impl Read + Send + 'static) -> io::Result<Self> {
        let (sender, blocks) = sync_channel(MOST_WAITING);
        std::thread::Builder::new()
            .name("decompressor".to_owned())
            .spawn(move || read_all(input, &sender))?;
        Ok(Self { blocks, block: Vec::new(), at: 0 })
    }
}

fn read_all(mut input: impl Read, blocks: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut block = vec![0; BLOCK];
        let read = match input.read(&mut block) {
            Ok(0) => return,
            Ok(length) => {
                block.truncate(length);
                Ok(block)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = read.is_err();
        if blocks.send(read).is_err() || is_last {
            return;
        }
    }
}

impl BufRead for ReadAhead {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.block.len() {
            // no more comes when the thread has ended
            self.block = self.blocks.recv().unwrap_or_else(|_| Ok(Vec::new()))?;
            self.at = 0;
        }
        Ok(self.block.get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount;
    }
}

impl Read for ReadAhead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let length = available.read(into)?;
        self.consume(length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails after some bytes.
    struct Fails(usize);

    impl Read for Fails {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let length = into.len().min(self.0);
            into[..length].fill(7);
            self.0 -= length;
            Ok(length)
        }
    }

    #[test]
    fn all_bytes_arrive_in_order() {
        let bytes: Vec<u8> = (0..5 * BLOCK + 3).map(|at| (at / 7) as u8).collect();
        let mut read = Vec::new();
        ReadAhead::start(io::Cursor::new(bytes.clone())).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn an_error_comes_after_what_was_read_before_it() {
        let mut input = ReadAhead::start(Fails(BLOCK + 5)).unwrap();
        let mut read = Vec::new();
        let error = input.read_to_end(&mut read).unwrap_err();
        assert_eq!((read.len(), error.kind()), (BLOCK + 5, io::ErrorKind::InvalidData));
        assert_eq!(input.read(&mut [0]).unwrap(), 0, "then it ends");
    }

    #[test]
    fn a_reader_that_stops_ends_the_thread() {
        let mut input = ReadAhead::start(io::repeat(1)).unwrap();
        assert_eq!(input.fill_buf().unwrap().len(), BLOCK);
    }
}
