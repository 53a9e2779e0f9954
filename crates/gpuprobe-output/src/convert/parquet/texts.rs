//! The texts of one column in the rows that are not written yet.

use std::collections::HashMap;

use parquet::basic::Encoding;
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::ColumnDescPtr;

use super::chunk::{Chunk, PageCompressor, bits_below, push_levels, push_numbers};

/// Bytes of a page, after which the next row begins another one.
const PAGE: usize = 1 << 20;

/// Texts with few distinct values: each row has a number.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// By row: 0 if it has no value, otherwise the number of the word plus 1.
    rows: Vec<u32>,
    /// The distinct texts, each after its length, as they are in the file.
    plain: Vec<u8>,
    /// Where each of them is.
    places: Vec<(usize, usize)>,
    numbers: HashMap<Box<[u8]>, u32>,
    /// The last word of each of a few hash values, as in `rows`. Nearly all words are found here.
    recent: Vec<u32>,
}

impl Words {
    const RECENT: usize = 256;

    fn slot(text: &[u8]) -> usize {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        const SHORT: usize = 16;
        let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
        let length = text.len() as u64;
        let hash = if text.len() > SHORT {
            // rows of an event share long texts, so that their address will do
            mix(length, text.as_ptr().addr() as u64)
        } else {
            let (words, rest) = text.as_chunks::<8>();
            let whole = words.iter().fold(length, |hash, word| mix(hash, u64::from_le_bytes(*word)));
            mix(whole, rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        };
        (hash >> (u64::BITS - Self::RECENT.ilog2())) as usize
    }

    fn is(&self, number: u32, text: &[u8]) -> bool {
        let place = (number as usize).checked_sub(1).and_then(|at| self.places.get(at));
        place.is_some_and(|(begin, end)| self.plain.get(*begin..*end) == Some(text))
    }

    /// Adds the text of a row, unless it has one. Returns the bytes it takes.
    pub(super) fn push(&mut self, row: usize, text: &[u8]) -> usize {
        if self.rows.len() > row {
            return 0;
        }
        self.rows.resize(row, 0);
        let slot = Self::slot(text);
        let recent = self.recent.get(slot).copied().unwrap_or_default();
        if self.is(recent, text) {
            self.rows.push(recent);
            return 0;
        }
        let before = self.plain.len();
        let number = self.number_of(text);
        self.recent.resize(Self::RECENT, 0);
        self.recent[slot] = number;
        self.rows.push(number);
        // once in the file's form and once in the map
        2 * (self.plain.len() - before)
    }

    fn number_of(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let begin = push_plain(&mut self.plain, text);
        self.places.push((begin, self.plain.len()));
        let number = self.places.len() as u32;
        self.numbers.insert(text.into(), number);
        number
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Writes the texts of so many rows, and forgets them.
    pub(super) fn write(
        &mut self,
        compressor: &mut PageCompressor,
        column: ColumnDescPtr,
        rows: usize,
        to: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    ) -> Result<(), ParquetError> {
        self.rows.resize(rows, 0);
        let mut chunk = Chunk::new(compressor, column, Encoding::RLE_DICTIONARY);
        chunk.dictionary(self.places.len(), &self.plain)?;
        let mut page = Vec::new();
        push_levels(&mut page, self.rows.iter().map(|number| *number > 0));
        let present = self.rows.iter().filter_map(|number| number.checked_sub(1));
        let count = present.clone().count();
        push_numbers(&mut page, present, count, bits_below(self.places.len()));
        chunk.data(rows, &page)?;
        self.clear();
        chunk.end(rows, to)
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.plain.clear();
        self.places.clear();
        self.numbers.clear();
        self.recent.clear();
    }
}

/// Texts that are all different, as they are in the file.
#[derive(Debug, Default)]
pub(super) struct Texts {
    plain: Vec<u8>,
    /// By row: whether it has a text. It is behind if the last rows have none.
    present: Vec<bool>,
    /// Where pages end: rows and bytes.
    pages: Vec<(usize, usize)>,
}

impl Texts {
    /// Adds the text of a row, unless it has one. Returns the bytes it takes.
    pub(super) fn push(&mut self, row: usize, text: &[u8]) -> usize {
        if self.present.len() > row {
            return 0;
        }
        self.present.resize(row, false);
        self.present.push(true);
        push_plain(&mut self.plain, text);
        let begin = self.pages.last().map_or(0, |(_, bytes)| *bytes);
        if self.plain.len() - begin >= PAGE {
            self.pages.push((row + 1, self.plain.len()));
        }
        text.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Writes the texts of so many rows, and forgets them.
    pub(super) fn write(
        &mut self,
        compressor: &mut PageCompressor,
        column: ColumnDescPtr,
        rows: usize,
        to: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    ) -> Result<(), ParquetError> {
        self.present.resize(rows, false);
        if self.pages.last().is_none_or(|(ended, _)| *ended < rows) {
            self.pages.push((rows, self.plain.len()));
        }
        let mut chunk = Chunk::new(compressor, column, Encoding::PLAIN);
        let (mut first, mut begin, mut page) = (0, 0, Vec::new());
        for (next, end) in self.pages.drain(..) {
            page.clear();
            push_levels(&mut page, self.present.get(first..next).unwrap_or_default().iter().copied());
            page.extend_from_slice(self.plain.get(begin..end).unwrap_or_default());
            chunk.data(next - first, &page)?;
            (first, begin) = (next, end);
        }
        self.plain.clear();
        self.present.clear();
        chunk.end(rows, to)
    }
}

/// Appends a text after its length. Returns where it begins.
fn push_plain(plain: &mut Vec<u8>, text: &[u8]) -> usize {
    plain.extend((text.len() as u32).to_le_bytes());
    let begin = plain.len();
    plain.extend_from_slice(text);
    begin
}
