//! The columns of the table: one for each field that a line can have ([docs/guides/parquet.md](../../../../../docs/guides/parquet.md)).
//!
//! Numbers are signed, because Spark reads unsigned 64-bit numbers as decimals and DuckDB refuses to subtract a larger one
//! from a smaller one. Addresses and handles use all 64 bits, so they are text as in the trace. Times have microseconds,
//! because Spark refuses nanoseconds.

use std::sync::Arc;

use gpuprobe_event::trace::Key;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use super::chunk::LEVEL;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    /// Numbers that rise: differences are stored.
    Rising,
    Double,
    Bool,
    /// A time in microseconds since 1970.
    Time,
    /// Text with few distinct values in a file.
    Word,
    /// Other text, for which a dictionary is of no use.
    Text,
    /// An object or a list as JSON text.
    Json,
    /// A group of the numbers x, y and z.
    Dim3,
    /// A list of texts.
    Texts,
}

/// The parts of a `Dim3`.
pub(super) const DIMENSIONS: [&str; 3] = ["x", "y", "z"];

/// Live memory by kind, of a process. Its name in the trace is that of the number that an allocation has.
pub(super) const LIVE_BY_KIND: &str = "live_by_kind";

/// Name and type of each column. Those that most lines have come first.
pub(super) const COLUMNS: &[(&str, Kind)] = &[
    ("event_id", Kind::Rising),
    ("ts", Kind::Double),
    ("time", Kind::Time),
    ("type", Kind::Word),
    ("name", Kind::Word),
    ("phase", Kind::Word),
    ("pid", Kind::Int),
    ("tid", Kind::Int),
    ("process", Kind::Word),
    ("duration_us", Kind::Double),
    ("unfinished", Kind::Bool),
    ("unobserved", Kind::Bool),
    // calls
    ("api", Kind::Word),
    ("class", Kind::Word),
    ("ret", Kind::Int),
    ("error", Kind::Word),
    ("args", Kind::Json),
    ("parent", Kind::Rising),
    ("weight", Kind::Int),
    ("nested", Kind::Bool),
    ("return_probed", Kind::Bool),
    ("size", Kind::Int),
    ("freed", Kind::Int),
    ("replaced", Kind::Int),
    ("replaced_kind", Kind::Word),
    ("live", Kind::Int),
    ("freed_allocations", Kind::Int),
    ("gpu", Kind::Int),
    ("ptr", Kind::Text),
    ("site", Kind::Int),
    ("kind", Kind::Word),
    ("freed_with_context", Kind::Json),
    ("async", Kind::Bool),
    ("host", Kind::Word),
    ("parts", Kind::Json),
    ("without_driver", Kind::Bool),
    ("copied", Kind::Int),
    ("captured", Kind::Bool),
    ("kernels", Kind::Int),
    ("graph", Kind::Int),
    ("graph_kernels", Kind::Json),
    ("disabled", Kind::Int),
    ("conditional", Kind::Int),
    ("incomplete", Kind::Bool),
    ("stream", Kind::Word),
    ("kernel", Kind::Word),
    ("grid", Kind::Dim3),
    ("block", Kind::Dim3),
    ("shared", Kind::Int),
    ("driver_calls", Kind::Int),
    ("driver_us", Kind::Double),
    ("dev", Kind::Word),
    ("cmd", Kind::Word),
    ("stack", Kind::Texts),
    // what GPUs executed, NVTX ranges, the agent
    ("op", Kind::Word),
    ("context", Kind::Int),
    ("correlation", Kind::Int),
    ("launch", Kind::Rising),
    ("queued_us", Kind::Double),
    ("range", Kind::Word),
    ("domain", Kind::Word),
    ("color", Kind::Word),
    ("graphs", Kind::Word),
    ("code", Kind::Int),
    ("text", Kind::Word),
    // processes, losses, errors of GPUs
    ("ppid", Kind::Int),
    ("ns_pid", Kind::Int),
    ("container", Kind::Word),
    ("rank", Kind::Int),
    ("rank_variable", Kind::Word),
    ("exit_status", Kind::Int),
    (LIVE_BY_KIND, Kind::Json),
    ("count", Kind::Int),
    ("xid", Kind::Int),
    ("pci", Kind::Word),
    ("message", Kind::Text),
    ("meaning", Kind::Word),
    ("processes", Kind::Json),
    ("requested", Kind::Int),
    ("allocated", Kind::Int),
    ("reserved", Kind::Int),
    ("free", Kind::Int),
    ("call_site", Kind::Word),
    ("largest", Kind::Json),
    ("others", Kind::Json),
];

impl Kind {
    /// How many of the file's columns hold it.
    pub(super) fn leaves(self) -> usize {
        match self {
            Self::Dim3 => DIMENSIONS.len(),
            _ => 1,
        }
    }

    /// The column in the language of Parquet's schemas.
    fn declared(self, name: &str) -> String {
        match self {
            Self::Int | Self::Rising => format!("optional int64 {name};"),
            Self::Double => format!("optional double {name};"),
            Self::Bool => format!("optional boolean {name};"),
            Self::Time => format!("optional int64 {name} (TIMESTAMP(MICROS,true));"),
            Self::Word | Self::Text | Self::Json => format!("optional binary {name} (STRING);"),
            Self::Dim3 => {
                let parts = DIMENSIONS.map(|part| format!("required int64 {part};")).concat();
                format!("optional group {name} {{ {parts} }}")
            }
            Self::Texts => format!(
                "optional group {name} (LIST) {{ repeated group list {{ required binary element (STRING); }} }}"
            ),
        }
    }
}

