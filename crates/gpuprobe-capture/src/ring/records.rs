//! Records as they come out of a ring: contiguous bytes, and the length of each record.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::wire::number;

/// Many records in one buffer, which is reused.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    lengths: Vec<u32>,
    calls: u64,
}

impl Records {
    /// Adds a record. No record of a ring is longer than 4 GiB.
    pub(crate) fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.lengths.push(record.len() as u32);
        self.calls += u64::from(is_call(record));
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// How many of the records are calls.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// How many bytes they take in memory and in a file.
    pub(crate) fn size(&self) -> u64 {
        (self.bytes.len() + size_of_val(self.lengths.as_slice())) as u64
    }

    /// The records in the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.bytes.as_slice();
        self.lengths.iter().map(move |length| {
            let (record, after) = rest.split_at(*length as usize);
            rest = after;
            record
        })
    }

    /// Adds the records of another buffer, which is empty then.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.bytes.append(&mut other.bytes);
        self.lengths.append(&mut other.lengths);
        self.calls += std::mem::take(&mut other.calls);
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.clear();
        self.calls = 0;
    }

    /// Writes them to a file, at this place.
    pub(crate) fn write_at(&self, file: &File, offset: u64) -> io::Result<()> {
        let lengths: Vec<u8> = self.lengths.iter().flat_map(|length| length.to_ne_bytes()).collect();
        file.write_all_at(&self.bytes, offset)?;
        file.write_all_at(&lengths, offset + self.bytes.len() as u64)
    }

    /// Replaces them by what was written to a file at this place: `count` records, which take `size` bytes there.
    pub(crate) fn read_at(&mut self, file: &File, offset: u64, count: usize, size: u64) -> io::Result<()> {
        self.clear();
        let mut lengths = vec![0; count * size_of::<u32>()];
        let bytes = size.saturating_sub(lengths.len() as u64);
        self.bytes.resize(bytes as usize, 0);
        file.read_exact_at(&mut self.bytes, offset)?;
        file.read_exact_at(&mut lengths, offset + bytes)?;
        self.lengths.extend(lengths.as_chunks().0.iter().copied().map(u32::from_ne_bytes));
        if self.lengths.iter().copied().map(u64::from).sum::<u64>() != bytes {
            self.clear();
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.calls = self.iter().filter(|record| is_call(record)).count() as u64;
        Ok(())
    }
}

fn is_call(record: &[u8]) -> bool {
    record.first_chunk() == Some(&number::RECORD_CALL.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_returned_unchanged() {
        let mut records = Records::default();
        for _ in 0..2 {
            for record in [b"one".as_slice(), b"", b"three"] {
                records.push(record);
            }
            assert_eq!(records.len(), 3);
            assert_eq!(records.iter().collect::<Vec<_>>(), [b"one".as_slice(), b"", b"three"]);
            records.clear();
            assert_eq!(records.iter().count(), 0);
        }
    }

    #[test]
    fn a_file_returns_what_was_written_to_it() {
        let file = tempfile::tempfile().unwrap();
        let mut records = Records::default();
        let call = [number::RECORD_CALL.to_ne_bytes().as_slice(), &[7; 30]].concat();
        for record in [b"one".as_slice(), b"", &call] {
            records.push(record);
        }
        records.write_at(&file, 100).unwrap();
        let mut read = Records::default();
        read.push(b"replaced");
        read.read_at(&file, 100, 3, records.size()).unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), records.iter().collect::<Vec<_>>());
        assert_eq!((read.calls(), read.size()), (1, records.size()));
        assert!(read.read_at(&file, 101, 3, records.size() - 2).is_err(), "other lengths");
        assert!(read.read_at(&file, 100, 3, records.size() + 1).is_err(), "the file is shorter");
    }
}
