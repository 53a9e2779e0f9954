//! The values of one column in the rows that are not written yet.

use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::ColumnDescPtr;

use super::chunk::{PageCompressor, add_empty};
use super::table_columns::Kind;
use super::texts::{Texts, Words};

#[derive(Debug)]
pub(super) enum Column {
    Ints(Vec<i64>, Levels),
    Doubles(Vec<f64>, Levels),
    Bools(Vec<bool>, Levels),
    Words(Words),
    Texts(Texts),
    Lists(Vec<ByteArray>, Levels),
}

/// Which rows have a value, as Parquet has it.
#[derive(Debug, Default)]
pub(super) struct Levels {
    /// A level for each row, and for each further element of a list.
    defined: Vec<i16>,
    /// For a list: 0 for each row, and 1 for each further element.
    repeated: Vec<i16>,
    /// Rows that it has levels for. It is behind if the last rows have no value.
    rows: usize,
}

impl Levels {
    const ABSENT: i16 = 0;
    const PRESENT: i16 = 1;
    /// Of a list: it has no elements, or this one.
    const EMPTY: i16 = 1;
    const ELEMENT: i16 = 2;

    /// Fills up with rows that have no value.
    fn fill_to(&mut self, rows: usize) {
        let missing = rows.saturating_sub(self.rows);
        self.defined.resize(self.defined.len() + missing, Self::ABSENT);
        self.rows += missing;
    }

    /// Begins the value of a row; `false` if the row has one.
    #[inline]
    fn begin(&mut self, row: usize) -> bool {
        if self.rows > row {
            return false;
        }
        if self.rows < row {
            self.fill_to(row);
        }
        self.defined.push(Self::PRESENT);
        self.rows = row + 1;
        true
    }

    /// Begins a list of this length in a row; `false` if the row has one.
    fn begin_list(&mut self, row: usize, length: usize) -> bool {
        if self.rows > row {
            return false;
        }
        self.fill_to(row);
        self.repeated.resize(self.defined.len(), 0);
        let level = if length == 0 { Self::EMPTY } else { Self::ELEMENT };
        self.defined.resize(self.defined.len() + length.max(1), level);
        self.repeated.push(0);
        self.repeated.resize(self.defined.len(), 1);
        self.rows = row + 1;
        true
    }

    /// Forgets all rows.
    fn clear(&mut self) {
        self.defined.clear();
        self.repeated.clear();
        self.rows = 0;
    }

    fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

impl Column {
    pub(super) fn new(kind: Kind) -> Self {
        let levels = Levels::default();
        match kind {
            Kind::Int | Kind::Rising | Kind::Time | Kind::Dim3 => Self::Ints(Vec::new(), levels),
            Kind::Double => Self::Doubles(Vec::new(), levels),
            Kind::Bool => Self::Bools(Vec::new(), levels),
            Kind::Word => Self::Words(Words::default()),
            Kind::Text | Kind::Json => Self::Texts(Texts::default()),
            Kind::Texts => Self::Lists(Vec::new(), levels),
        }
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self, Self::Words(_) | Self::Texts(_) | Self::Lists(..))
    }

    #[inline]
    pub(super) fn push_int(&mut self, row: usize, n: i64) {
        if let Self::Ints(values, levels) = self
            && levels.begin(row)
        {
            values.push(n);
        }
    }

    #[inline]
    pub(super) fn push_double(&mut self, row: usize, n: f64) {
        if let Self::Doubles(values, levels) = self
            && levels.begin(row)
        {
            values.push(n);
        }
    }

    #[inline]
    pub(super) fn push_bool(&mut self, row: usize, is: bool) {
        if let Self::Bools(values, levels) = self
            && levels.begin(row)
        {
            values.push(is);
        }
    }

    /// Adds a text in UTF-8. Returns the bytes it takes.
    #[inline]
    pub(super) fn push_text(&mut self, row: usize, text: &[u8]) -> usize {
        match self {
            Self::Words(words) => words.push(row, text),
            Self::Texts(texts) => texts.push(row, text),
            Self::Ints(..) | Self::Doubles(..) | Self::Bools(..) | Self::Lists(..) => 0,
        }
    }

    /// Adds a list. Returns the bytes it takes.
    pub(super) fn push_list(&mut self, row: usize, texts: &[String]) -> usize {
        let Self::Lists(values, levels) = self else { return 0 };
        if !levels.begin_list(row, texts.len()) {
            return 0;
        }
        values.extend(texts.iter().map(|text| ByteArray::from(text.as_str())));
        texts.iter().map(|text| text.len() + size_of::<ByteArray>()).sum()
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Ints(_, levels)
            | Self::Doubles(_, levels)
            | Self::Bools(_, levels)
            | Self::Lists(_, levels) => levels.is_empty(),
            Self::Words(words) => words.is_empty(),
            Self::Texts(texts) => texts.is_empty(),
        }
    }

    /// Writes the values of so many rows, and forgets them.
    pub(super) fn write(
        &mut self,
        compressor: &mut PageCompressor,
        column: ColumnDescPtr,
        rows: usize,
        to: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    ) -> Result<(), ParquetError> {
        if self.is_empty() {
            return add_empty(compressor, column, rows, to);
        }
        match self {
            Self::Words(words) => return words.write(compressor, column, rows, to),
            Self::Texts(texts) => return texts.write(compressor, column, rows, to),
            Self::Ints(..) | Self::Doubles(..) | Self::Bools(..) | Self::Lists(..) => {}
        }
        let Some(mut writer) = to.next_column()? else { return Ok(()) };
        self.write_by(rows, writer.untyped())?;
        writer.close()
    }

    fn write_by(&mut self, rows: usize, to: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        match (self, to) {
            (Self::Ints(values, levels), ColumnWriter::Int64ColumnWriter(to)) => {
                levels.fill_to(rows);
                to.write_batch(values, Some(&levels.defined), None)?;
                values.clear();
                levels.clear();
            }
            (Self::Doubles(values, levels), ColumnWriter::DoubleColumnWriter(to)) => {
                levels.fill_to(rows);
                to.write_batch(values, Some(&levels.defined), None)?;
                values.clear();
                levels.clear();
            }
            (Self::Bools(values, levels), ColumnWriter::BoolColumnWriter(to)) => {
                levels.fill_to(rows);
                to.write_batch(values, Some(&levels.defined), None)?;
                values.clear();
                levels.clear();
            }
            (Self::Lists(values, levels), ColumnWriter::ByteArrayColumnWriter(to)) => {
                levels.fill_to(rows);
                levels.repeated.resize(levels.defined.len(), 0);
                to.write_batch(values, Some(&levels.defined), Some(&levels.repeated))?;
                values.clear();
                levels.clear();
            }
            _ => return Err(ParquetError::General("a column has another type in the schema".to_owned())),
        }
        Ok(())
    }
}
