//! Encodes groups of rows in a thread of its own, so that a trace is read and encoded at the same time.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use parquet::errors::ParquetError;
use parquet::file::writer::SerializedFileWriter;

use super::rows::Rows;

/// A file whose bytes are taken out as they come.
pub(super) type File = SerializedFileWriter<Vec<u8>>;

type Encoded = Result<(Rows, Vec<u8>), ParquetError>;

/// The thread has at most one group of rows. It does no I/O, so errors of the output are those of the caller.
#[derive(Debug)]
pub(super) struct Encoder {
    groups: SyncSender<Rows>,
    encoded: Receiver<Encoded>,
    is_busy: bool,
    thread: JoinHandle<File>,
}

impl Encoder {
    pub(super) fn start(mut file: File) -> io::Result<Self> {
        let (groups, to_encode) = sync_channel::<Rows>(1);
        let (done, encoded) = sync_channel(1);
        let run = move || {
            for rows in to_encode {
                // if nobody receives, the output failed
                if done.send(encode(&mut file, rows)).is_err() {
                    break;
                }
            }
            file
        };
        let thread = Builder::new().name("encoder".to_owned()).spawn(run)?;
        Ok(Self { groups, encoded, is_busy: false, thread })
    }

    /// Takes a group of rows and leaves rows that can be filled. Returns the bytes of the group before.
    pub(super) fn encode(&mut self, rows: &mut Rows) -> io::Result<Vec<u8>> {
        let (emptied, bytes) = match self.is_busy {
            true => self.wait()?,
            false => (Rows::new(), Vec::new()),
        };
        self.is_busy = self.groups.send(std::mem::replace(rows, emptied)).is_ok();
        if self.is_busy { Ok(bytes) } else { Err(ended()) }
    }

    fn wait(&self) -> io::Result<(Rows, Vec<u8>)> {
        self.encoded.recv().map_err(|_| ended())?.map_err(io::Error::other)
    }

    /// Waits until all groups are encoded. Returns the bytes of the last one, and the file for its end.
    pub(super) fn end(self) -> io::Result<(Vec<u8>, File)> {
        let last = if self.is_busy { self.wait()?.1 } else { Vec::new() };
        drop(self.groups);
        Ok((last, self.thread.join().map_err(|_| ended())?))
    }
}

fn ended() -> io::Error {
    io::Error::other("the thread that encodes rows has ended")
}

fn encode(file: &mut File, mut rows: Rows) -> Encoded {
    rows.write(file.next_row_group()?)?;
    Ok((rows, take_bytes(file)?))
}

/// What was encoded since it was last taken out.
pub(super) fn take_bytes(file: &mut File) -> Result<Vec<u8>, ParquetError> {
    file.flush()?;
    Ok(std::mem::take(file.inner_mut()))
}
