//! Records as they come out of a ring: bytes one after another, and where each ends.

/// Many records in one buffer, which stays when they are gone.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    lengths: Vec<u32>,
}

impl Records {
    /// Adds a record. A ring holds none that is longer than 4 GiB.
    pub(crate) fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.lengths.push(record.len() as u32);
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// In the order in which they came.
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
    fn records_come_back_as_they_were() {
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