/// The schema of the file.
pub(super) fn schema() -> Result<TypePtr, ParquetError> {
    let columns: String = COLUMNS.iter().map(|(name, kind)| kind.declared(name)).collect();
    Ok(Arc::new(parse_message_type(&format!("message trace {{ {columns} }}"))?))
}

/// How the columns are stored. Only encodings are used that Spark reads since its version 3.3.
pub(super) fn properties() -> Result<WriterProperties, ParquetError> {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("gpuprobe version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
        // those of each page would take memory until the end of the file
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for (name, kind) in COLUMNS {
        let path = ColumnPath::from(match kind {
            Kind::Texts => vec![(*name).to_owned(), "list".to_owned(), "element".to_owned()],
            _ => vec![(*name).to_owned()],
        });
        properties = match kind {
            // all groups have the same texts, so a reader could skip none of them
            Kind::Texts => properties.set_column_statistics_enabled(path, EnabledStatistics::None),
            Kind::Rising | Kind::Time => properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Kind::Double => properties.set_column_dictionary_enabled(path, false),
            // texts are written in `texts`
            Kind::Int | Kind::Bool | Kind::Dim3 | Kind::Word | Kind::Text | Kind::Json => properties,
        };
    }
    Ok(properties.build())
}

/// Finds the column of a field by its name. A line has a dozen fields, and a hash map would take longer than all else
/// that is done with a number.
#[derive(Debug)]
pub(super) struct ColumnIndex {
    /// Positions in `COLUMNS` plus one.
    slots: [u8; Self::SLOTS],
    /// The first of the file's columns that hold it, by position in `COLUMNS`.
    first_leaf: Vec<usize>,
    /// Address and length of the last static name of each of a few hash values, and its column: nearly all names are static, and
    /// to compare their text takes longer.
    recent: [(usize, usize, usize); Self::RECENT],
}

impl ColumnIndex {
    const SLOTS: usize = 512;
    const RECENT: usize = 256;

    pub(super) fn new() -> Self {
        let mut index = Self {
            slots: [0; Self::SLOTS],
            first_leaf: Vec::with_capacity(COLUMNS.len()),
            recent: [(0, 0, 0); Self::RECENT],
        };
        let mut leaves = 0;
        for (column, (name, kind)) in (1..).zip(COLUMNS) {
            let mut slot = Self::slot(name);
            while index.slots[slot] != 0 {
                slot = (slot + 1) % Self::SLOTS;
            }
            index.slots[slot] = column;
            index.first_leaf.push(leaves);
            leaves += kind.leaves();
        }
        index
    }

    /// The first of the file's columns that hold this field.
    #[inline]
    pub(super) fn leaf(&mut self, key: Key<'_>) -> Option<usize> {
        let Key::Ours(name) = key else { return self.search(key.as_str()) };
        let (address, length) = (name.as_ptr().addr(), name.len());
        let slot = (address ^ address >> 8 ^ length << 4) % Self::RECENT;
        let (known, known_length, leaf) = self.recent[slot];
        if (known, known_length) == (address, length) {
            return Some(leaf);
        }
        let leaf = self.search(name)?;
        self.recent[slot] = (address, length, leaf);
        Some(leaf)
    }

    fn search(&self, name: &str) -> Option<usize> {
        let mut slot = Self::slot(name);
        loop {
            // fewer than half of the slots are taken, so an empty one comes soon
            let column = usize::from(self.slots[slot]).checked_sub(1)?;
            if COLUMNS.get(column).is_some_and(|(known, _)| *known == name) {
                return self.first_leaf.get(column).copied();
            }
            slot = (slot + 1) % Self::SLOTS;
        }
    }

    fn slot(name: &str) -> usize {
        let bytes = name.as_bytes();
        let at = |place: usize| usize::from(bytes.get(place).copied().unwrap_or_default());
        (bytes.len() + 7 * at(0) + 31 * at(bytes.len() / 2) + 101 * at(bytes.len().saturating_sub(1)))
            % Self::SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_is_found_by_its_name_and_no_other_name_is() {
        let mut index = ColumnIndex::new();
        let mut expected = 0;
        for (name, kind) in COLUMNS {
            for _ in 0..2 {
                assert_eq!(index.leaf(Key::Ours(name)), Some(expected), "{name}");
                assert_eq!(index.leaf(Key::Theirs(name)), Some(expected), "{name}");
            }
            expected += kind.leaves();
        }
        for other in ["", "x", "events", "Name", "name ", "\u{1F600}"] {
            assert_eq!(index.leaf(Key::Ours(other)), None, "{other:?}");
        }
        let schema = schema().unwrap();
        assert_eq!(schema.get_fields().len(), COLUMNS.len());
    }

    #[test]
    fn each_column_is_documented() {
        let page = include_str!("../../../../../docs/guides/parquet.md");
        for (name, _) in COLUMNS {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
