//! Column chunks: the values of one column in one group of rows. Those of texts, and those without values, are encoded
//! here: `parquet` would keep each text as a counted reference and look it up in a hash map, which takes longer than all
//! else that is done with a row, and would encode a level for each row of the many columns that have no value at all.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::writer::{SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;

/// zstd's level: higher ones take longer to write and save little.
pub(super) const LEVEL: i32 = 1;

/// Compresses pages.
pub(super) struct PageCompressor(Compressor<'static>);

impl std::fmt::Debug for PageCompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageCompressor")
    }
}

impl PageCompressor {
    pub(super) fn new() -> Result<Self, ParquetError> {
        Ok(Self(Compressor::new(LEVEL)?))
    }
}

/// The pages of a chunk.
pub(super) struct Chunk<'a> {
    compressor: &'a mut PageCompressor,
    column: ColumnDescPtr,
    sink: TrackedWrite<Vec<u8>>,
    encoding: Encoding,
    values: usize,
    uncompressed: usize,
    dictionary_at: Option<u64>,
    data_at: Option<u64>,
}

impl<'a> Chunk<'a> {
    /// A chunk whose values have this encoding.
    pub(super) fn new(compressor: &'a mut PageCompressor, column: ColumnDescPtr, encoding: Encoding) -> Self {
        let sink = TrackedWrite::new(Vec::new());
        Self {
            compressor,
            column,
            sink,
            encoding,
            values: 0,
            uncompressed: 0,
            dictionary_at: None,
            data_at: None,
        }
    }

