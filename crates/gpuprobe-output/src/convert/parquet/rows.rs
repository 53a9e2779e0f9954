//! The rows that are not written yet, by column.

use std::sync::Arc;

use gpuprobe_event::Name;
use gpuprobe_event::trace::{Fields, Json, Key};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::ColumnDescPtr;

use super::chunk::PageCompressor;
use super::column::Column;
use super::table_columns::{COLUMNS, ColumnIndex, DIMENSIONS, LIVE_BY_KIND};
use crate::units::{push_decimal, push_hex};

/// Writes the fields of one row after the other into columns. What is inside an object or a list becomes JSON text.
#[derive(Debug)]
pub(super) struct Rows {
    index: ColumnIndex,
    columns: Vec<Column>,
    /// The number of complete rows.
    complete: usize,
    /// Bytes of texts in them.
    text_bytes: usize,
    /// The object or list that is being written, the column it is for, and how deep it is.
    json: Vec<u8>,
    json_leaf: Option<usize>,
    depth: usize,
    scratch: String,
    too_large: u64,
}

impl Rows {
    pub(super) fn new() -> Self {
        let columns = COLUMNS.iter().flat_map(|(_, kind)| (0..kind.leaves()).map(|_| Column::new(*kind)));
        Self {
            index: ColumnIndex::new(),
            columns: columns.collect(),
            complete: 0,
            text_bytes: 0,
            json: Vec::new(),
            json_leaf: None,
            depth: 0,
            scratch: String::new(),
            too_large: 0,
        }
    }

    /// Ends a row.
    pub(super) fn end_row(&mut self) {
        self.complete += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.complete
    }

    pub(super) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Numbers in them that did not fit.
    pub(super) fn too_large(&self) -> u64 {
        self.too_large
    }

    /// Writes the rows, and forgets them.
    pub(super) fn write(
        &mut self,
        compressor: &mut PageCompressor,
        schema: &[ColumnDescPtr],
        mut to: SerializedRowGroupWriter<'_, Vec<u8>>,
    ) -> Result<(), ParquetError> {
        for (column, of) in self.columns.iter_mut().zip(schema) {
            column.write(compressor, Arc::clone(of), self.complete, &mut to)?;
        }
        to.close()?;
        (self.complete, self.text_bytes, self.too_large) = (0, 0, 0);
        Ok(())
    }

    pub(super) fn double<'k>(&mut self, key: impl Into<Key<'k>>, n: f64) {
        let row = self.complete;
        if let Some(column) = self.column(key.into()) {
            column.push_double(row, n);
        }
    }

    #[inline]
    fn leaf(&mut self, key: Key<'_>) -> Option<usize> {
        let leaf = self.index.leaf(key);
        debug_assert!(leaf.is_some(), "the field {} has no column", key.as_str());
        leaf
    }

    #[inline]
    fn column(&mut self, key: Key<'_>) -> Option<&mut Column> {
        let leaf = self.leaf(key)?;
        self.columns.get_mut(leaf)
    }

    fn push_bytes(&mut self, leaf: Option<usize>, text: &[u8]) {
        let row = self.complete;
        if let Some(column) = leaf.and_then(|leaf| self.columns.get_mut(leaf)) {
            self.text_bytes += column.push_text(row, text);
        }
    }

    fn open_json(&mut self, key: Key<'_>, bracket: u8) {
        let key = match key.as_str() {
            "live" => Key::Ours(LIVE_BY_KIND),
            _ => key,
        };
        self.json_leaf = self.leaf(key);
        self.json.clear();
        self.json.push(bracket);
        self.depth = 1;
    }

    /// Passes the text to its column if it is complete.
    fn closed(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            let json = std::mem::take(&mut self.json);
            self.push_bytes(self.json_leaf, &json);
            self.json = json;
        }
    }
}

