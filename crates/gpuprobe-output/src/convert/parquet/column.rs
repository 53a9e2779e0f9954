//! The values of one column in the rows that are not written yet.

use bytes::Bytes;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;

use super::table_columns::Kind;

#[derive(Debug)]
pub(super) struct Column {
    values: Values,
    levels: Levels,
}

#[derive(Debug)]
enum Values {
    Ints(Vec<i64>),
    Doubles(Vec<f64>),
    Bools(Vec<bool>),
    Texts(Texts),
}

/// Texts one after the other in one buffer, which is passed on without a copy and comes back.
#[derive(Debug, Default)]
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    passed_on: Bytes,
}

/// Which rows have a value, as Parquet has it.
#[derive(Debug)]
struct Levels {
    /// The level of a value that is there.
    present: i16,
    /// A level for each row, and for each further element of a list.
    defined: Vec<i16>,
    /// For a list: 0 for each row, and 1 for each further element.
    repeated: Option<Vec<i16>>,
    /// Rows that it has levels for. It is behind if the last rows have no value.
    rows: usize,
}

impl Levels {
    const ABSENT: i16 = 0;
    /// Of a list.
    const EMPTY: i16 = 1;

    /// Fills up with rows that have no value.
    fn fill_to(&mut self, rows: usize) {
        let missing = rows.saturating_sub(self.rows);
        if missing == 0 {
            return;
        }
        self.defined.resize(self.defined.len() + missing, Self::ABSENT);
        if let Some(repeated) = &mut self.repeated {
            repeated.resize(self.defined.len(), 0);
        }
        self.rows = rows;
    }

    /// Begins the value of a row; `false` if the row has one.
    fn begin(&mut self, row: usize) -> bool {
        if self.rows > row {
            return false;
        }
        self.fill_to(row);
        self.defined.push(self.present);
        self.rows = row + 1;
        true
    }

    /// Begins a list of this length in a row; `false` if the row has one.
    fn begin_list(&mut self, row: usize, length: usize) -> bool {
        if !self.begin(row) {
            return false;
        }
        if length == 0 {
            self.defined.pop();
            self.defined.push(Self::EMPTY);
        }
        self.defined.resize(self.defined.len() + length.saturating_sub(1), self.present);
        if let Some(repeated) = &mut self.repeated {
            repeated.push(0);
            repeated.resize(self.defined.len(), 1);
        }
        true
    }

    /// Forgets all rows, and gives the memory back if none has a value: most columns have none at all.
    fn clear(&mut self) {
        match self.defined.iter().any(|level| *level != Self::ABSENT) {
            true => self.defined.clear(),
            false => self.defined = Vec::new(),
        }
        self.repeated.iter_mut().for_each(Vec::clear);
        self.rows = 0;
    }
}

impl Column {
    pub(super) fn new(kind: Kind) -> Self {
        let values = match kind {
            Kind::Int | Kind::Rising | Kind::Time | Kind::Dim3 => Values::Ints(Vec::new()),
            Kind::Double => Values::Doubles(Vec::new()),
            Kind::Bool => Values::Bools(Vec::new()),
            Kind::Word | Kind::Text | Kind::Json | Kind::Texts => Values::Texts(Texts::default()),
        };
        let is_list = kind == Kind::Texts;
        let present = if is_list { Levels::EMPTY + 1 } else { Levels::ABSENT + 1 };
        let repeated = is_list.then(Vec::new);
        Self { values, levels: Levels { present, defined: Vec::new(), repeated, rows: 0 } }
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self.values, Values::Texts(_))
    }

    pub(super) fn push_int(&mut self, row: usize, n: i64) {
        if let Values::Ints(values) = &mut self.values
            && self.levels.begin(row)
        {
            values.push(n);
        }
    }

    pub(super) fn push_double(&mut self, row: usize, n: f64) {
        if let Values::Doubles(values) = &mut self.values
            && self.levels.begin(row)
        {
            values.push(n);
        }
    }

    pub(super) fn push_bool(&mut self, row: usize, is: bool) {
        if let Values::Bools(values) = &mut self.values
            && self.levels.begin(row)
        {
            values.push(is);
        }
    }

    /// Adds a text in UTF-8. Returns the bytes it takes.
    pub(super) fn push_text(&mut self, row: usize, text: &[u8]) -> usize {
        let Values::Texts(values) = &mut self.values else { return 0 };
        if !self.levels.begin(row) {
            return 0;
        }
        values.push(text);
        text.len()
    }

    /// Adds a list. Returns the bytes it takes.
    pub(super) fn push_list(&mut self, row: usize, texts: &[String]) -> usize {
        let Values::Texts(values) = &mut self.values else { return 0 };
        if !self.levels.begin_list(row, texts.len()) {
            return 0;
        }
        texts.iter().for_each(|text| values.push(text.as_bytes()));
        texts.iter().map(String::len).sum()
    }

    /// Writes the values of so many rows, and forgets them.
    pub(super) fn write(&mut self, rows: usize, to: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        self.levels.fill_to(rows);
        let defined = Some(self.levels.defined.as_slice());
        let repeated = self.levels.repeated.as_deref();
        match (&mut self.values, to) {
            (Values::Ints(values), ColumnWriter::Int64ColumnWriter(to)) => {
                to.write_batch(values, defined, repeated)?;
                values.clear();
            }
            (Values::Doubles(values), ColumnWriter::DoubleColumnWriter(to)) => {
                to.write_batch(values, defined, repeated)?;
                values.clear();
            }
            (Values::Bools(values), ColumnWriter::BoolColumnWriter(to)) => {
                to.write_batch(values, defined, repeated)?;
                values.clear();
            }
            (Values::Texts(values), ColumnWriter::ByteArrayColumnWriter(to)) => {
                to.write_batch(&values.take(), defined, repeated)?;
            }
            _ => return Err(ParquetError::General("a column has another type in the schema".to_owned())),
        }
        self.levels.clear();
        Ok(())
    }

    /// Takes the buffer of texts back, after the writer is done with the column. New ones of other sizes for each group
    /// of rows would leave holes in the heap.
    pub(super) fn reuse(&mut self) {
        if let Values::Texts(texts) = &mut self.values
            && let Ok(mut buffer) = std::mem::take(&mut texts.passed_on).try_into_mut()
        {
            buffer.clear();
            texts.bytes = buffer.into();
        }
    }
}

impl Texts {
    fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// The texts, as parts of one buffer.
    fn take(&mut self) -> Vec<ByteArray> {
        let bytes = Bytes::from(std::mem::take(&mut self.bytes));
        let mut begin = 0;
        let texts = self.ends.drain(..).map(|end| {
            let text = bytes.slice(begin..end);
            begin = end;
            ByteArray::from(text)
        });
        let texts = texts.collect();
        self.passed_on = bytes;
        texts
    }
}
