//! Batches: a header, and records with their lengths.

use thiserror::Error;

use super::bytes::Reader;
use super::record::AgentRecord;

/// `GPA1` in the order of bytes.
const MAGIC: u32 = u32::from_le_bytes(*b"GPA1");
const HEADER_BYTES: usize = 32;
const RECORD_HEADER_BYTES: usize = 4;
/// Texts are cut here, so that a record fits into every batch.
const LONGEST_TEXT: usize = 4096;

/// What a batch begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchHeader {
    /// Counts the batches of a process. A gap is a lost batch.
    pub sequence: u64,
    /// Records that CUPTI or the agent dropped since the process started.
    pub dropped: u64,
    /// Records of a kind that the agent does not know, since the process started.
    pub unknown: u64,
}

/// Collects records until a batch is full.
#[derive(Debug)]
pub struct BatchEncoder {
    bytes: Vec<u8>,
}

impl BatchEncoder {
    /// The most bytes of a batch. BPF copies a batch as a whole.
    pub const MOST_BYTES: usize = 32 << 10;

    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(Self::MOST_BYTES);
        bytes.resize(HEADER_BYTES, 0);
        Self { bytes }
    }

    /// Adds a record; `false` if the batch is full, and then it is not added.
    pub fn add(&mut self, record: &AgentRecord) -> bool {
        let begin = self.bytes.len();
        self.bytes.extend([0; RECORD_HEADER_BYTES]);
        record.encode(&mut self.bytes);
        let longest = LONGEST_TEXT + 64;
        // the length of a record is in two bytes
        self.bytes.truncate(begin + RECORD_HEADER_BYTES + longest);
        if self.bytes.len() > Self::MOST_BYTES {
            self.bytes.truncate(begin);
            return false;
        }
        let length = (self.bytes.len() - begin) as u16;
        if let Some(head) = self.bytes.get_mut(begin..begin + RECORD_HEADER_BYTES) {
            let (kind, of_length) = head.split_at_mut(2);
            kind.copy_from_slice(&record.kind().to_le_bytes());
            of_length.copy_from_slice(&length.to_le_bytes());
        }
        true
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.len() == HEADER_BYTES
    }

    /// The bytes of the batch. The next record begins another one after `clear`.
    pub fn finish(&mut self, header: &BatchHeader) -> &[u8] {
        let mut head = Vec::with_capacity(HEADER_BYTES);
        head.extend(MAGIC.to_le_bytes());
        head.extend((self.bytes.len() as u32).to_le_bytes());
        for number in [header.sequence, header.dropped, header.unknown] {
            head.extend(number.to_le_bytes());
        }
        if let Some(begin) = self.bytes.get_mut(..HEADER_BYTES) {
            begin.copy_from_slice(&head);
        }
        &self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
    }
}

impl Default for BatchEncoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Why bytes are no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    #[error("the agent's data does not begin as a batch does: the agent is of another version")]
    Magic,
    #[error("a batch of the agent is cut off")]
    Cut,
}

/// Reads the records of a batch. The bytes come from another process and may be anything.
#[derive(Debug)]
pub struct BatchDecoder<'b> {
    pub header: BatchHeader,
    rest: &'b [u8],
    /// Records that were not understood so far.
    pub skipped: u64,
}

impl<'b> BatchDecoder<'b> {
    pub fn new(bytes: &'b [u8]) -> Result<Self, BatchError> {
        let mut from = Reader(bytes);
        if from.u32() != Some(MAGIC) {
            return Err(BatchError::Magic);
        }
        let mut header = || {
            let length = from.u32()? as usize;
            let header = BatchHeader { sequence: from.u64()?, dropped: from.u64()?, unknown: from.u64()? };
            let rest = from.take(length.checked_sub(HEADER_BYTES)?)?;
            Some((header, rest))
        };
        let (header, rest) = header().ok_or(BatchError::Cut)?;
        Ok(Self { header, rest, skipped: 0 })
    }
}