impl Fields for Rows {
    fn uint<'k>(&mut self, key: impl Into<Key<'k>>, n: u64) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).uint(key, n);
        }
        let row = self.complete;
        match (self.column(key), i64::try_from(n)) {
            // the stream of an execution is a number, and that of a call a handle
            (Some(column), _) if column.is_text() => {
                let mut digits = std::mem::take(&mut self.scratch);
                digits.clear();
                push_decimal(&mut digits, n);
                let leaf = self.leaf(key);
                self.push_bytes(leaf, digits.as_bytes());
                self.scratch = digits;
            }
            (Some(column), Ok(n)) => column.push_int(row, n),
            (_, Err(_)) => self.too_large += 1,
            (None, Ok(_)) => {}
        }
    }

    fn microseconds<'k>(&mut self, key: impl Into<Key<'k>>, ns: u64) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).microseconds(key, ns);
        }
        self.double(key, ns as f64 / 1e3);
    }

    fn int<'k>(&mut self, key: impl Into<Key<'k>>, n: i64) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).int(key, n);
        }
        let row = self.complete;
        if let Some(column) = self.column(key) {
            column.push_int(row, n);
        }
    }

    fn flag<'k>(&mut self, key: impl Into<Key<'k>>, is: bool) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).flag(key, is);
        }
        let row = self.complete;
        if let Some(column) = self.column(key) {
            column.push_bool(row, is);
        }
    }

    fn hex<'k>(&mut self, key: impl Into<Key<'k>>, n: u64) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).hex(key, n);
        }
        let mut digits = std::mem::take(&mut self.scratch);
        digits.clear();
        push_hex(&mut digits, n);
        let leaf = self.leaf(key);
        self.push_bytes(leaf, digits.as_bytes());
        self.scratch = digits;
    }

    fn text<'k>(&mut self, key: impl Into<Key<'k>>, text: &str) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).text(key, text);
        }
        let leaf = self.leaf(key);
        self.push_bytes(leaf, text.as_bytes());
    }

    fn name<'k>(&mut self, key: impl Into<Key<'k>>, name: &Name) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).name(key, name);
        }
        self.text(key, name);
    }

    fn uints<'k>(&mut self, key: impl Into<Key<'k>>, numbers: &[u64]) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).uints(key, numbers);
        }
        let row = self.complete;
        let Some(first) = self.leaf(key) else { return };
        let columns = self.columns.iter_mut().skip(first).take(DIMENSIONS.len());
        for (column, n) in columns.zip(numbers) {
            // grids and blocks have 32 bits
            column.push_int(row, i64::try_from(*n).unwrap_or(i64::MAX));
        }
    }

    fn texts<'k>(&mut self, key: impl Into<Key<'k>>, texts: &[String]) {
        let key = key.into();
        if self.depth > 0 {
            return Json(&mut self.json).texts(key, texts);
        }
        let row = self.complete;
        if let Some(column) = self.column(key) {
            self.text_bytes += column.push_list(row, texts);
        }
    }

    fn unread<'k>(&mut self, key: impl Into<Key<'k>>) {
        // only arguments can be unread; no value is what a column has for it
        if self.depth > 0 {
            Json(&mut self.json).unread(key);
        }
    }

    fn open<'k>(&mut self, key: impl Into<Key<'k>>) {
        match self.depth {
            0 => self.open_json(key.into(), b'{'),
            _ => {
                Json(&mut self.json).open(key);
                self.depth += 1;
            }
        }
    }

    fn close(&mut self) {
        Json(&mut self.json).close();
        self.closed();
    }

    fn open_list<'k>(&mut self, key: impl Into<Key<'k>>) {
        match self.depth {
            0 => self.open_json(key.into(), b'['),
            _ => {
                Json(&mut self.json).open_list(key);
                self.depth += 1;
            }
        }
    }

    fn open_item(&mut self) {
        Json(&mut self.json).open_item();
        self.depth += 1;
    }

    fn close_list(&mut self) {
        Json(&mut self.json).close_list();
        self.closed();
    }
}