    /// Adds a page of distinct values. It comes first.
    pub(super) fn dictionary(&mut self, values: usize, plain: &[u8]) -> Result<(), ParquetError> {
        let page = Page::DictionaryPage {
            buf: self.compressed(plain)?,
            num_values: values as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        self.dictionary_at = Some(self.page(page, plain.len())?);
        Ok(())
    }

    /// Adds a page of levels and values.
    pub(super) fn data(&mut self, rows: usize, plain: &[u8]) -> Result<(), ParquetError> {
        let page = Page::DataPage {
            buf: self.compressed(plain)?,
            num_values: rows as u32,
            encoding: self.encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let at = self.page(page, plain.len())?;
        self.data_at.get_or_insert(at);
        self.values += rows;
        Ok(())
    }

    fn compressed(&mut self, plain: &[u8]) -> Result<Bytes, ParquetError> {
        Ok(self.compressor.0.compress(plain)?.into())
    }

    /// Returns where it begins.
    fn page(&mut self, page: Page, uncompressed: usize) -> Result<u64, ParquetError> {
        let page = CompressedPage::new(page, uncompressed);
        let written = SerializedPageWriter::new(&mut self.sink).write_page(page)?;
        self.uncompressed += written.uncompressed_size;
        Ok(written.offset)
    }

    /// Adds the chunk to a group that has so many rows.
    pub(super) fn end(
        self,
        rows: usize,
        to: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    ) -> Result<(), ParquetError> {
        let bytes = Bytes::from(self.sink.into_inner()?);
        let mut encodings = vec![Encoding::RLE, self.encoding];
        if self.dictionary_at.is_some() {
            encodings.push(Encoding::PLAIN);
        }
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
            .set_encodings(encodings)
            .set_num_values(self.values as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_data_page_offset(self.data_at.unwrap_or_default() as i64)
            .set_dictionary_page_offset(self.dictionary_at.map(|at| at as i64))
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        to.append_column(&bytes, close)
    }
}

/// Adds a chunk without any value.
pub(super) fn add_empty(
    compressor: &mut PageCompressor,
    column: ColumnDescPtr,
    rows: usize,
    to: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
) -> Result<(), ParquetError> {
    let mut page = Vec::new();
    if column.max_rep_level() > 0 {
        push_levels(&mut page, std::iter::repeat_n(false, rows));
    }
    push_levels(&mut page, std::iter::repeat_n(false, rows));
    let mut chunk = Chunk::new(compressor, column, Encoding::PLAIN);
    chunk.data(rows, &page)?;
    chunk.end(rows, to)
}

/// Appends the levels of rows, which have a value or none.
pub(super) fn push_levels(page: &mut Vec<u8>, present: impl ExactSizeIterator<Item = bool> + Clone) {
    let begin = page.len();
    page.extend([0; size_of::<u32>()]);
    let rows = present.len();
    let with_value = present.clone().filter(|is| *is).count();
    if with_value == 0 || with_value == rows {
        push_repeated(page, u32::from(with_value > 0), rows, 1);
    } else {
        push_packed(page, present.map(u32::from), rows, 1);
    }
    let length = (page.len() - begin - size_of::<u32>()) as u32;
    page.iter_mut().skip(begin).zip(length.to_le_bytes()).for_each(|(byte, value)| *byte = value);
}

/// Appends as many numbers with so many bits each, or one number if all are the same.
pub(super) fn push_numbers(page: &mut Vec<u8>, numbers: impl Iterator<Item = u32>, count: usize, bits: u32) {
    page.push(bits as u8);
    match bits {
        0 => push_repeated(page, 0, count, 0),
        _ => push_packed(page, numbers, count, bits),
    }
}

/// The bits that numbers below this one take.
pub(super) fn bits_below(end: usize) -> u32 {
    usize::BITS - end.saturating_sub(1).leading_zeros()
}

fn push_repeated(page: &mut Vec<u8>, number: u32, count: usize, bits: u32) {
    push_varint(page, count << 1);
    page.extend(number.to_le_bytes().iter().take(bits.div_ceil(u8::BITS) as usize));
}

/// Numbers in groups of eight.
fn push_packed(page: &mut Vec<u8>, numbers: impl Iterator<Item = u32>, count: usize, bits: u32) {
    const GROUP: usize = 8;
    let groups = count.div_ceil(GROUP);
    push_varint(page, groups << 1 | 1);
    let end = page.len() + groups * bits as usize;
    let (mut word, mut filled) = (0_u64, 0);
    for number in numbers {
        word |= u64::from(number) << filled;
        filled += bits;
        while filled >= u8::BITS {
            page.push(word as u8);
            word >>= u8::BITS;
            filled -= u8::BITS;
        }
    }
    if filled > 0 {
        page.push(word as u8);
    }
    page.resize(end, 0);
}

fn push_varint(page: &mut Vec<u8>, mut n: usize) {
    while n > 0x7f {
        page.push(n as u8 | 0x80);
        n >>= 7;
    }
    page.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_a_run_or_bits() {
        let levels = |present: &[bool]| {
            let mut page = vec![7];
            push_levels(&mut page, present.iter().copied());
            page
        };
        assert_eq!(levels(&[true; 200]), [7, 3, 0, 0, 0, 0x90, 0x03, 1]);
        assert_eq!(levels(&[false; 3]), [7, 2, 0, 0, 0, 6, 0]);
        let mixed = [true, false, true, true, false, false, false, false, true];
        assert_eq!(levels(&mixed), [7, 3, 0, 0, 0, 5, 0b1101, 1]);
    }

    #[test]
    fn numbers_have_only_the_bits_that_they_need() {
        for (end, bits) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (65_536, 16), (65_537, 17)] {
            assert_eq!(bits_below(end), bits, "{end}");
        }
        let mut page = Vec::new();
        push_numbers(&mut page, [0, 1, 2, 3, 4, 5, 6, 7, 1].into_iter(), 9, 3);
        // the example of the format's specification, and a second group
        assert_eq!(page, [3, 5, 0b1000_1000, 0b1100_0110, 0b1111_1010, 1, 0, 0]);
        page.clear();
        push_numbers(&mut page, [0; 5].into_iter(), 5, 0);
        assert_eq!(page, [0, 10]);
    }
}