impl Iterator for BatchDecoder<'_> {
    type Item = AgentRecord;

    fn next(&mut self) -> Option<AgentRecord> {
        while !self.rest.is_empty() {
            let mut from = Reader(self.rest);
            let mut record = || {
                let (kind, length) = (from.u16()?, from.u16()?);
                let bytes = from.take(usize::from(length).checked_sub(RECORD_HEADER_BYTES)?)?;
                Some((kind, bytes))
            };
            let Some((kind, bytes)) = record() else {
                // nothing after it can be found
                self.skipped += 1;
                self.rest = &[];
                return None;
            };
            self.rest = from.0;
            if let Some(record) = AgentRecord::decode(kind, bytes) {
                return Some(record);
            }
            self.skipped += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{
        Activity, ActivityKind, AgentState, Collection, GraphRecords, RangeKind, RangeRecord,
    };
    use super::*;

    fn records() -> Vec<AgentRecord> {
        let activity = Activity {
            kind: ActivityKind::Copy,
            copy_kind: 1,
            start_ns: 1,
            end_ns: 2,
            correlation: 3,
            device: 4,
            context: 5,
            stream: 6,
            graph: 7,
            graph_node: 8,
            bytes: 9,
            name: 10,
            grid: [11, 12, 13],
            block: [14, 15, 16],
            shared_bytes: 17,
        };
        let state = AgentState {
            collection: Collection::Refused,
            graphs: GraphRecords::NodesOfRunning,
            code: 39,
            tid: 7,
            begin_ns: 1,
            end_ns: 2,
            text: "another subscriber".to_owned(),
        };
        let range = RangeRecord {
            kind: RangeKind::Nested,
            tid: 9,
            start_ns: 1,
            end_ns: 2,
            domain: 3,
            name: 4,
            color: 5,
        };
        vec![
            AgentRecord::Activity(activity),
            AgentRecord::Name { id: 10, text: "_Z3addPf".to_owned() },
            AgentRecord::State(state),
            AgentRecord::Range(range),
        ]
    }

    fn batch(records: &[AgentRecord]) -> Vec<u8> {
        let mut encoder = BatchEncoder::new();
        assert!(records.iter().all(|record| encoder.add(record)));
        encoder.finish(&BatchHeader { sequence: 1, dropped: 2, unknown: 3 }).to_vec()
    }

    #[test]
    fn records_come_back_as_they_were() {
        let bytes = batch(&records());
        let mut decoder = BatchDecoder::new(&bytes).expect("a batch");
        assert_eq!(decoder.header, BatchHeader { sequence: 1, dropped: 2, unknown: 3 });
        let found: Vec<_> = decoder.by_ref().collect();
        assert_eq!((found, decoder.skipped), (records(), 0));
    }

    #[test]
    fn what_cannot_be_understood_is_counted() {
        let bytes = batch(&records());
        for end in 0..bytes.len() {
            assert!(BatchDecoder::new(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut unknown = bytes.clone();
        unknown[HEADER_BYTES] = 99;
        let mut decoder = BatchDecoder::new(&unknown).expect("a batch");
        assert_eq!((decoder.by_ref().count(), decoder.skipped), (3, 1));
        let mut endless = bytes.clone();
        endless[HEADER_BYTES + 2..HEADER_BYTES + 4].copy_from_slice(&[0xff, 0xff]);
        let mut decoder = BatchDecoder::new(&endless).expect("a batch");
        assert_eq!((decoder.by_ref().count(), decoder.skipped), (0, 1));
        endless[HEADER_BYTES + 2..HEADER_BYTES + 4].copy_from_slice(&[0, 0]);
        let mut decoder = BatchDecoder::new(&endless).expect("a batch");
        assert_eq!((decoder.by_ref().count(), decoder.skipped), (0, 1));
    }

    #[test]
    fn a_full_batch_takes_no_more_and_long_texts_are_cut() {
        let mut encoder = BatchEncoder::new();
        assert!(encoder.is_empty());
        let long = AgentRecord::Name { id: 1, text: "x".repeat(100_000) };
        let taken = std::iter::repeat_with(|| encoder.add(&long)).take(100).filter(|added| *added).count();
        assert_eq!(taken, 7);
        let bytes = encoder.finish(&BatchHeader::default()).to_vec();
        assert!(bytes.len() <= BatchEncoder::MOST_BYTES);
        assert_eq!(BatchDecoder::new(&bytes).expect("a batch").count(), 7);
        encoder.clear();
        assert!(encoder.is_empty());
    }
}
