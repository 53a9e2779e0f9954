//! Records as they come out of a ring: contiguous bytes, and the length of each record.

/// Many records in one buffer, which is reused.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    lengths: Vec<u32>,
}

impl Records {
    /// Adds a record. No record of a ring is longer than 4 GiB.
    pub(crate) fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.lengths.push(record.len() as u32);
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
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

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.lengths.clear();
    }
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
}
