//! The file of a spool: parts are added at its end and taken from its beginning.

use std::fmt;
use std::fs::File;
use std::io;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use super::records::Records;

/// Whether the file may have so many bytes on disk, of which the last ones are added now.
type HasRoom = Box<dyn FnMut(&File, u64, u64) -> bool + Send>;

/// A file for records that wait to be decoded, and how large it may become.
pub struct SpoolFile {
    file: File,
    has_room: HasRoom,
    /// The places of the oldest part and of the next one.
    begin: u64,
    end: u64,
}

impl fmt::Debug for SpoolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpoolFile")
            .field("begin", &self.begin)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// Where a part is in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredPart {
    offset: u64,
    size: u64,
    records: usize,
    pub(crate) calls: u64,
}

impl SpoolFile {
    /// Uses an empty file that nothing else writes. `has_room` is asked before every write, with the bytes that the file
    /// will have on disk, and how many of them are new.
    pub fn new(file: File, has_room: impl FnMut(&File, u64, u64) -> bool + Send + 'static) -> Self {
        Self { file, has_room: Box::new(has_room), begin: 0, end: 0 }
    }

    /// Adds a part; `None` if there is no room for it.
    pub(crate) fn add(&mut self, records: &Records) -> Option<StoredPart> {
        let size = records.size();
        if !(self.has_room)(&self.file, self.end - self.begin + size, size) {
            return None;
        }
        // a disk that fills up is as good as a full one
        records.write_at(&self.file, self.end).ok()?;
        let part = StoredPart { offset: self.end, size, records: records.len(), calls: records.calls() };
        self.end += size;
        Some(part)
    }

    /// Takes the oldest part.
    pub(crate) fn take(&mut self, part: &StoredPart, records: &mut Records) -> io::Result<()> {
        let read = records.read_at(&self.file, part.offset, part.records, part.size);
        self.begin = part.offset + part.size;
        if self.begin == self.end {
            self.clear();
        } else {
            // where this is not supported, the file is emptied when all of it has been taken
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, part.offset, part.size).ok();
        }
        read
    }

    /// Empties it.
    pub(crate) fn clear(&mut self) {
        (self.begin, self.end) = (0, 0);
        // otherwise it is overwritten
        ftruncate(&self.file, 0).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str) -> Records {
        let mut records = Records::default();
        records.push(text.as_bytes());
        records
    }

    #[test]
    fn parts_are_taken_in_order_and_their_room_is_used_again() {
        let size = records("one").size();
        let mut file = SpoolFile::new(tempfile::tempfile().unwrap(), move |_, bytes, _| bytes <= 2 * size);
        for _ in 0..2 {
            let first = file.add(&records("one")).unwrap();
            let second = file.add(&records("two")).unwrap();
            assert!(file.add(&records("six")).is_none(), "there is room for two");
            let mut taken = Records::default();
            file.take(&first, &mut taken).unwrap();
            assert_eq!(taken.iter().collect::<Vec<_>>(), [b"one"]);
            let third = file.add(&records("six")).unwrap();
            file.take(&second, &mut taken).unwrap();
            assert_eq!(taken.iter().collect::<Vec<_>>(), [b"two"]);
            file.take(&third, &mut taken).unwrap();
            assert_eq!(taken.iter().collect::<Vec<_>>(), [b"six"]);
            assert_eq!(file.file.metadata().unwrap().len(), 0);
        }
    }
}
